"""What explain says of NUMA nodes: which verdicts of kubelet are not known, and why kubelet refused a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.state import State
from extender.explain.decision_log import Decisions
from extender.explain.inspector import Inspector
from extender.explain.pod import explain, explain_each
from extender.k8s.node_topology import NodeTopology, NodeTopologyManifest
from extender.k8s.objects import Deleted, Listed, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state

SINGLE = "single-numa-node"


def report(node: str, *free: int, policy: str = SINGLE, version: str = "1") -> NodeTopology:
    """The NodeResourceTopology of a node with 4 GPUs on each NUMA node."""
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [{"name": GPU, "capacity": 4, "available": gpus}],
        }
        for number, gpus in enumerate(free)
    ]
    attributes = [{"name": "topologyManagerPolicy", "value": policy}]
    metadata = {"name": node, "resourceVersion": version}
    manifest: dict[str, Any] = {"metadata": metadata, "attributes": attributes, "zones": zones}
    return NodeTopologyManifest.from_value(manifest).record()


def state_of(*nodes: str, reports: tuple[NodeTopology, ...] = ()) -> State:
    state = make_state(*map(make_node, nodes))
    state.pods.now = lambda: NOW
    state.apply([*map(Upserted, reports)])
    return state


def refused_by_kubelet(gpus: int, node: str) -> Pod:
    return PodManifest.from_value(
        {
            "metadata": {"name": "failed", "namespace": "default", "uid": "uid-failed"},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}],
            },
            "status": {"phase": "Failed", "reason": "TopologyAffinityError"},
        }
    ).record()


def said(state: State, pod: Pod) -> str:
    return " ".join(explain(state, pod).hints)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], "the node has no NodeResourceTopology"),
        ([report("unknown", 4, 4, policy="a policy to come")], "it names no known policy"),
    ],
)
def test_a_node_whose_policy_is_not_known_does_not_fit_silently(others: list[NodeTopology], why: str) -> None:
    state = state_of("known", "unknown", reports=(report("known", 4, 4), *others))
    found = explain(state, make_pod("p", 4))
    assert found.fits == 2
    [sentence] = [hint for hint in found.hints if "NUMA" in hint]
    assert sentence.startswith("NUMA is unknown on unknown,")
    assert why in sentence
    answers = {one.node: one for one in explain_each(state, make_pod("p", 4), ["known", "unknown"])}
    assert (answers["known"].advice, why in answers["unknown"].advice) == ("", True)


def test_a_report_that_has_not_changed_since_a_pod_started_is_old() -> None:
    state = state_of("n", reports=(report("n", 4, 4),))
    state.apply([Upserted(replace(make_pod("other", 2, node_name="n"), started=NOW + 10))])
    assert "NUMA" not in said(state, make_pod("p", 2))
    state.pods.now = lambda: NOW + 300
    assert "has not changed since default/other started" in said(state, make_pod("p", 2))
    state.apply([Upserted(report("n", 2, 4, version="2"))])
    assert "NUMA" not in said(state, make_pod("p", 2))


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ((), "the cluster has no NodeResourceTopology"),
        ((report("other", 4, 4),), "The node has no NodeResourceTopology"),
        ((report("n", 2, 2),), f"still could not align it: free by NUMA node 2 + 2 {GPU}"),
        ((report("n", 4, 2),), "could align it now"),
    ],
)
async def test_a_pod_that_kubelet_refused_says_so_and_why(
    reports: tuple[NodeTopology, ...], why: str
) -> None:
    state = state_of("n", reports=reports)
    state.apply([Upserted(refused_by_kubelet(4, "n"))])
    found = await Inspector(state, Decisions(16)).pod("default/failed")
    assert found
    assert found.now
    assert (found.node, found.now.node) == ("", "")
    assert "Kubelet on n rejected it with TopologyAffinityError" in found.now.hints[0]
    assert why.lower() in found.now.hints[0].lower()


@pytest.mark.parametrize(
    "end",
    [Deleted("Pod", "default/failed"), Listed("Pod", frozenset(), absent=False)],
    ids=["deleted", "listed"],
)
async def test_a_refused_pod_that_is_gone_is_forgotten(end: Deleted | Listed) -> None:
    state = state_of("n")
    state.apply([Upserted(refused_by_kubelet(4, "n"))])
    state.apply([end])
    assert await Inspector(state, Decisions(16)).pod("default/failed") is None
