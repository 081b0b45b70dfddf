"""The setting minimum_slice_milli: smaller shares are refused with a reason of their own."""

from __future__ import annotations

from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.k8s.objects import Container, Listed, Node, Pod, PodSpec, Upserted
from packing.model.reasons import Reason
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


def test_whole_gpus_and_plugin_devices_are_not_below_the_minimum() -> None:
    state = state_with(shared("n"), make_node("plain"), minimum=1000)
    assert why(state, make_pod("whole", 1), "plain") is Reason.FITS
    assert why(state, asks(compute="100%"), "n") is Reason.FITS
    assert why(state, asks(compute="5%"), "plain") is Reason.NO_SUCH_RESOURCE


def test_running_pods_keep_their_shares_and_small_shares_teach_nothing() -> None:
    running = asks(compute="5%")
    state = state_with(shared("n"))
    state.apply([Upserted(running)])
    assert state.learner.learned == 0
    state.apply([Upserted(asks(compute="20%"))])
    assert why(state, asks(compute="20%"), "n") is Reason.FITS
