"""Objects as large as etcd takes them: the work for each is bounded, counted in calls and not in seconds."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from extender.k8s.job_kinds import JOB_KINDS
from extender.k8s.objects import JobKind, Pod, PodGroup
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import OBJECT_ENTRIES
from tests.examples import some

METADATA = {"name": "x", "namespace": "ml", "uid": "u"}
MOST_CALLS = 10 * OBJECT_ENTRIES


def read(kind: Any, manifest: dict[str, Any]) -> tuple[Any, int]:
    """The record of a manifest, and the number of calls that reading it took."""
    calls, text = 0, json.dumps(manifest).encode()
    assert 900_000 < len(text) < 1_500_000

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        record, _ = WATCHED_KINDS[kind].read(text)
    finally:
        sys.setprofile(None)
    return record, calls


@pytest.mark.parametrize(
    ("kind", "field", "item"),
    some(
        [
            (kind, field, item)
            for kind in JOB_KINDS
            for field, item in (("workerGroupSpecs", {}), ("podSets", {"a": {}}), ("x", {}))
        ],
        7,
    ),
)
def test_a_job_with_too_many_parts_is_unreadable_and_shown(kind: JobKind, field: str, item: object) -> None:
    count = 1_000_000 // (len(json.dumps(item)) + 2)
    record, calls = read(kind, {"metadata": METADATA, "spec": {field: [item] * count}})
    assert isinstance(record, PodGroup)
    assert (record.minimum, record.problem) == (None, f"it has more than {OBJECT_ENTRIES} entries")
    assert calls < MOST_CALLS


def test_a_large_pod_that_is_not_fully_readable_keeps_its_node_and_counts() -> None:
    owner = {"kind": "Job", "name": "j", "uid": "u" * 400, "controller": True}
    spec = {"nodeName": "n", "tolerations": [{"key": ""}] * 80_000}
    record, calls = read("Pod", {"metadata": {**METADATA, "ownerReferences": [owner]}, "spec": spec})
    assert isinstance(record, Pod)
    assert (record.node_name, "ownerReferences" in record.problem) == ("n", True)
    assert calls < MOST_CALLS
