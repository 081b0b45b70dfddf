"""What a pod says of the size of its GPUs (memory of each, whole ones only), and what counts for those that
say nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from extender.cli.explain_text import render
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.pod_request import DEVICE_MEMORY, SEPARATE, WHOLE_GPU, request_of
from extender.dialects.pod_resources import RequestError
from extender.explain.pod import explain
from extender.inventory.node_inventory import STOWAGE_SHARING
from extender.k8s.objects import Listed, Node, Pod, Upserted
from extender.k8s.resource_claims import DeviceClass
from extender.protocol.codec import FilterArgs, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.queues.gang_words import GANG, GANG_MIN
from extender.queues.queue import QUEUE_LABEL
from extender.settings import Settings
from extender.verbs.bind import BindingRefused, assign
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from packing.model.reasons import Reason
from tests.extender.builders import GPU, NOW, make_node, make_pod
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


def test_instances_that_are_named_have_their_size():
    state = state_with(node("mig-mixed"))
    small = "nvidia.com/mig-1g.10gb"
    assert refused(state, says("9Gi", resource=small)) == {}
    assert refused(state, says("10Gi", resource=small)) == {"mig-mixed": SMALL}


def test_hami_makes_instances_of_gpus_that_are_asked_for_whole():
    state = state_with(node("hami-mig-on-demand"))
    assert refused(state, says()) == {}
    assert refused(state, says(whole="true")) == {"hami-mig-on-demand": PART}


def test_bind_gives_the_gpu_that_is_large_enough():
    state = state_with(hami(40_000, 80_000, 24_000))
    given = assign(state, says("50Gi"), "hami") | {"hami.io/bind-phase": "success"}
    assert "GPU-1," in given["hami.io/vgpu-devices-allocated"]
    first = replace(
        says("50Gi"), name="first", uid="first", node_name="hami", phase="Running", annotations=given
    )
    state.apply([Upserted(first)])
    with pytest.raises(BindingRefused, match="not enough free GPUs"):
        assign(state, says("50Gi"), "hami")
    assert refused(state, says("50Gi", gpus=2)) == {"hami": Reason.TOO_FEW_GPUS.text}
    assert refused(state, says("30Gi")) == {}


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


def full(name: str, on: str, gpus: int) -> Pod:
    return make_pod(name, gpus, node_name=on, started=NOW - 3600, phase="Running")


def test_nobody_is_evicted_where_only_parts_would_be_free():
    state = state_with(WHOLE, SLICED, full("a", "whole", 2), full("b", "sliced", 16))
    for pod in (says(whole="true"), says("40Gi")):
        asked = replace(pod, priority=100)
        candidates = {
            name: ProposedVictims([f"uid-{victim}"]) for name, victim in (("whole", "a"), ("sliced", "b"))
        }
        found = preempt(state, PreemptArgs(asked, candidates), NOW, most=2).candidates
        assert list(found) == ["whole"]


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


@pytest.mark.parametrize("says_something", [says(whole="false"), says("8Gi")])
def test_the_setting_is_for_pods_that_say_nothing(says_something):
    assert least(state_with(WHOLE, SLICED, plain_gpu="whole"), says_something)


def test_the_setting_does_not_count_for_named_parts_and_does_beside_a_device_class():
    state = state_with(node("mig-mixed"), plain_gpu="whole")
    assert refused(state, says(resource="nvidia.com/mig-1g.10gb")) == {}
    of_dra = DeviceClass("gpu", extended_resource=GPU)
    assert not least(state_with(WHOLE, SLICED, of_dra, plain_gpu="whole"), says())


def test_all_members_of_a_gang_get_whole_gpus():
    labels = {GANG: "g", GANG_MIN: "3"}
    members = [replace(make_pod(f"m{n}", 1, labels=labels), annotations={SEPARATE: "none"}) for n in range(3)]
    assert refused(state_with(WHOLE, SLICED, *members), members[0]) == {}
    state = state_with(WHOLE, SLICED, *members, plain_gpu="whole")
    assert refused(state, members[0]) == {"whole": Reason.GANG_DOES_NOT_FIT.text, "sliced": PART}


def test_explain_says_which_memory_is_there():
    state = state_with(SLICED, WHOLE)
    text = render(explain(state, says("100Gi")))
    assert "needs 100 GiB on each GPU or share, the largest here has 79.6" in text
    assert "request at most 81559Mi in stowage.dev/min-gpu-memory" in text
    assert "needs 40 GiB on each GPU or share, the largest here has 11.2" in render(
        explain(state, says("40Gi"))
    )
    text = render(explain(state_with(UNKNOWN), says("40Gi")))
    assert "their size here is unknown" in text
    assert "at least 40 GiB on each GPU" in render(explain(state, says("40Gi")))
    assert "'40' is in bytes. For 40 GiB write 40Gi." in render(explain(state, says("40")))


def test_explain_warns_where_a_part_is_given_and_whole_gpus_are_free():
    warning = "it gets 1 of 16 replicas of 4 L40S, although whole GPUs are free elsewhere. "
    warning += 'To require a whole GPU, set annotations: {stowage.dev/whole-gpu: "true"}'

    def warns(*nodes: Node | Pod, pod: Pod | None = None, **settings: object) -> bool:
        text = " ".join(explain(state_with(*nodes, **settings), pod or says()).hints)
        return warning in text

    assert warns(WHOLE, SLICED)
    assert not warns(WHOLE, SLICED, full("a", "whole", 2))
    assert not warns(WHOLE, SLICED, pod=says(whole="false"))
    assert not warns(WHOLE, SLICED, pod=says("8Gi"))
    assert not warns(WHOLE, SLICED, plain_gpu="whole")
    assert not warns(WHOLE)
