"""Node affinity, tolerations and cordons: which nodes kube-scheduler would reject for a pod."""

from __future__ import annotations

import pytest

from extender.explain.pod import explain
from extender.k8s.affinity import Taint, Toleration
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import KEY, SELECTOR_ITEMS
from tests.extender.builders import make_node, make_pod, make_state


def affinity(*expressions, terms=1):
    one = {"matchExpressions": list(expressions)}
    required = {"nodeSelectorTerms": [one] * terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def constraints_of(**spec):
    pod = PodManifest.from_value({"metadata": {"name": "p"}, "spec": spec})
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
def test_constraints_beyond_a_limit_have_only_a_problem(spec, problem):
    constraints = constraints_of(**spec)
    assert constraints.problem.startswith(problem)
    assert bool(constraints.problem) == bool(problem)
    assert not (problem and (constraints.node_affinity or constraints.tolerations))


@pytest.mark.parametrize(
    ("label", "operator", "values", "holds"),
    [
        ("5", "Gt", ["4"], True),
        ("5", "Lt", ["4"], False),
        ("-5", "Lt", ["4"], True),
        ("3", "Lt", ["+4"], False),
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
    constraints = constraints_of(affinity=affinity({"key": "rank", "operator": operator, "values": values}))
    explanation = explain(state, make_pod("new", scheduling_constraints=constraints))
    assert explanation.fits == holds
    assert [one.split(":")[0] for one in explanation.passed_over] == (
        [] if holds else ["node affinity does not match"]
    )


@pytest.mark.parametrize(
    ("operator", "value", "taint", "tolerated"),
    [
        ("Gt", "950", "970", True),
        ("Gt", "970", "970", False),
        ("Lt", "950", "-1", True),
        ("Lt", "950", "970", False),
        ("Gt", "950", "0970", False),
        ("Gt", "+950", "970", False),
        ("Lt", "0", "-0", False),
        ("Gt", "", "970", False),
        ("Gt", "950", "9" * 63, False),
        ("Near", "970", "970", False),
    ],
)
def test_tolerations_compare_canonical_whole_numbers(operator, value, taint, tolerated):
    toleration = Toleration("reliability", operator, value)
    assert toleration.tolerates(Taint("reliability", taint, "NoSchedule")) is tolerated


def test_affinity_for_the_name_of_a_node():
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    constraints = constraints_of(affinity={"nodeAffinity": required})
    explanation = explain(
        make_state(make_node("a"), make_node("b")), make_pod("new", scheduling_constraints=constraints)
    )
    assert ([one.node for one in explanation.best], explanation.nodes) == (["b"], 1)
