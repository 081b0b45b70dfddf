from __future__ import annotations

import json
from dataclasses import replace

import pytest

from extender.explain.pod import explain
from extender.k8s.node_filter import NodeFilter
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import KEY, SELECTOR_ITEMS
from tests.extender.builders import make_node, make_pod, make_state


def affinity(*expressions, terms=1):
    one = {"matchExpressions": list(expressions)}
    required = {"nodeSelectorTerms": [one] * terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def rules_of(**spec):
    pod = PodManifest.model_validate({"metadata": {"name": "p"}, "spec": spec})
    return pod.record().scheduling_constraints


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
    assert not (problem and (rules.node_affinity or rules.tolerations))


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
    explanation = explain(state, make_pod("new", scheduling_constraints=rules))
    assert explanation.fits == holds
    assert explanation.passed_over == ({} if holds else {"node affinity does not match": 1})


def test_nodes_with_equal_labels_are_compared_once():
    nodes = [
        make_node(f"n{i}", labels={"zone": "ab"[i % 2], "kubernetes.io/hostname": f"n{i}"}) for i in range(50)
    ]
    state = make_state(*nodes)
    rules = rules_of(affinity=affinity(IN_ZONE | {"values": ["b"]}))
    explanation = explain(state, make_pod("new", scheduling_constraints=rules))
    assert explanation.passed_over == {"node affinity does not match": 25}
    asked = NodeFilter(make_pod("new", scheduling_constraints=rules))
    for node in nodes:
        asked.rejection(node)
    assert len(asked._affinity) == 2


def test_a_cordon_can_be_tolerated():
    state = make_state(replace(make_node("a"), unschedulable=True))
    assert explain(state, make_pod("new")).passed_over == {"node is cordoned": 1}
    rules = rules_of(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert explain(state, make_pod("new", scheduling_constraints=rules)).fits == 1


def test_affinity_for_the_name_of_a_node():
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    rules = rules_of(affinity={"nodeAffinity": required})
    explanation = explain(
        make_state(make_node("a"), make_node("b")), make_pod("new", scheduling_constraints=rules)
    )
    assert ([one.node for one in explanation.best], explanation.nodes) == (["b"], 1)
