"""Replicas with one API server: which one is the leader, and what only the leader may do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from extender.k8s.objects import Event, Pod, Upserted
from extender.server.leader_elector import LeaderElector, Lease
from extender.source.apiserver import KubeSource
from extender.source.errors import BindError
from tests.examples import some
from tests.extender.apiserver import LEASES, PATIENT, ApiServer, pod, source_of

SECONDS = 5


@dataclass
class Replica:
    """A candidate that follows the cluster, as the service does."""

    source: KubeSource
    elector: LeaderElector
    keys: set[str]

    @property
    def is_leader(self) -> bool:
        return self.elector.is_leader

    async def until_listed(self) -> None:
        await until(lambda: "ml/p0" in self.keys)


Start = Callable[..., Replica]


@pytest.fixture
def api(api: ApiServer, few_kinds: None) -> ApiServer:
    api.put(pod("p0"))
    return api


@pytest.fixture
async def start(api: ApiServer, tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        def starting(token: str = "secret") -> Replica:
            source = source_of(api, tmp_path, {"token": token}, timeouts=replace(PATIENT, bind=10))
            replica = Replica(
                source,
                LeaderElector(source, Lease(source.rest, "gpu", "stowage", SECONDS / 3), SECONDS),
                set(),
            )
            loop = asyncio.get_running_loop()

            def apply(events: Sequence[Event]) -> None:
                keys = {event.obj.key for event in events if isinstance(event, Upserted)}
                loop.call_soon_threadsafe(replica.keys.update, keys)

            source.start(apply)
            task = asyncio.create_task(replica.elector.run(replica.until_listed))
            stack.callback(source.stop)
            stack.push_async_callback(ended, task)
            return replica

        yield starting


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool], within: float = 30.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def lease(api: ApiServer) -> dict[str, object]:
    spec: dict[str, object] = api.leases.objects["gpu/stowage"]["spec"]
    return spec


async def test_one_of_two_is_the_leader_and_the_other_takes_over_when_it_resigns(
    api: ApiServer, start: Start
) -> None:
    first = start()
    await until(lambda: first.is_leader)
    second = start()
    await until(lambda: second.elector.waiting_for() == "another replica is the leader")
    assert first.elector.waiting_for() == ""
    assert lease(api)["leaseDurationSeconds"] == SECONDS
    await first.elector.resign()
    assert not first.is_leader
    assert not lease(api)["holderIdentity"]
    await until(lambda: second.is_leader)
    assert lease(api)["leaseTransitions"] == 1
    assert not first.is_leader


async def test_a_lease_is_not_released_while_a_bind_runs(api: ApiServer, start: Start) -> None:
    first = start()
    await until(lambda: first.is_leader)
    with first.elector.hold_during_write():
        resigning = asyncio.create_task(first.elector.resign())
        await asyncio.sleep(0.2)
        assert not first.is_leader
        assert lease(api)["holderIdentity"]
    await resigning
    assert not lease(api)["holderIdentity"]


async def test_a_leader_that_cannot_renew_stops_before_another_starts(api: ApiServer, start: Start) -> None:
    first = start("first")
    await until(lambda: first.is_leader)
    holder = lease(api)["holderIdentity"]
    api.banned.add("first")
    second = start("second")
    while not second.is_leader:
        assert not (first.is_leader and second.elector._election.holds_lease(time.monotonic()))
        await asyncio.sleep(0.01)
    assert not first.is_leader
    assert lease(api)["holderIdentity"] not in ("", holder)


async def test_without_the_api_server_nobody_leads_until_it_is_back(api: ApiServer, start: Start) -> None:
    first = start()
    await until(lambda: first.is_leader)
    api.stop()
    await until(lambda: not first.is_leader)
    api.start()
    await until(lambda: first.is_leader)
    assert first.elector._election.term == 2


@pytest.mark.parametrize("fault", some(["silent", "409", "500", "hangup", "lost", "403"], 1))
async def test_a_single_fault_does_not_end_the_leadership(api: ApiServer, start: Start, fault: str) -> None:
    first = start()
    await until(lambda: first.is_leader)
    renewed = lease(api)["renewTime"]
    api.script[LEASES].append(fault)
    await until(lambda: not api.script[LEASES])
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert first.is_leader
        await asyncio.sleep(0.01)
    assert lease(api)["renewTime"] != renewed
    assert lease(api)["leaseTransitions"] is None


async def test_a_lost_answer_to_the_creation_is_detected(api: ApiServer, start: Start) -> None:
    api.script[LEASES].extend(["", "lost"])  # the read, and the creation
    first = start()
    await until(lambda: first.is_leader)
    assert first.elector._election.term == 1


async def test_a_new_leader_lists_what_the_watch_has_not_shown(api: ApiServer, start: Start) -> None:
    """The watch is open but late: the API server's cache may be behind its store."""
    first, second = start(), start()
    await until(lambda: first.is_leader or second.is_leader)
    leader, other = (first, second) if first.is_leader else (second, first)
    other.keys.discard("ml/p0")  # as if it had not come
    lists = [query for path, query in api.requests if path == "/api/v1/pods" and "watch" not in query]
    await leader.elector.resign()
    await until(lambda: other.is_leader)
    assert "ml/p0" in other.keys
    again = [query for path, query in api.requests if path == "/api/v1/pods" and "watch" not in query]
    assert len(again) == len(lists) + 1


async def test_only_the_leader_binds(api: ApiServer, start: Start) -> None:
    """This is checked in the thread that writes, which may have started late."""
    first = start()
    await until(lambda: first.is_leader)
    second = start()
    await until(lambda: second.elector.waiting_for() == "another replica is the leader")
    with pytest.raises(BindError, match="no longer the leader"):
        await second.source.bind(Pod("ml", "p0", "u-p0"), "n0")
    await first.source.bind(Pod("ml", "p0", "u-p0"), "n0")
    assert api.pods.objects["ml/p0"]["spec"]["nodeName"] == "n0"


async def test_other_fields_of_the_lease_are_kept(api: ApiServer, start: Start) -> None:
    api.leases.put(
        {
            "metadata": {"namespace": "gpu", "name": "stowage", "labels": {"team": "gpu"}},
            "spec": {"strategy": "OldestEmulationVersion"},
        }
    )
    first = start()
    await until(lambda: first.is_leader)
    stored = api.leases.objects["gpu/stowage"]
    assert stored["metadata"]["labels"] == {"team": "gpu"}
    assert stored["spec"]["strategy"] == "OldestEmulationVersion"
    assert "leaseTransitions" in stored["spec"]
