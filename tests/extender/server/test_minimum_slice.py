"""The setting minimum_slice_milli: smaller shares are refused with a reason of their own."""

from __future__ import annotations

import pytest

from extender.cluster.factory import GuardedPolicy, state_of
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.explain.pod import explain
from extender.k8s.objects import Container, Listed, Node, Pod, PodSpec, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from packing.policies.interface import update_now
from packing.policies.inventory import InventoryPolicy
from tests.extender.builders import make_node, make_pod, make_settings, why


def shared(name: str, gpus: int = 2) -> Node:
    """A node with GPUs of 80 GiB that are shared in Stowage's own dialect."""
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.memory": "81920"}
    return make_node(name, gpus, labels=labels)


def asks(**amounts: str) -> Pod:
    spec = PodSpec((Container("main", (("cpu", "1"),)),))
    words = {f"stowage.dev/gpu-{word}": text for word, text in amounts.items()}
    return make_pod("pod", spec=spec, annotations=words)


def state_with(*objects: Node | Pod, minimum: int = 100) -> State:
    state = state_of(make_settings(minimum_slice_milli=minimum))
    state.binds = True  # else nobody gives out the shares
    state.apply([*map(Upserted, objects), Listed("Node", frozenset(one.key for one in objects))])
    return state


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"compute": "9%"}, Reason.BELOW_MINIMUM),
        ({"compute": "10%"}, Reason.FITS),
        ({"compute": "1%", "memory": "50%"}, Reason.FITS),  # it takes half of the memory
        ({"memory": "8191Mi"}, Reason.BELOW_MINIMUM),
        ({"memory": "8Gi"}, Reason.FITS),
        ({"memory": "9%"}, Reason.BELOW_MINIMUM),
    ],
)
def test_the_larger_of_compute_and_memory_decides(amounts: dict[str, str], reason: Reason) -> None:
    assert why(state_with(shared("n")), asks(**amounts), "n") is reason
    assert why(state_with(shared("n"), minimum=0), asks(**amounts), "n") is Reason.FITS


def test_whole_gpus_and_plugin_devices_are_not_below_the_minimum() -> None:
    state = state_with(shared("n"), make_node("plain"), minimum=1000)
    assert why(state, make_pod("whole", 1), "plain") is Reason.FITS
    assert why(state, asks(compute="100%"), "n") is Reason.FITS
    assert why(state, asks(compute="5%"), "plain") is Reason.NO_SUCH_RESOURCE


def test_filter_and_explain_give_the_reason() -> None:
    state, pod = state_with(shared("a"), shared("b")), asks(compute="5%")
    result, _ = filter_nodes(state, FilterArgs(pod, NodeNames.of(["a", "b"])), make_settings())
    assert not result.names
    assert not result.failed
    assert {reason: list(names) for reason, names in result.unresolvable.items()} == {
        Reason.BELOW_MINIMUM.text: ["a", "b"]
    }
    [refusal] = explain(state, pod).refusals
    assert (refusal.reason, refusal.nodes, refusal.eviction_helps) == (Reason.BELOW_MINIMUM.text, 2, False)


def test_running_pods_keep_their_shares_and_small_shares_teach_nothing() -> None:
    running = asks(compute="5%")
    state = state_with(shared("n"))
    state.apply([Upserted(running)])
    assert state.learner.learned == 0
    state.apply([Upserted(asks(compute="20%"))])
    assert why(state, asks(compute="20%"), "n") is Reason.FITS


def test_the_policy_counts_less_as_waste() -> None:
    guarded = state_of(make_settings(policy="inventory", minimum_slice_milli=250)).policy
    assert isinstance(guarded, GuardedPolicy)
    policy = guarded.chosen
    assert isinstance(policy, InventoryPolicy)
    state = state_with(shared("n"))
    for _ in range(3):
        policy.observe(request_of(asks(compute="20%")))
    update_now(policy, state.fleet)
    table = policy.tables.fill[0]
    bins = table.shape[0] - 1
    assert (table[: bins // 4] == 0).all()
    assert table[bins, bins] >= 0
