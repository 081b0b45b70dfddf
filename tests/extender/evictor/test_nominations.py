"""How long the evictor holds the room that it has made, against a real HTTP server."""

from __future__ import annotations

import pytest

from tests.extender.apiserver import ApiServer
from tests.extender.evictor.replica import Start, log, nominated, pod

pytestmark = pytest.mark.usefixtures("full_node")


async def test_cleared_nominations_are_renewed_while_the_room_comes(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(2)
    for _ in range(3):
        api.put(pod("p"))
        await replica.rounds(1)
        assert nominated(api) == "n1"
    assert len(log(api, "evict")) == 1


async def test_room_is_given_up_after_a_time_and_planned_anew(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start(nomination_seconds=30)
    await replica.rounds(2)
    api.delete("ml/v")
    api.put(pod("w", "n1"))  # somebody was faster
    await replica.rounds(3)
    assert len(log(api, "evict")) == 1
    await replica.rounds(2)
    assert log(api, "clear") == [("clear", "ml/p", None)]
    assert "was not bound to n1 in time" in caplog.text
    await replica.rounds(3)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/v", "ml/w"]


async def test_a_nomination_of_others_is_never_cleared(api: ApiServer, start: Start) -> None:
    mine = pod("p")
    mine["status"]["nominatedNodeName"] = "n1"
    api.put(mine)
    replica = start(nomination_seconds=30, evictor="on")
    await replica.rounds(3)
    assert log(api) == []
    await replica.rounds(4)
    assert log(api, "clear") == []
    assert len(log(api, "evict")) == 1  # it led to nothing


async def test_room_that_comes_anyway_is_held_and_nobody_is_evicted(api: ApiServer, start: Start) -> None:
    ending = pod("v", "n1")
    ending["metadata"]["deletionTimestamp"] = "1970-01-01T00:17:00Z"
    api.put(ending)
    await start().rounds(2)
    assert log(api) == [("nominate", "ml/p", "n1")]
