"""The evictor's writes, against a real HTTP server."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from extender.k8s.objects import Pod
from extender.source.errors import WriteError, WriteUnanswered
from extender.source.evictor_api import Announcement, EvictorApi, ObjectEvent
from extender.untrusted.limits import EVENTS_READ, EVENTS_SIZE
from tests.extender.apiserver import ApiServer, pod, source_of
from tests.extender.evictor.replica import UNHURRIED

WAITING, VICTIM = Pod("ml", "p0", "u-p0"), Pod("ml", "v0", "u-v0")


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    api.put(pod("p0", status={"phase": "Pending"}))
    api.put(pod("v0", "n1"))
    return api


@pytest.fixture
def writes(api: ApiServer, tmp_path: Path) -> EvictorApi:
    return EvictorApi(source_of(api, tmp_path, timeouts=UNHURRIED).rest, lambda: math.inf)


def nominated(api: ApiServer) -> object:
    return api.pods.objects["ml/p0"]["status"].get("nominatedNodeName")


async def test_a_nomination_is_of_one_uid_and_is_cleared_only_if_it_is_ours(
    api: ApiServer, writes: EvictorApi
) -> None:
    await writes.nominate(WAITING, "n1")
    assert nominated(api) == "n1"
    assert api.pods.objects["ml/p0"]["status"]["phase"] == "Pending"
    with pytest.raises(WriteError) as caught:
        await writes.nominate(Pod("ml", "p0", "recreated"), "n2")
    assert caught.value.status == 422
    with pytest.raises(WriteError):
        await writes.clear_nomination(WAITING, "n2")
    assert nominated(api) == "n1"
    await writes.clear_nomination(WAITING, "n1")
    assert nominated(api) is None


async def test_a_dry_run_evicts_nobody(api: ApiServer, writes: EvictorApi) -> None:
    await writes.evict(VICTIM, None, dry_run=True)
    assert "deletionTimestamp" not in api.pods.objects["ml/v0"]["metadata"]
    await writes.evict(VICTIM, 300, dry_run=False)
    assert "deletionTimestamp" in api.pods.objects["ml/v0"]["metadata"]
    assert api.evictions.log == [("dry-run", "ml/v0", None), ("evict", "ml/v0", 300)]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_refused_evictions(api: ApiServer, writes: EvictorApi, dry_run: bool) -> None:
    async def status(victim: Pod) -> int:
        with pytest.raises(WriteError) as caught:
            await writes.evict(victim, None, dry_run=dry_run)
        assert not isinstance(caught.value, WriteUnanswered)
        return caught.value.status

    assert await status(Pod("ml", "v0", "another")) == 409
    assert await status(Pod("ml", "v1", "u-v1")) == 404
    api.evictions.disruptions[""] = 0
    assert await status(VICTIM) == 429
    api.evictions.several_budgets.add("ml/v0")  # the API server answers this with 201
    assert await status(VICTIM) == 500
    assert "deletionTimestamp" not in api.pods.objects["ml/v0"]["metadata"]


@pytest.mark.parametrize("fault", ["500", "503", "hangup", "lost"])
async def test_a_write_without_an_answer_may_have_happened(
    api: ApiServer, writes: EvictorApi, fault: str
) -> None:
    api.evictions.faults["evict"].append(fault)
    with pytest.raises(WriteUnanswered):
        await writes.evict(VICTIM, None, dry_run=False)
    assert ("deletionTimestamp" in api.pods.objects["ml/v0"]["metadata"]) == (fault == "lost")


async def test_nothing_is_written_after_the_lead_is_lost(api: ApiServer, tmp_path: Path) -> None:
    writes = EvictorApi(source_of(api, tmp_path).rest, lambda: 0.0)
    event = ObjectEvent(VICTIM, "Preempted", "Preempting", "why", WAITING)
    for write in (
        writes.nominate(WAITING, "n1"),
        writes.clear_nomination(WAITING, "n1"),
        writes.evict(VICTIM, None, dry_run=True),
        writes.evict(VICTIM, None, dry_run=False),
        writes.write_event(event),
    ):
        with pytest.raises(WriteError, match="no longer the leader") as caught:
            await write
        assert caught.value.status == 0
    assert api.evictions.log == []


async def test_an_event_says_who_preempts_whom(api: ApiServer, writes: EvictorApi) -> None:
    await writes.write_event(ObjectEvent(VICTIM, "Preempted", "Preempting", "x" * 2000, WAITING))
    (event,) = api.evictions.events
    assert event["metadata"]["generateName"] == "v0-"  # the API server refuses a dot at the end
    assert (event["regarding"]["name"], event["related"]["name"]) == ("v0", "p0")
    assert event["note"].endswith("...")
    assert await writes.events_about(VICTIM) == [Announcement("Preempted", event["note"], 0.0)]
    assert await writes.events_about(WAITING) == []
    elsewhere = replace(WAITING, namespace="elsewhere")
    await writes.write_event(ObjectEvent(VICTIM, "Preempted", "Preempting", "x", elsewhere))
    assert "related" not in api.evictions.events[1]


def note(text: str) -> dict[str, object]:
    return {"regarding": {"uid": "u-p0"}, "reason": "Nominated", "note": text}


async def test_events_about_a_pod_are_bounded(api: ApiServer, writes: EvictorApi) -> None:
    api.evictions.events += [note("short") for _ in range(EVENTS_READ + 1)]
    assert len(await writes.events_about(WAITING)) == EVENTS_READ
    api.evictions.events.insert(0, note("x" * EVENTS_SIZE))
    with pytest.raises(WriteError):
        await writes.events_about(WAITING)
    api.evictions.events[:] = [{"regarding": {"uid": "u-p0"}, "reason": 7, "metadata": ["wrong"]}]
    with pytest.raises(WriteError):
        await writes.events_about(WAITING)


async def test_a_config_map_is_replaced_only_as_it_was_read(api: ApiServer, writes: EvictorApi) -> None:
    with pytest.raises(WriteError) as caught:
        await writes.read_config_map("gpu", "shield")
    assert caught.value.status == 404
    with pytest.raises(WriteError, match="must be read"):
        await writes.write_config_map("gpu", "shield", {"a": "b"})
    shield = {"metadata": {"namespace": "gpu", "name": "shield", "labels": {"a": "b"}}, "data": {"a": "1"}}
    api.evictions.config_maps.put(shield)
    assert await writes.read_config_map("gpu", "shield") == {"a": "1"}
    await writes.write_config_map("gpu", "shield", {"a": "2"})
    await writes.write_config_map("gpu", "shield", {"a": "3"})
    assert api.evictions.config_maps.objects["gpu/shield"]["metadata"]["labels"] == {"a": "b"}
    api.evictions.config_maps.put(shield)
    with pytest.raises(WriteError) as caught:
        await writes.write_config_map("gpu", "shield", {"a": "4"})
    assert caught.value.status == 409
    assert await writes.read_config_map("gpu", "shield") == {"a": "1"}
