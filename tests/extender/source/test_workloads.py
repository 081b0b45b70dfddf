"""Pods and pod templates of manifests."""

from __future__ import annotations

import json

import pytest

from extender.source.workloads import parse_pod, parse_templates

POD = {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "2"}}}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD}


def workload(kind: str, **spec: object) -> str:
    return json.dumps({"kind": kind, "metadata": {"name": "w", "namespace": "team"}, "spec": spec})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Service\nmetadata: {name: s}", r"has no pod and no pod template \(Service\)"),
        ("- 1", r"has no pod and no pod template \(no object\)"),
        ("kind: Pod\nspec: {containers: []}", "a pod has no name"),
        ("kind: Pod\nmetadata: {name: p}\nspec: {containers: 1}", r"Pod 'p': spec"),
        ("x: [", "is not YAML"),
        ("", "is empty"),
    ],
)
def test_what_is_no_manifest_of_a_pod(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^the manifest: {problem}"):
        parse_templates(text, "the manifest")


def test_one_pod_is_wanted() -> None:
    two = workload("JobSet", replicatedJobs=[{"name": name, "template": TEMPLATE} for name in "ab"])
    with pytest.raises(ValueError, match="has 2 pods or pod templates instead of one"):
        parse_pod(two, "the manifest")
    assert parse_pod(workload("Job", template=TEMPLATE), "the manifest").name == "w"


RAY = {
    "headGroupSpec": {"template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "g", "replicas": 3, "minReplicas": 2, "template": TEMPLATE}],
}
NODES = {"numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "2"}}}


@pytest.mark.parametrize(
    ("kind", "spec", "counts"),
    [
        ("RayCluster", RAY, [(1, 3), (3, 3)]),
        ("RayJob", {"rayClusterSpec": RAY}, [(1, 3), (3, 3)]),
        ("RayService", {"rayClusterConfig": RAY}, [(1, 3), (3, 3)]),
        ("TrainJob", {"trainer": NODES}, [(4, 4)]),
        ("JAXJob", {"jaxReplicaSpecs": {"Worker": {"replicas": 3, "template": TEMPLATE}}}, [(3, 3)]),
        ("Job", {"parallelism": 5, "template": TEMPLATE}, [(5, 0)]),
        ("Workload", {"podSets": [{"name": "main", "count": 3, "template": TEMPLATE}]}, [(3, 0)]),
        (
            "DynamoGraphDeployment",
            {
                "components": [
                    {
                        "name": "decode",
                        "replicas": 2,
                        "multinode": {"nodeCount": 3},
                        "podTemplate": {"spec": POD},
                    }
                ]
            },
            [(6, 0)],
        ),
    ],
)
def test_the_pods_of_a_workload_are_counted(
    kind: str, spec: dict[str, object], counts: list[tuple[int, int]]
) -> None:
    """How many there are of each template, and how many start together."""
    found = parse_templates(workload(kind, **spec), "the manifest")
    assert [(one.copies, one.together) for one in found] == counts
