"""The mode that only says who should go, against a real HTTP server."""

from __future__ import annotations

import logging

import pytest

from extender.cluster.reservations import Reserved
from extender.verbs.eviction.plan import plan_evictions
from packing.model.reasons import Reason
from tests.extender.apiserver import ApiServer
from tests.extender.builders import why
from tests.extender.evictor.replica import Start, log, node, pod

pytestmark = pytest.mark.usefixtures("full_node")


async def test_recommendations_write_only_events(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start(evictor="recommend")
    with caplog.at_level(logging.INFO):
        await replica.rounds(50)
    assert log(api) == [("event", "ml/p", "EvictionRecommended")]
    assert api.evictions.events[0]["note"] == "Evicting 1 pod would make room (cost 1)"
    messages = [record.getMessage() for record in caplog.records if "would fit on" in record.getMessage()]
    assert messages == ["ml/p: it would fit on n1 without ml/v (cost 1)"]
    api.put(pod("v", "n1") | {"metadata": {"namespace": "ml", "name": "v", "uid": "another"}})
    await replica.rounds(60)
    assert len(log(api)) == 2  # the recommendation has changed
    assert replica.metric("recommendations_total") == 2


async def test_recommendations_do_not_share_victims(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of later pods and rounds count those before as carried out. Nothing is held meanwhile."""
    monkeypatch.setattr("extender.evictor.planner.plan_evictions", plan_evictions)
    api.put(node("n1", gpus=3))
    api.put(pod("v", "n1", gpus=2))
    api.put(pod("w", "n1", gpus=1))
    for number in range(4):
        api.put(pod(f"p{number}"))
    api.delete("ml/p")
    replica = start(evictor="recommend")
    await replica.rounds(40)
    assert sorted(log(api)) == [("event", f"ml/p{number}", "EvictionRecommended") for number in range(2)]
    known = replica.evictor.actions.book.recommended
    # w goes for the first pod, and the two GPUs of v are for the others.
    assert {uid: sorted(one.victims) for uid, one in known.items()} == {
        "u-p0": ["u-w"],
        "u-p1": ["u-v"],
        "u-p2": [],
    }
    assert replica.state.reservations.by_reason(Reserved.EVICTOR) == {}
    assert why(replica.state, replica.state.pods["ml/p3"], "n1") is not Reason.FITS
