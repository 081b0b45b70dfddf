"""What a pod says of the size of its GPUs (memory of each, whole ones only), and what counts for those that
say nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.pod_request import DEVICE_MEMORY, WHOLE_GPU, request_of
from extender.dialects.pod_resources import RequestError
from extender.inventory.node_inventory import STOWAGE_SHARING
from extender.k8s.objects import Listed, Node, Pod, Upserted
from extender.k8s.resource_claims import DeviceClass
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.queues.queue import QUEUE_LABEL
from extender.settings import Settings
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod
from tests.extender.dialects.test_dialect_manifests import node

PART, SMALL = Reason.PART_OF_A_GPU.text, Reason.SMALL_DEVICES.text
L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.memory": "46068"}
SLICED = make_node("sliced", 16, labels=L40S | {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "4"})
WHOLE = make_node("whole", 2)
SHARED = make_node("shared", 0, labels={STOWAGE_SHARING: "true", "nvidia.com/gpu.count": "2"})
UNKNOWN = Node("unknown", allocatable={"cpu": "64", "memory": "512Gi", GPU: "4"})


def hami(*sizes: int) -> Node:
    """A node of HAMi with GPUs of these sizes in MiB."""
    one = node("hami")
    like = json.loads(one.annotations["hami.io/node-nvidia-register"])[0]
    gpus = [like | {"id": f"GPU-{n}", "index": n, "devmem": mib} for n, mib in enumerate(sizes)]
    register = {**one.annotations, "hami.io/node-nvidia-register": json.dumps(gpus)}
    return replace(one, annotations=register, allocatable={**one.allocatable, GPU: str(10 * len(sizes))})


def state_with(*objects: Node | Pod | DeviceClass, **settings: object) -> State:
    state = state_of(Settings.model_validate({"bind": True, **settings}))
    state.binds = True
    state.apply(
        [*map(Upserted, objects), Listed("Node", frozenset(o.key for o in objects if o.kind == "Node"))]
    )
    return state


def says(memory: str = "", whole: str = "", **more: object) -> Pod:
    words = {DEVICE_MEMORY: memory, WHOLE_GPU: whole} | more.pop("words", {})
    return make_pod("p", more.pop("gpus", 1), annotations={k: v for k, v in words.items() if v}, **more)


def refused(state: State, pod: Pod) -> dict[str, str]:
    """Why each node that does not fit does not."""
    asked = FilterArgs(pod, NodeNames.of(state.nodes))
    result, _ = filter_nodes(state, asked, Settings(shortlist=0))
    assert not result.error
    by_reason = [*result.failed.items(), *result.unresolvable.items()]
    found = {name: reason for reason, names in by_reason for name in names}
    assert {*result.names, *found} == {*state.nodes}
    return found


@pytest.mark.parametrize(
    ("of", "part", "memory"),
    [
        (WHOLE, "", "79Gi"),
        (SLICED, PART, "11Gi"),
        (node("mig-single"), PART, ""),
        (UNKNOWN, "", ""),
        (hami(40_000, 80_000), "", "78Gi"),
    ],
    ids=lambda one: one.name if isinstance(one, Node) else None,
)
def test_each_kind_of_node(of, part, memory):
    """``memory``: the most that is certain to be there, in whole GiB; "" for none of 40Gi."""
    state = state_with(of)
    assert refused(state, says()) == {}
    assert refused(state, says(whole="false")) == {}
    assert refused(state, says(whole="true")) == ({of.name: part} if part else {})
    if memory:
        assert refused(state, says(memory)) == {}
        assert refused(state, says(f"{int(memory[:-2]) + 1}Gi")) == {of.name: SMALL}
    else:
        assert refused(state, says("40Gi")) == {of.name: SMALL}


def test_shares_have_their_part_of_the_memory():
    state = state_with(SHARED)

    def share(memory: str, **words: str) -> Pod:
        return says(memory, gpus=0, words={f"stowage.dev/{k.replace('_', '-')}": v for k, v in words.items()})

    assert refused(state, share("39Gi", gpu_compute="50%")) == {}
    assert refused(state, share("40Gi", gpu_compute="50%")) == {"shared": SMALL}
    assert refused(state, share("40Gi", gpus="1", whole_gpu="true")) == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({WHOLE_GPU: "yes"}, 'expected "true" or "false"'),
        ({DEVICE_MEMORY: "much"}, "is malformed"),
        (
            {WHOLE_GPU: "true", "stowage.dev/gpu-compute": "30%"},
            "requests a fraction of a GPU by stowage.dev/gpu",
        ),
        (
            {DEVICE_MEMORY: "9Gi", "stowage.dev/gpu-compute": "1", "stowage.dev/gpu-memory": "8Gi"},
            "requests less",
        ),
    ],
)
def test_contradictions_are_refused(words, problem):
    pod = make_pod("p", 0 if len(words) > 1 else 1, annotations=words)
    with pytest.raises(RequestError, match=problem):
        request_of(pod)


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/cpx_nps4"])
def test_a_part_by_name_is_not_whole(name):
    with pytest.raises(RequestError, match=f"requests a fraction of a GPU by {name}"):
        request_of(says(whole="true", resource=name))


def least(state: State, pod: Pod) -> bool:
    return "sliced" not in refused(state, pod)


def test_a_setting_says_what_pods_get_that_say_nothing():
    queues = {"gold": {"plain_gpu": "whole"}, "open": {"plain_gpu": "least"}, "other": {}}
    nodes, by_namespace = (WHOLE, SLICED), {"default": "whole", "b": "least"}
    assert least(state_with(*nodes), says())
    assert not least(state_with(*nodes, plain_gpu="whole"), says())
    state = state_with(*nodes, queues=queues, plain_gpu_by_namespace=by_namespace)
    for queue, is_least in (("gold", False), ("open", True), ("other", False)):
        assert least(state, says(labels={QUEUE_LABEL: queue})) is is_least
    assert least(state, replace(says(), namespace="b"))
    assert not least(state, replace(says(labels={QUEUE_LABEL: "gold"}), namespace="b"))
