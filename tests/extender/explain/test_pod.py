from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.explain.needs import Need
from extender.explain.pod import asks, explain, explain_evaluation
from extender.k8s.manifests import WirePod
from extender.k8s.objects import Container, PodSpec, Upserted
from extender.k8s.scheduling_rules import NodeFilter
from extender.protocol.node_names import NO_NAMES, NodeNames
from extender.source.snapshot import parse_pod
from extender.untrusted.limits import KEY, PROBLEM, SELECTOR_ITEMS
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
    cpu = Need("cpu (milli)", 3000, 2000, 4000, "needs 3 CPUs, 2 of 4 are free")
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
    assert explain(state, pod).passed_over == {"node selector does not match": 1}
    state.apply([Upserted(replace(state.nodes["off"], labels={"zone": "west"}, unschedulable=True))])
    explanation = explain(state, pod)
    assert explanation.passed_over == {"node selector does not match": 1, "node is cordoned": 1}
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
    before = state.fleet.free.copy(), state.fleet.compute.copy(), dict(state.pods), dict(state.problems)
    explain(state, make_pod("new", 6))
    explain(state, state.pods["default/w"])
    after = state.fleet.free, state.fleet.compute, state.pods, state.problems
    assert (before[0] == after[0]).all()
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


def test_requests_in_words():
    request = Request(
        4000, 1 << 30, shares=Shares(2, 500, memory_mib=8192), models=frozenset({"T4", "L4"}), island=True
    )
    assert asks(request) == {
        "cpu (milli)": 4000,
        "memory (MiB)": 1024,
        "GPUs": 2,
        "of each: compute (milli)": 500,
        "of each: memory (MiB)": 8192,
        "models": "L4, T4",
        "NVLink island": "required",
    }


def affinity(*expressions, terms=1):
    one = {"matchExpressions": list(expressions)}
    required = {"nodeSelectorTerms": [one] * terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def rules_of(**spec):
    pod = WirePod.model_validate({"metadata": {"name": "p"}, "spec": spec})
    return pod.record().rules


IN_ZONE = {"key": "zone", "operator": "In"}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"affinity": affinity(IN_ZONE | {"values": ["z"] * (SELECTOR_ITEMS - 1)})}, ""),
        ({"affinity": affinity(IN_ZONE | {"values": ["z"] * SELECTOR_ITEMS})}, "node affinity"),
        (
            {"affinity": affinity({"key": "zone", "operator": "Exists"}, terms=SELECTOR_ITEMS)},
            "node affinity",
        ),
        ({"affinity": affinity(terms=SELECTOR_ITEMS + 1)}, "node affinity"),
        ({"affinity": affinity(IN_ZONE | {"values": ["z" * (KEY + 1)]})}, "node affinity"),
        ({"tolerations": [{"key": "team"}] * SELECTOR_ITEMS}, ""),
        ({"tolerations": [{"key": "team"}] * (SELECTOR_ITEMS + 1)}, "tolerations"),
        ({"tolerations": [{"key": "team", "value": "v" * (KEY + 1)}]}, "tolerations"),
        ({"nodeSelector": {f"k{number}": "" for number in range(SELECTOR_ITEMS + 1)}}, "node selector"),
    ],
)
def test_rules_past_their_limit_keep_nothing_but_a_problem(spec, problem):
    rules = rules_of(**spec)
    assert rules.problem.startswith(problem)
    assert bool(rules.problem) == bool(problem)
    assert not (problem and (rules.terms or rules.tolerations))


def test_equal_rules_are_one_object():
    spec = {"affinity": affinity(IN_ZONE | {"values": ["a"]}), "tolerations": [{"operator": "Exists"}]}
    assert rules_of(**spec) is rules_of(**json.loads(json.dumps(spec)))


@pytest.mark.parametrize(
    ("label", "operator", "values", "holds"),
    [
        ("5", "Gt", ["4"], True),
        ("5", "Lt", ["4"], False),
        ("-5", "Lt", ["+4"], True),
        ("9" * 63, "Gt", ["4"], False),
        ("5", "Gt", ["-" + "9" * 60], False),
        ("5", "Gt", ["1_0"], False),
        ("5", "Gt", [" 4"], False),
        ("\u0665", "Gt", ["4"], False),
        ("5", "Gt", ["4", "3"], False),
        ("5", "Gt", [], False),
        ("9223372036854775807", "Gt", ["9223372036854775806"], True),
        ("9223372036854775808", "Gt", ["4"], False),
    ],
)
def test_numbers_are_compared_as_go_reads_them(label, operator, values, holds):
    state = make_state(make_node("a", labels={"rank": label}))
    rules = rules_of(affinity=affinity({"key": "rank", "operator": operator, "values": values}))
    explanation = explain(state, make_pod("new", rules=rules))
    assert explanation.fits == holds
    assert explanation.passed_over == ({} if holds else {"node affinity does not match": 1})


def test_nodes_with_equal_labels_are_compared_once():
    nodes = [
        make_node(f"n{i}", labels={"zone": "ab"[i % 2], "kubernetes.io/hostname": f"n{i}"}) for i in range(50)
    ]
    state = make_state(*nodes)
    rules = rules_of(affinity=affinity(IN_ZONE | {"values": ["b"]}))
    explanation = explain(state, make_pod("new", rules=rules))
    assert explanation.passed_over == {"node affinity does not match": 25}
    asked = NodeFilter(rules)
    for node in nodes:
        asked.obstacle(node.name, node.labels, node.taints, node.unschedulable)
    assert len(asked._affinity) == 2


def test_a_cordon_can_be_tolerated():
    state = make_state(replace(make_node("a"), unschedulable=True))
    assert explain(state, make_pod("new")).passed_over == {"node is cordoned": 1}
    rules = rules_of(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert explain(state, make_pod("new", rules=rules)).fits == 1


def test_affinity_for_the_name_of_a_node():
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    rules = rules_of(affinity={"nodeAffinity": required})
    explanation = explain(make_state(make_node("a"), make_node("b")), make_pod("new", rules=rules))
    assert ([one.node for one in explanation.best], explanation.nodes) == (["b"], 1)


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
