"""What cannot be read counts the same, whether a watch or a file shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import yaml

from extender.k8s.job_kinds import POD_GROUP_APIS
from extender.k8s.objects import Event, Kind, KubernetesObject, Upserted
from extender.source.list_watch import ListWatch
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS
from tests.extender.apistore import page
from tests.extender.builders import make_node, make_state

LONG = "u" * 400
BROKEN: dict[str, dict[str, Any]] = {
    "spec": {"spec": 5},
    "status": {"status": ["x"]},
    "labels": {"metadata": {"labels": ["x"]}},
    "uid": {"metadata": {"uid": LONG}},
    "number for uid": {"metadata": {"uid": 7}},
    "owner": {"metadata": {"ownerReferences": [{"kind": "Job", "uid": LONG, "controller": True}]}},
    "deep": {"spec": json.loads("[" * 900 + "]" * 900)},
    "fields": {
        "spec": {"containers": "x", "minMember": "x", "devices": 3, "limits": 4, "taint": [], "selector": 5},
        "value": "x",
        "zones": {},
        "data": [],
        "handler": {},
        "overhead": 3,
    },
}
# YAML as deep as "deep" is refused as a whole.
WRITERS: dict[str, Callable[[Any], str]] = {"json": json.dumps, "yaml": yaml.safe_dump}


def manifest(kind: str, path: str, broken: dict[str, Any]) -> dict[str, Any]:
    api = path.removeprefix("/apis/").rpartition("/")[0]
    metadata = {"name": "x", "namespace": "ml", "uid": "u", **broken.get("metadata", {})}
    return {
        **broken,
        "apiVersion": api,
        "kind": "PodGroup" if api in POD_GROUP_APIS else kind,
        "metadata": metadata,
    }


def from_watch(kind: Any, item: object) -> list[Event]:
    return ListWatch(WATCHED_KINDS[kind]).page(page([item]))


def from_file(text: str) -> list[Event]:
    snapshot = Snapshot()
    snapshot.add(text, "file")
    return [event for events in SnapshotSource(snapshot, "").list_once() for event in events]


def objects(events: list[Event]) -> list[KubernetesObject]:
    return [event.obj for event in events if isinstance(event, Upserted)]


@pytest.mark.parametrize("kind", WATCHED_KINDS)
def test_an_object_of_each_kind_that_is_not_fully_readable(kind: Kind) -> None:
    for broken, write in sorted({*product(BROKEN, WRITERS)} - {("deep", "yaml")}):
        item = manifest(kind, WATCHED_KINDS[kind].path, BROKEN[broken])
        (shown,) = objects(from_watch(kind, item))
        assert objects(from_file(WRITERS[write]({"kind": "List", "items": [item]}))) == [shown], broken
        assert objects(from_file(WRITERS[write](item))) == [shown], broken


def free(events: list[Event]) -> float:
    state = make_state(make_node("n"))
    state.apply(events)
    return float(state.fleet.arrays.free_parts().sum())


def test_a_running_pod_whose_owner_cannot_be_read_holds_its_gpus() -> None:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    item = manifest("Pod", "/api/v1/pods", BROKEN["owner"])
    item |= {"spec": {"nodeName": "n", "containers": [container]}, "status": {"phase": "Running"}}
    from_files = [event for event in from_file(json.dumps(item)) if isinstance(event, Upserted)]
    assert (free([]), free(from_watch("Pod", item)), free(from_files)) == (8, 0, 0)
