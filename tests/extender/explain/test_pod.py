from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.explain.answers import Need, NeedKind
from extender.explain.pod import asks, explain, explain_evaluation
from extender.k8s.objects import Container, PodSpec, Upserted
from extender.protocol.node_names import NO_NAMES, NodeNames
from extender.source.workloads import parse_pod
from extender.untrusted.limits import PROBLEM
from extender.verbs.evaluate import evaluate
from packing.model.reasons import Reason
from packing.model.request import Request, Shares
from tests.extender.builders import GPU, make_node, make_pod, make_state


def refusals(explanation):
    return {one.reason: one for one in explanation.refusals}


def missing(what, asked, free, total):
    return Need(what, asked, free, total, f"needs {asked} {what}, {free} of {total} are free")


def test_every_node_is_in_exactly_one_place():
    state = make_state(
        make_node("a"),
        make_node("small", 2),
        make_node("full"),
        make_pod("p", 8, node_name="full"),
        make_node("cpu-only", 0),
        make_node("other"),
    )
    explanation = explain(state, make_pod("new", 4))
    assert explanation.nodes == 5
    assert explanation.fits + sum(one.nodes for one in explanation.refusals) == explanation.nodes


def test_the_nearest_node_is_the_one_that_lacks_least():
    state = make_state(
        *(make_node(name) for name in "abc"),
        *(make_pod(f"on-{name}", held, node_name=name) for name, held in zip("abc", (8, 5, 7), strict=True)),
    )
    refusal = refusals(explain(state, make_pod("new", 4)))[Reason.NO_FREE_GPUS.text]
    assert (refusal.nodes, refusal.nearest) == (3, "b")
    assert refusal.lacks == (missing(GPU, 4, 3, 8),)


def test_everything_that_is_short_is_named():
    state = make_state(make_node("a", cpu="4"), make_pod("p", 6, cpu="2", node_name="a"))
    explanation = explain(state, make_pod("new", 4, cpu="3"))
    [refusal] = explanation.refusals
    cpu = Need("cpuMilli", 3000, 2000, 4000, "needs 3 CPUs, 2 of 4 are free", NeedKind.CPU)
    assert refusal.lacks == (cpu, missing(GPU, 4, 2, 8))


def test_nominated_pods_count_and_the_pods_own_allocation_does_not():
    state = make_state(
        make_node("a", 4),
        make_pod("nominated", 3, nominated_node="a", priority=9),
        make_pod("running", 1, node_name="a"),
    )
    [refusal] = explain(state, make_pod("new", 1)).refusals
    assert refusal.lacks == (missing(GPU, 1, 0, 4),)
    assert explain(state, make_pod("new", 3, priority=10)).fits == 1
    assert explain(state, make_pod("running", 1)).fits == 1


def test_nodes_that_kube_scheduler_would_not_ask_about_are_counted_apart():
    state = make_state(
        make_node("a"), make_node("west", labels={"zone": "west"}), make_node("off", labels={"zone": "west"})
    )
    spec = make_pod("x").spec
    pod = make_pod("new", spec=PodSpec(spec.containers, node_selector=(("zone", "west"),)))
    assert explain(state, pod).passed_over == {"node selector does not match: zone=west": 1}
    state.apply([Upserted(replace(state.nodes["off"], labels={"zone": "west"}, unschedulable=True))])
    explanation = explain(state, pod)
    assert explanation.passed_over == {"node selector does not match: zone=west": 1, "node is cordoned": 1}
    assert (explanation.nodes, explanation.fits) == (1, 1)


def test_the_best_come_first_with_their_scores_and_terms():
    state = make_state(
        *(make_node(n) for n in "abcde"), make_pod("p", 6, node_name="d"), make_pod("q", 7, node_name="e")
    )
    explanation = explain(state, make_pod("new", 1))
    assert [option.node for option in explanation.best][:2] == ["e", "d"]
    assert explanation.best[0].score == 10
    assert [option.cost for option in explanation.best] == sorted(option.cost for option in explanation.best)
    for option in explanation.best:
        assert sum(option.terms.values()) == pytest.approx(option.cost, abs=1)  # up to rounding


def test_an_evaluation_of_unknown_names():
    state = make_state(make_node("a"))
    pod = make_pod("new")
    names = NodeNames.of(["x", "y"])
    evaluation = evaluate(state, pod, Request(devices=((GPU, 1),)), names)
    [refusal] = explain_evaluation(state, names, evaluation).refusals
    assert (refusal.reason, refusal.nodes, refusal.nearest, refusal.lacks) == (
        Reason.UNKNOWN_NODE.text,
        2,
        "x",
        (),
    )


def test_an_evaluation_of_no_names():
    state = make_state(make_node("a"))
    evaluation = evaluate(state, make_pod("new"), Request(devices=((GPU, 1),)), NO_NAMES)
    explanation = explain_evaluation(state, NO_NAMES, evaluation)
    assert (explanation.nodes, explanation.fits, explanation.best, explanation.refusals) == (0, 0, (), ())


def test_a_request_that_cannot_be_read_is_an_error():
    pod = make_pod("new", spec=PodSpec((Container("main", ((GPU, "-1"),)),)))
    explanation = explain(make_state(make_node("a")), pod)
    assert GPU in explanation.error
    assert explanation.nodes == 0


def test_asking_changes_nothing():
    state = make_state(
        make_node("a"), make_pod("nominated", 3, nominated_node="a", priority=9), make_pod("w", 2)
    )
    before = (
        state.fleet.arrays.free_devices.copy(),
        state.fleet.arrays.compute.copy(),
        dict(state.pods),
        dict(state.problems),
    )
    explain(state, make_pod("new", 6))
    explain(state, state.pods["default/w"])
    after = state.fleet.arrays.free_devices, state.fleet.arrays.compute, state.pods, state.problems
    assert (before[0] == after[0]).all()
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


def test_requests_in_words():
    request = Request(
        4000, 1 << 30, shares=Shares(2, 500, memory_mib=8192), models=frozenset({"T4", "L4"}), island=True
    )
    assert asks(request) == {
        "cpuMilli": 4000,
        "memoryMib": 1024,
        "gpus": 2,
        "eachComputeMilli": 500,
        "eachMemoryMib": 8192,
        "models": "L4, T4",
        "nvlinkIsland": "required",
    }


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
EXPRESSION = st.fixed_dictionaries(
    {}, optional={"key": SCALARS, "operator": st.sampled_from(["In", "Gt", "x"]), "values": st.lists(SCALARS)}
)
TERM = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(EXPRESSION), "matchFields": st.lists(EXPRESSION)}
)
SPEC = st.fixed_dictionaries(
    {},
    optional={
        "affinity": ANYTHING
        | st.lists(TERM).map(
            lambda terms: {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            }
        ),
        "tolerations": ANYTHING
        | st.lists(st.dictionaries(st.sampled_from(["key", "value", "effect"]), SCALARS)),
        "nodeSelector": ANYTHING | st.dictionaries(st.text(max_size=8), SCALARS),
        "containers": ANYTHING,
        "resourceClaims": ANYTHING,
    },
)
NODES = make_state(make_node("a"), make_node("b", labels={"zone": "b"}))


@given(SPEC, ANYTHING)
def test_whatever_a_manifest_holds_it_is_explained_or_refused(spec, metadata):
    text = json.dumps({"kind": "Pod", "metadata": metadata or {"name": "p"}, "spec": spec})
    try:
        pod = parse_pod(text, "the manifest")
    except ValueError as error:
        said = str(error)
    else:
        said = explain(NODES, pod).error
    assert len(said) <= PROBLEM + 30
