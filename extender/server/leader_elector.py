"""Acquires, renews and releases the Lease, and lists the pods again when this replica becomes the leader.

We do not use the client library's own election (``kubernetes.leaderelection`` 37.0): a connection error ends
it without notice to the leader, a leader may act for longer than its Lease because requests have no timeout,
and it cannot release a Lease.

This runs in the event loop, where the verbs run, so that a replica whose loop hangs loses its Lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from extender.k8s.manifest import micro_time
from extender.settings import Settings
from extender.source.errors import LeaseError
from extender.source.interface import Source
from extender.source.leader_election import Election, Lease, released

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL = 0.05  # seconds
_RANDOM = random.SystemRandom()
_JITTER = 0.2  # of the pause between two attempts, so that candidates do not send them at the same time


class LeaderElector:
    """A candidate. It leads while it holds the Lease and has listed the pods that others have bound."""

    def __init__(
        self, source: Source, lease: Lease, lease_seconds: int, *, limits_binds: bool = True
    ) -> None:
        """``limits_binds``: whether only the leader may bind."""
        self._source, self._lease = source, lease
        # The name of the pod, and a suffix that is unique to each start.
        self._election = Election(f"{socket.gethostname()}_{uuid.uuid4()}", lease_seconds)
        # A separate thread: renewals must not wait behind binds to a slow API server.
        self._thread = ThreadPoolExecutor(1, "lease")
        self._wrote_last = False  # whether, as far as we know, nobody has written the Lease since us
        self._was_leading = False
        self._listed_in_term = 0  # the last term for which the pods were listed
        self._running_writes = 0
        self.failure: LeaseError | None = None  # of the last use of the Lease
        """Why the last read or write of the Lease failed; "" if it succeeded."""
        if limits_binds:
            source.limit_binds(self.write_deadline)

    @property
    def is_leader(self) -> bool:
        """Whether this replica may bind now."""
        election = self._election
        return election.holds_lease(time.monotonic()) and self._listed_in_term == election.term

    @property
    def leader(self) -> str:
        """Host name of the replica that held the Lease when it was last read, "" for none."""
        return self._election.holder.rpartition("_")[0]

    def write_deadline(self) -> float:
        """Seconds that a write may take from now, 0 unless this replica leads. For any thread."""
        return self._election.write_deadline(time.monotonic())

    def waiting_for(self) -> str:
        """Why this replica may not bind; "" if it may."""
        if self.is_leader:
            return ""
        if self._election.holds_lease(time.monotonic()):
            return "this replica has just become the leader and is listing the pods"
        return "another replica is the leader" if self._election.holder else "there is no leader yet"

    @contextmanager
    def hold_during_write(self) -> Iterator[None]:
        """Context of a write that only the leader may make: ``resign`` waits until the block ends."""
        self._running_writes += 1
        try:
            yield
        finally:
            self._running_writes -= 1

    async def run(self, until_ready: Callable[[], Awaitable[None]]) -> None:
        """Await ``until_ready``, then take part in the election until cancelled."""
        await until_ready()
        async with asyncio.TaskGroup() as tasks:
            await self._elect_forever(tasks)

    async def resign(self) -> None:
        """Stop leading immediately, and release the Lease after the last running write."""
        self._election.resign()
        while self._running_writes:
            await asyncio.sleep(_POLL)
        try:
            await self._in_thread(self._release)
        except LeaseError as error:
            _log.warning("the Lease was not released, so others must wait until it expires: %s", error)

    async def _elect_forever(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            term = self._election.term
            try:
                await self._acquire_or_renew()
                self.failure = None
            except LeaseError as error:  # retried; without renewal, leadership expires
                self._wrote_last, self.failure = False, error
                _log.warning("Lease: %s", error)
            if term != self._election.term:
                tasks.create_task(self._list_pods(self._election.term))
            leads = self._election.holds_lease(time.monotonic())
            if leads != self._was_leading:
                _log.info("acquired the Lease" if leads else "no longer the leader")
            self._was_leading = leads
            await asyncio.sleep(self._election.retry_seconds * (1 + _JITTER * _RANDOM.random()))

    async def _acquire_or_renew(self) -> None:
        election = self._election
        if not (self._wrote_last and election.holds_lease(time.monotonic())):
            record = await self._in_thread(self._lease.read)
            election.observe(record, time.monotonic())
        sent_at = time.monotonic()
        if new := election.record_to_write(sent_at, micro_time()):
            await self._in_thread(lambda: self._lease.write(new))
            election.written(new, sent_at, time.monotonic())
            self._wrote_last = True

    async def _list_pods(self, term: int) -> None:
        """At the start of a term: the watch may not have shown the last binds yet."""
        await self._source.relist()
        self._listed_in_term = max(term, self._listed_in_term)  # an earlier term may end its list later
        _log.info("is the leader and may write")

    def _release(self) -> None:
        record = self._lease.read()
        if record.holder == self._election.identity:
            self._lease.write(released(record, micro_time()))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def elector_of(
    lease: str | None, settings: Settings, source: Source, *, limits_binds: bool = True
) -> LeaderElector | None:
    """A candidate for the Lease ``namespace/name``, None without one. Raises ``Unavailable``."""
    if lease is None:
        return None
    namespace, _, name = lease.partition("/")
    seconds = settings.lease_seconds
    api_lease = Lease(source.api_client("leader_election"), namespace, name, seconds / 3)
    return LeaderElector(source, api_lease, seconds, limits_binds=limits_binds)
