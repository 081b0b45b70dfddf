from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from extender.explain.pod import asks, explain
from extender.source.workloads import parse_pod
from extender.untrusted.limits import PROBLEM
from packing.model.request import Request, Shares
from tests.extender.builders import make_node, make_pod, make_state


def refusals(explanation):
    return {one.reason: one for one in explanation.refusals}


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
