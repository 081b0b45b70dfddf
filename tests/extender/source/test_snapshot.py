"""Snapshot files as kubectl prints them, invalid files, and the source that serves them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from extender.k8s.objects import Event, Listed, Pod, Upserted
from extender.source.errors import BindConflict, BindError, Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource, moment_of, read
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import SNAPSHOT_OBJECT, SNAPSHOT_YAML


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": "gpu"}}}


def pod(name: str, node_name: str = "", **status: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": f"u-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "x"}],
    }
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node_name}, "status": status}


def listed(*items: object, kind: str = "List") -> dict[str, Any]:
    return {"apiVersion": "v1", "items": [*items], "kind": kind, "metadata": {"resourceVersion": ""}}


def parsed(*contents: object, write: Callable[[Any], str] = json.dumps) -> Snapshot:
    snapshot = Snapshot()
    for number, content in enumerate(contents):
        snapshot.add(content if isinstance(content, str) else write(content), f"file{number}")
    return snapshot


@pytest.fixture(
    params=[json.dumps, lambda obj: json.dumps(obj, indent=4), yaml.safe_dump],
    ids=["json", "indented", "yaml"],
)
def write(request: pytest.FixtureRequest) -> Callable[[Any], str]:
    return cast(Callable[[Any], str], request.param)


def test_single_objects_arrays_and_several_documents() -> None:
    documents = yaml.safe_dump_all([node("n1"), listed(pod("a")), None, {"kind": "Service", "metadata": {}}])
    snapshot = parsed(pod("b"), [node("n2"), pod("c")], documents)
    assert (list(snapshot.nodes), list(snapshot.pods)) == (["n2", "n1"], ["ml/b", "ml/c", "ml/a"])
    assert snapshot.problems == []


def test_an_empty_cluster() -> None:
    assert parsed(listed()) == Snapshot()
    assert parsed('{"kind": "List", "items": null}') == Snapshot()


def test_broken_items_are_reported_and_those_with_a_name_count(write: Callable[[Any], str]) -> None:
    broken = pod("bad") | {"spec": {"containers": "none"}}
    items = [
        node("n1"),
        5,
        None,
        {"metadata": {"name": "x"}},
        broken,
        {"kind": "Node", "metadata": {}},
        {"kind": ["Pod"]},
    ]
    snapshot = parsed(listed(), listed(*items, pod("good")), write=write)
    assert [str(problem) for problem in snapshot.problems] == [
        "file1: item 1: is not an object",
        "file1: item 2: is not an object",
        "file1: item 3: has no kind",
        "file1: item 4: Pod ml/bad: spec.containers: Expected array, got str",
        "file1: item 5: Node: has no name",
        "file1: item 6: has no kind",
    ]
    assert (list(snapshot.nodes), list(snapshot.pods)) == (["n1"], ["ml/bad", "ml/good"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("---\n---\n", "is empty"),
        ('{"kind": "List", "items": [', "is not JSON"),
        ('{"kind": "List"} {"kind": "List"}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"kind": ' + "9" * 5000 + "}", "holds no Kubernetes objects"),
        ("a: [b", "is not YAML"),
        ("a: !!python/object:os.system b", "is not YAML"),
        ("Error from server: no", "holds no Kubernetes objects"),
        ("just words", "holds no Kubernetes objects"),
        ("{}", "holds no Kubernetes objects"),
        ('{"kind": "List", "items": {"a": 1}}', "holds no Kubernetes objects"),
    ],
)
def test_a_file_that_is_not_a_snapshot(text: str, complaint: str) -> None:
    with pytest.raises(Unavailable, match=f"^file0: {complaint}"):
        parsed(text)


def test_items_without_a_kind_in_a_list_of_another_kind_are_ignored() -> None:
    deployments = {"apiVersion": "apps/v1", "items": [{"metadata": {"name": "d"}}], "kind": "DeploymentList"}
    for text in (json.dumps(deployments), json.dumps(dict(reversed(deployments.items())))):
        assert parsed(text) == Snapshot()


def test_an_object_that_no_api_server_accepts_is_refused() -> None:
    large = node("n1") | {"x": "y" * (SNAPSHOT_OBJECT + (2 << 20))}
    with pytest.raises(Unavailable, match=f"a value has more than {SNAPSHOT_OBJECT} characters"):
        parsed(listed(large))


def test_a_large_yaml_file_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unavailable, match="more than 32 MiB of YAML: use JSON"):
        parsed("a: b\n" * (SNAPSHOT_YAML // 4))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="missing: cannot be read: No such file"):
        read([tmp_path / "missing"])
    with pytest.raises(Unavailable, match="cannot be read: Is a directory"):
        read([tmp_path])
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\x81\x82\x83")
    with pytest.raises(Unavailable, match="is not text"):
        read([binary])


def started(*items: object) -> tuple[SnapshotSource, list[Event]]:
    source, events = SnapshotSource(parsed(listed(*items)), "cluster.json"), list[Event]()
    source.start(events.extend)
    return source, events


def test_pods_have_waited_as_long_as_when_the_file_was_made() -> None:
    late = pod("late")
    late["metadata"]["creationTimestamp"] = "2026-01-01T00:05:00Z"
    _, events = started(pod("early"), late)
    early, newest = (one.obj.created for one in events if isinstance(one, Upserted))
    assert newest - early == 300
    assert abs(time.time() - newest) < 60
    assert moment_of([]) == 0


def test_everything_is_delivered_at_once_nodes_first() -> None:
    source, events = started(pod("a", "n1"), node("n1"))
    assert [e.obj.key for e in events if isinstance(e, Upserted)] == ["n1", "ml/a"]
    assert events[1] == Listed("Node", frozenset({"n1"}))
    assert events[3] == Listed("Pod", frozenset({"ml/a"}))
    assert {e.kind for e in events if isinstance(e, Listed)} == WATCHED_KINDS.keys()
    assert source.describe() == "cluster.json (1 nodes, 1 pods)"
    assert source.watches() == {}
    assert source.server_version() == ""


def test_only_the_first_problems_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    started(*range(25))
    messages = [record.getMessage() for record in caplog.records]
    assert (messages[0], messages[-1]) == (
        "snapshot: file0: item 0: is not an object",
        "snapshot: 5 more problems",
    )
    assert len(messages) == 21


async def test_bind_accepts_a_pod_that_is_not_in_the_snapshot() -> None:
    source, events = started(node("n1"))
    await source.bind(Pod("ml", "new", "u-new"), "n1")
    assert events[-1] == Upserted(Pod("ml", "new", "u-new", node_name="n1"))
    with pytest.raises(BindConflict):
        await source.bind(Pod("ml", "new", "u-new"), "n1")


@pytest.mark.parametrize(
    ("known", "uid", "target", "error", "text"),
    [
        (pod("a"), "other", "n1", BindConflict, "recreated"),
        (pod("a", "n2"), "u-a", "n1", BindConflict, "already bound to n2"),
        (pod("a", phase="Failed"), "u-a", "n1", BindConflict, "not pending"),
        (pod("a", phase="Running"), "u-a", "n1", BindConflict, "not pending"),
        (pod("a"), "u-a", "n9", BindError, "node n9 is not in the snapshot"),
    ],
)
async def test_bind_refuses(
    known: dict[str, Any], uid: str, target: str, error: type[BindError], text: str
) -> None:
    source, events = started(node("n1"), known)
    events.clear()
    with pytest.raises(error, match=text):
        await source.bind(Pod("ml", "a", uid), target)
    assert events == []


async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    dying = pod("a")
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    source, _ = started(node("n1"), dying)
    with pytest.raises(BindConflict, match="not pending"):
        await source.bind(Pod("ml", "a", "u-a"), "n1")


async def test_nothing_is_delivered_after_stop() -> None:
    source, events = started(node("n1"), pod("a"))
    events.clear()
    source.stop()
    source.stop()
    await source.bind(Pod("ml", "a", "u-a"), "n1")
    assert events == []
