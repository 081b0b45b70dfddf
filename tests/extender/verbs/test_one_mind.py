"""filter and bind agree: where filter says that a pod fits, bind assigns GPUs, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.explain.pod import explain
from extender.k8s.objects import Container, Pod, PodSpec, Upserted
from extender.protocol.codec import FilterArgs, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.verbs.bind import BindingRefused, assign
from extender.verbs.evaluate import evaluate
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.builders import GPU, NOW, make_pod, make_settings, make_state, why
from tests.extender.dialects.test_dialect_manifests import NODES, PODS
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.dialects.test_dialect_manifests import pod as pod_of

NOBODY = Reason.NO_ASSIGNER
ASKS = {"vgpu-manager": "vgpu-manager-memory-and-cores", "volcano": "volcano-hami-core"}
ASKS |= {"koordinator": "koordinator-nvidia"}


def own(name: str, **annotations: str) -> Pod:
    return make_pod(name, 0, annotations={"stowage.dev/gpu-compute": "600m", **annotations})


def urgent(name: str) -> Pod:
    return replace(own(name), priority=10)


def test_where_stowage_does_not_bind_nobody_assigns_its_shares() -> None:
    assert why(make_state(node_of("stowage")), own("p"), "stowage") is NOBODY
    assert why(make_state(node_of("stowage"), binds=True), own("p"), "stowage") is Reason.FITS


def test_what_cannot_be_said_to_the_device_plugin_does_not_fit() -> None:
    assert why(make_state(node_of("gpushare"), binds=True), pod_of("gpushare-two-gpus"), "gpushare") is NOBODY
    assert (
        why(make_state(node_of("gpushare"), binds=True), pod_of("gpushare-memory"), "gpushare") is Reason.FITS
    )


def gpus(count: int, *, sidecar: bool = False) -> Container:
    return Container(f"c{count}", ((GPU, str(count)),) if count else (), sidecar=sidecar)


def test_an_init_container_may_have_the_gpu_of_a_later_sidecar() -> None:
    late = PodSpec((gpus(0),), init_containers=(gpus(2), gpus(2, sidecar=True)))
    early = PodSpec((gpus(0),), init_containers=(gpus(1, sidecar=True), gpus(1)))
    state = make_state(node_of("hami"), binds=True)
    assert why(state, make_pod("late", spec=late), "hami") is Reason.FITS
    assert why(state, make_pod("early", spec=early), "hami") is Reason.FITS


def test_filter_explain_and_preempt_say_the_same() -> None:
    runs = own("runs", **{"stowage.dev/gpu-indices": "0"})
    state = make_state(node_of("stowage"), node_of("volcano"), replace(runs, node_name="stowage"))
    result, _ = filter_nodes(state, FilterArgs(own("p"), NodeNames.of(["stowage"])), make_settings())
    assert {reason: list(names) for reason, names in result.unresolvable.items()} == {
        NOBODY.text: ["stowage"]
    }
    assert NOBODY.text in {refusal.reason for refusal in explain(state, own("p")).refusals}
    others = [own(f"other-{gpu}", **{"stowage.dev/gpu-indices": gpu}) for gpu in "123"]
    state.apply([Upserted(replace(other, node_name="stowage")) for other in others])  # now it is full
    asked = PreemptArgs(urgent("p"), {"stowage": ProposedVictims(["uid-runs"])})
    assert not preempt(state, asked, NOW).candidates
    state.binds = True
    assert preempt(state, asked, NOW).candidates


# Random states and pods.


def readable(name: str) -> bool:
    try:
        request_of(pod_of(name))
    except RequestError:
        return False
    return True


TEMPLATES = [name for name in PODS if readable(name)]
ON = [replace(node_of(name), name=name + twin) for name in NODES for twin in ("", "-2")]
FORGED = [
    {"hami.io/vgpu-devices-allocated": "GPU-aaaa,NVIDIA,1,1:;"},
    {"ALIYUN_COM_GPU_MEM_IDX": "1"},
    {"stowage.dev/gpu-indices": "3"},
    {"volcano.sh/vgpu-ids-new": "GPU-aaaa,NVIDIA,1,1:;"},
    {"nvidia.com/pre-allocated": "main[0_GPU-aaaa_1_1];"},
    {"scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}'},
]
containers = st.builds(gpus, st.integers(0, 2), sidecar=st.booleans())
specs = st.builds(
    lambda inits, mains: PodSpec(
        tuple(replace(one, sidecar=False, name=f"m{i}") for i, one in enumerate(mains)),
        tuple(replace(one, name=f"i{i}") for i, one in enumerate(inits)),
    ),
    st.lists(containers, max_size=3),
    st.lists(containers, min_size=1, max_size=2),
)
pods = st.one_of(
    st.builds(pod_of, st.sampled_from(TEMPLATES)),
    st.builds(lambda spec: make_pod("p", spec=spec), specs),
    st.builds(lambda milli: own("p", **{"stowage.dev/gpu-compute": f"{milli}m"}), st.integers(1, 1000)),
    st.builds(lambda count: own("p", **{"stowage.dev/gpus": str(count)}), st.integers(1, 4)),
)
forged = st.one_of(st.just({}), st.just({}), st.just({}), st.sampled_from(FORGED))


@settings(max_examples=examples(150))
@given(
    asked=st.lists(st.tuples(pods, forged, st.integers(0, 99)), min_size=1, max_size=12),
    policy=st.sampled_from(["best-fit", "inventory", "least-allocated"]),
)
def test_where_filter_says_that_a_pod_fits_it_is_assigned(
    asked: list[tuple[Pod, dict[str, str], int]], policy: str
) -> None:
    state = State(POLICIES[policy]())
    state.binds = True
    state.apply(list(map(Upserted, ON)))
    for number, (template, forging, wish) in enumerate(asked):
        pod = replace(
            template, name=f"p{number}", uid=f"u{number}", node_name="",
            annotations={**template.annotations, **forging},
        )  # fmt: skip
        request = request_of(pod)
        evaluation = evaluate(state, pod, request, NodeNames.of(one.name for one in ON))
        fitting = []
        for node, code in zip(ON, map(Reason, evaluation.codes.tolist()), strict=True):
            if code is Reason.FITS:
                fitting.append((node.name, assign(state, pod, node.name)))
            elif code is not NOBODY and request.wants_gpu:
                with pytest.raises((BindingRefused, RequestError)):
                    assign(state, pod, node.name)
        if fitting:
            name, said = fitting[wish % len(fitting)]
            running = {**pod.annotations, **said, "hami.io/bind-phase": "success"}
            placed = replace(pod, node_name=name, phase="Running", annotations=running)
            state.apply([Upserted(placed)])
            assert not (said and placed.key in state.problems), state.problems
