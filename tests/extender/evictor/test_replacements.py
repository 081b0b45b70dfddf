"""Room that is free is held for pods that replace interrupted ones, against a real HTTP server."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.reservations import Reserved
from extender.evictor import planner
from extender.evictor.book import ATTEMPTS
from packing.model.reasons import Reason
from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Manifest
from tests.extender.builders import why
from tests.extender.evictor.replica import Replica, Start, log, node, pod

AT_950 = "1970-01-01T00:15:50Z"  # the replicas start at 1000 s


@pytest.fixture(autouse=True)
def free_node(api: ApiServer) -> None:
    api.put(node("n1"))


@pytest.fixture
def start(start: Start) -> Start:
    """Starts a replica that knows from the shield's ConfigMap which jobs were interrupted at 900 s."""

    def starting(**settings: Any) -> Replica:
        replica = start(**settings)
        lost = [[900.0, f"lost-{job}", f"ml/{job}", "", "TerminationByKubelet"] for job in ("j1", "j2")]
        lost += [[900.0, "lost-j3", "ml/j3", "", "EvictionByEvictionAPI"]]
        replica.state.disruptions.load({"disruptions": lost})
        return replica

    return starting


def owned(name: str, job: str = "j1", created: str = AT_950, **spec: Any) -> Manifest:
    manifest = pod(name, **spec)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
    manifest["metadata"] |= {"ownerReferences": [owner], "creationTimestamp": created}
    return manifest


def holds(replica: Replica) -> dict[str, str]:
    return {uid: hold.node for uid, hold in replica.evictor.actions.book.holds.items()}


async def test_room_is_held_for_the_replacement_before_others(api: ApiServer, start: Start) -> None:
    api.put(pod("older"))
    api.put(owned("p"))
    replica = start()
    await replica.rounds(1)
    assert log(api) == [("nominate", "ml/p", "n1")]
    pods = replica.state.pods
    assert why(replica.state, pods["ml/older"], "n1") is not Reason.FITS
    assert why(replica.state, pods["ml/p"], "n1") is Reason.FITS
    assert replica.metric("nominations_total", result="replacement") == 1
    api.put(owned("p") | {"spec": owned("p")["spec"] | {"nodeName": "n1"}})
    await replica.rounds(2)
    assert holds(replica) == {}
    assert log(api, "evict", "clear") == []


@pytest.mark.parametrize(
    "waiting",
    [
        pod("p"),  # replaces nobody
        owned("p", "j3"),  # its job was preempted, not interrupted
        owned("p", created="1970-01-01T00:10:00Z"),  # it waited before
        owned("p", gpus=0),
        owned("p", gpus=2),  # fits nowhere
        owned("p", nodeSelector={"pool": "other"}),
        owned("p", schedulerName="another"),
    ],
)
async def test_no_room_is_held_for_others(api: ApiServer, start: Start, waiting: Manifest) -> None:
    api.put(waiting)
    await start().rounds(3)
    assert log(api) == []


async def test_a_waiting_pod_of_higher_priority_comes_first(api: ApiServer, start: Start) -> None:
    api.put(pod("high", priority=200))
    api.put(owned("p"))
    replica = start()
    await replica.rounds(3)
    assert log(api) == []
    api.put(pod("high", priority=200, nodeSelector={"pool": "other"}))  # it cannot use the room
    await replica.rounds(1)
    assert log(api) == [("nominate", "ml/p", "n1")]


async def test_a_pod_of_higher_priority_takes_held_room(api: ApiServer, start: Start) -> None:
    """The nomination is withdrawn, so that the replacement is considered elsewhere."""
    api.put(owned("p"))
    replica = start()
    await replica.rounds(1)
    api.put(pod("high", priority=200))
    await replica.rounds(1)
    assert why(replica.state, replica.state.pods["ml/high"], "n1") is Reason.FITS
    api.put(pod("high", "n1", priority=200))
    await replica.rounds(1)
    assert log(api) == [("nominate", "ml/p", "n1"), ("clear", "ml/p", None)]
    assert (holds(replica), replica.state.reservations.by_reason(Reserved.EVICTOR)) == ({}, {})


async def test_a_nomination_that_fails_is_tried_a_few_times(api: ApiServer, start: Start) -> None:
    api.put(owned("p"))
    api.evictions.faults["nominate"].extend(["500"] * 10)
    replica = start()
    await replica.rounds(10)
    assert replica.metric("nominations_total", result="failed") == ATTEMPTS
    assert (holds(replica), replica.metric("errors_total")) == ({}, 0)


async def test_the_number_of_held_places_is_bounded(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "MOST_HELD", 2)
    api.put(node("n0", gpus=8))
    for number in range(5):
        api.put(owned(f"p{number}", priority=100 + number))
    replica = start(nomination_seconds=1000)
    await replica.rounds(3)
    assert {uid for uid in holds(replica)} == {"u-p4", "u-p3"}
    for name in ("p4", "p3"):
        api.put(owned(name) | {"spec": owned(name)["spec"] | {"nodeName": "n0"}})
    await replica.rounds(2)
    assert {uid for uid in holds(replica)} == {"u-p2", "u-p1"}


async def test_of_equal_priority_the_replacement_is_first_for_evictions(api: ApiServer, start: Start) -> None:
    api.put(pod("v", "n1"))
    api.put(pod("older"))
    api.put(owned("p"))
    await start().rounds(2)
    assert [one for one in log(api) if one[0] != "event"] == [
        ("nominate", "ml/p", "n1"),
        ("dry-run", "ml/v", None),
        ("evict", "ml/v", None),
    ]


async def test_a_pod_that_breaks_the_search_does_not_cost_others_their_turn(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = planner.fits_on

    def fits_on(state: Any, one: Any, *args: Any) -> bool:
        if one.name == "high":
            raise RuntimeError("a bug")
        return real(state, one, *args)

    monkeypatch.setattr(planner, "fits_on", fits_on)
    api.put(pod("high", priority=150, nodeSelector={"pool": "other"}))
    api.put(owned("p"))
    api.put(owned("q", "j2", priority=200))
    replica = start()
    await replica.rounds(1)
    assert holds(replica) == {"u-q": "n1"}
    api.put(pod("high", priority=150))
    api.put(node("n2"))
    await replica.rounds(1)
    assert replica.metric("errors_total") == 1
    assert holds(replica) == {"u-q": "n1"}
