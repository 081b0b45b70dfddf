"""Standing for election: asking for the Lease again and again, and what begins and ends with it.

The client library's own election (``kubernetes.leaderelection`` 37.0) is no help: it ends with an exception
and without a word to the leader when a connection fails, sets its requests no time limit, so that a leader
may believe in itself for longer than others do, and cannot release a Lease.

It runs in the event loop, where the verbs run: a replica whose loop hangs must lose its Lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from extender.source.interface import Lease, LeaseError, Source
from extender.source.leader_election import Election, released

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL = 0.05  # seconds between looks at what a candidate waits for
_JITTER = 0.2  # so that candidates do not ask in step


class Elector:
    """One candidate. It is ``is_leader`` while it holds the Lease and has seen all that others have bound."""

    def __init__(self, source: Source, lease: Lease, lease_seconds: int) -> None:
        self._source, self._lease = source, lease
        # The name of the pod, and what tells it from the same pod before a restart.
        self._election = Election(f"{socket.gethostname()}_{uuid.uuid4()}", lease_seconds)
        # Not where binds wait for an API server that is slow: the Lease must not stand behind them.
        self._thread = ThreadPoolExecutor(1, "lease")
        self._known = False  # whether the Lease is as our last write left it, as far as we know
        self._led = False
        self._up_to_date = 0  # the term at whose beginning everything was listed
        self._acting = 0
        source.limit_writes(lambda: self._election.write_deadline(time.monotonic()))

    @property
    def is_leader(self) -> bool:
        """Whether this replica may act now."""
        election = self._election
        return election.holds_lease(time.monotonic()) and self._up_to_date == election.term

    def waiting_for(self) -> str:
        """Why it may not act; "" when it may."""
        if self.is_leader:
            return ""
        if self._election.holds_lease(time.monotonic()):
            return "it leads from now on, and lists the pods anew"
        return "another replica leads" if self._election.holder else "no replica leads yet"

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Around what only a leader may do: the Lease is not released before it is done."""
        self._acting += 1
        try:
            yield
        finally:
            self._acting -= 1

    async def run(self, ready: Callable[[], bool]) -> None:
        """Stand for election from when ``ready`` says so, until cancelled."""
        while not ready():
            await asyncio.sleep(_POLL)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stand())
            tasks.create_task(self._keep_up())

    async def resign(self) -> None:
        """Lead no more at once; release the Lease when nothing runs any more that only a leader may do."""
        self._election.resign()
        while self._acting:
            await asyncio.sleep(_POLL)
        try:
            await self._ask(self._release)
        except LeaseError as error:
            _log.warning("The Lease was not released, another replica leads when it has run out: %s", error)

    async def _stand(self) -> None:
        while True:
            # A try that fails is followed by others, and a leader's time runs out by itself.
            trouble = ""
            try:
                await self._try()
            except LeaseError as error:
                self._known, trouble = False, str(error)
            self._say(trouble)
            await asyncio.sleep(self._election.retry_seconds * (1 + _JITTER * random.random()))

    async def _try(self) -> None:
        election = self._election
        if not (self._known and election.holds_lease(time.monotonic())):
            record = await self._ask(self._lease.read)
            election.observe(record, time.monotonic())
        asked_at = time.monotonic()
        if claim := election.record_to_write(asked_at, _today()):
            await self._ask(lambda: self._lease.write(claim))
            election.written(claim, asked_at, time.monotonic())
            self._known = True

    async def _keep_up(self) -> None:
        """At the beginning of each term, list what was bound until then: the watch may be a moment late."""
        while True:
            term = self._election.term
            if self._election.holds_lease(time.monotonic()) and self._up_to_date != term:
                await self._source.relist()
                self._up_to_date = term
                _log.info("in charge")
            await asyncio.sleep(_POLL)

    def _say(self, trouble: str) -> None:
        leads = self._election.holds_lease(time.monotonic())
        if trouble:
            _log.warning("Lease: %s", trouble)
        if leads != self._led:
            _log.info("leading" if leads else "leading no more")
        self._led = leads

    def _release(self) -> None:
        record = self._lease.read()
        if record.holder == self._election.identity:
            self._lease.write(released(record, _today()))

    async def _ask(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _today() -> str:
    """The time as a Lease has it (MicroTime)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
