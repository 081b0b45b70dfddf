"""What readers of one namespace are shown: no names of pods of others (``/namespaces/NAMESPACE/debug``)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product

import httpx
import pytest

from extender.data import CLUSTER
from extender.k8s.objects import Node, Pod
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource, read
from tests.extender.builders import make_node, make_pod

MANIFEST = (
    "kind: Pod\nmetadata: {name: new, namespace: %s}\n"
    "spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}], priority: 1000}\n"
)


def in_namespace(namespace: str, pod: Pod) -> Pod:
    return replace(pod, namespace=namespace)


FULL = (
    make_node("full", 8),
    make_node("busy", 8, cpu="16"),
    in_namespace("ml", make_pod("train-a", 8, node_name="full")),
    in_namespace("web", make_pod("front", 0, cpu="15", node_name="busy")),
    in_namespace("training", make_pod("urgent", 8, cpu="8", priority=1000)),
)
"""A pod of training needs what pods of other namespaces hold."""


@pytest.fixture(params=["example", "full"])
async def service(request: pytest.FixtureRequest) -> Service:
    nodes = {one.key: one for one in FULL if isinstance(one, Node)}
    pods = {one.key: one for one in FULL if isinstance(one, Pod)}
    snapshot = read([CLUSTER]) if request.param == "example" else Snapshot(nodes, pods)
    service = Service(Settings(), SnapshotSource(snapshot, "test"), "1.2.3")
    await service.start()
    return service


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://stowage") as client:
        yield client


def pods_of(service: Service) -> dict[str, str]:
    """The namespaces of the pods by their keys."""
    assert service.engine is not None
    return {key: pod.namespace for key, pod in service.engine.state.pods.items()}


async def test_no_answer_names_pods_of_another_namespace(service: Service, http: httpx.AsyncClient) -> None:
    pods = pods_of(service)
    hidden = 0
    for namespace in {*pods.values()}:
        mine, others = ([key for key in pods if (pods[key] == namespace) is own] for own in (True, False))
        paths = ["overview?waiting=200", "pods", f"pods?name={mine[0].partition('/')[2]}"]
        paths += [path for key in mine for path in (f"pods/{key}?explained=true", f"pods/{key}/nodes")]
        answers = [(path, await http.get(f"/namespaces/{namespace}/debug/{path}")) for path in paths]
        posted = await http.post(f"/namespaces/{namespace}/debug/explain/pods", content=MANIFEST % namespace)
        for path, answer in [*answers, ("explain/pods", posted)]:
            assert answer.status_code == 200, path
            assert not [key for key in others if re.search(rf"{re.escape(key)}(?![\w.-])", answer.text)], path
            hidden += answer.text.count("another/one")
            full = await http.get(f"/debug/{path}") if path != "explain/pods" else None
            if full is not None and not path.startswith("overview") and path != "pods":
                known = re.compile(
                    rf"(?<![\w./-])({'|'.join({*pods.values()} - {namespace})})/[a-z0-9][a-z0-9.-]*"
                )
                times = re.compile(r'"(starts|half|most)": [^,}]*')
                expected, found = (
                    times.sub("", text) for text in (known.sub("another/one", full.text), answer.text)
                )
                assert found == expected  # nothing else is missing
    assert hidden or "ml/train-a" not in pods


async def test_top_lists_pending_pods_of_the_namespace_only(
    service: Service, http: httpx.AsyncClient
) -> None:
    for query in ("", "?namespace=ml", "?namespace="):
        found = (await http.get(f"/namespaces/training/debug/overview{query}")).json()["overview"]
        assert found["nodes"]
        assert {line["pod"].partition("/")[0] for line in found["waiting"]} == {"training"}


async def test_nothing_else_is_there(service: Service, http: httpx.AsyncClient) -> None:
    paths = ["pods/ml/train-a", "pods/ml/train-a/nodes", "pods/training/../ml/train-a", "flags/v", ""]
    paths += ["state", "nodes", "decisions", "fleet", "fleet/history", "problems"]
    for method, path in product(("GET", "PUT", "POST"), paths):
        answer = await http.request(method, f"/namespaces/training/debug/{path}")
        assert answer.status_code in (404, 405), path
        assert "train-a" not in answer.text, path


async def test_manifests_of_other_namespaces_are_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/namespaces/training/debug/explain/pods", content=MANIFEST % "inference")
    assert (answer.status_code, "of other namespaces" in answer.text) == (400, True)


async def test_it_is_json_of_the_declared_kind(http: httpx.AsyncClient) -> None:
    answer = await http.get("/namespaces/training/debug/overview")
    assert "content-length" not in answer.headers
    assert json.loads(answer.content)
