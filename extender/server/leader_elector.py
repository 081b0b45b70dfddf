"""Leader election through one Lease: the rules, without I/O or a clock; the requests; and the task that
acquires, renews and releases the Lease, and lists the pods again when this replica becomes the leader.

The rules are those of client-go (``k8s.io/client-go/tools/leaderelection``, v0.36), so the usual tools can
read the Lease. Clocks of different machines are never compared. A candidate waits for the lease duration
after it *observed* a change to the record. A leader steps down two thirds of that duration after it *sent*
its last renewal. So the old leader stops before a new one starts, if their clocks run at similar speeds.

We do not use the client library's own election (``kubernetes.leaderelection`` 37.0): a connection error ends
it without notice to the leader, a leader may act for longer than its Lease because requests have no timeout,
and it cannot release a Lease. The task runs in the event loop, where the verbs run, so that a replica whose
loop hangs loses its Lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from extender.k8s.manifest import Unreadable, micro_time, read_value
from extender.settings import Settings
from extender.source.errors import LeaseError
from extender.source.interface import Source
from extender.source.rest import NO_ANSWER, Refused, RestClient

T = TypeVar("T")

_log = logging.getLogger(__name__)
_POLL = 0.05  # seconds
_RANDOM = random.SystemRandom()
_JITTER = 0.2  # of the pause between two attempts, so that candidates do not send them at the same time
RETRY = 2 / 15
"""The pause between two attempts of a candidate, as a fraction of the lease duration."""


class LeaseRecord(Struct, frozen=True):
    """The spec of a Lease. Times are informational: no decision depends on them."""

    holder: str = field(name="holderIdentity", default="")
    seconds: int = field(name="leaseDurationSeconds", default=0)
    acquired: str = field(name="acquireTime", default="")
    renewed: str = field(name="renewTime", default="")
    transitions: int = field(name="leaseTransitions", default=0)


class Election:
    """The state of one candidate. ``now`` is monotonic seconds, ``timestamp`` the time as text."""

    def __init__(self, identity: str, lease_seconds: int) -> None:
        """``identity`` is unique to this process. As in client-go, a leader that cannot renew steps down
        after two thirds of the lease duration (10 of 15 s), and candidates retry every 2/15 of it (2 s)."""
        self.identity = identity
        self.retry_seconds = lease_seconds * RETRY
        self.term = 0
        """Number of times this candidate has become the leader."""
        self._lease = lease_seconds
        self._deadline = lease_seconds * 2 / 3
        self._observed = LeaseRecord()
        self._observed_at = -math.inf
        self._renewed_at = -math.inf
        self._resigned = False

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last observed, "" for none."""
        return self._observed.holder

    def holds_lease(self, now: float) -> bool:
        """Whether this candidate leads. Expires without renewal."""
        return not self._resigned and now < self._renewed_at + self._deadline

    def write_deadline(self, now: float) -> float:
        """Seconds until another candidate may lead: writes must arrive sooner. 0 unless this one leads."""
        return self._renewed_at + self._lease - now if self.holds_lease(now) else 0.0

    def observe(self, record: LeaseRecord, now: float) -> None:
        """Observe the Lease's record as read, an empty one if the Lease does not exist."""
        if record != self._observed:
            self._observed, self._observed_at = record, now

    def record_to_write(self, now: float, timestamp: str) -> LeaseRecord | None:
        """The record that acquires or renews the Lease. None while another holds it, or after ``resign``."""
        held = self._observed
        is_ours = held.holder == self.identity
        if self._resigned or (held.holder and not is_ours and now < self._observed_at + held.seconds):
            return None
        if is_ours:
            return replace(held, seconds=self._lease, renewed=timestamp)
        transitions = held.transitions + bool(held.renewed)  # 0 for the first holder ever
        return LeaseRecord(self.identity, self._lease, timestamp, timestamp, transitions)

    def written(self, record: LeaseRecord, sent_at: float, now: float) -> None:
        """Note that the API server stored ``record_to_write``, in a request sent at ``sent_at``."""
        if not self.holds_lease(now):
            self.term += 1
        self._renewed_at = sent_at
        self.observe(record, now)

    def resign(self) -> None:
        self._resigned = True


def released(record: LeaseRecord, timestamp: str) -> LeaseRecord:
    """The record that releases the Lease, so that the next candidate does not have to wait."""
    return LeaseRecord("", 1, timestamp, timestamp, record.transitions)


class Lease:
    """One Lease of the API server. Fields that ``LeaseRecord`` does not have keep their values. Both calls
    block, for at most ``timeout`` seconds per request."""

    def __init__(self, rest: RestClient, namespace: str, name: str, timeout: float) -> None:
        self._rest, self._timeout = rest, timeout
        self._metadata = {"name": name, "namespace": namespace}
        self._object: dict[str, Any] | None = None  # as last read or written, with its resource version

    def read(self) -> LeaseRecord:
        """The record in the Lease, an empty one if the Lease does not exist. Raises ``LeaseError``."""
        try:
            self._object = self._request("GET", self._metadata["name"])
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                forbidden = refused.status == HTTPStatus.FORBIDDEN
                raise LeaseError(str(refused), forbidden=forbidden) from None
            self._object = None
            return LeaseRecord()
        try:
            return read_value(self._object.get("spec") or {}, LeaseRecord)
        except Unreadable as error:
            raise LeaseError(f"the Lease cannot be read: {error}") from None

    def write(self, record: LeaseRecord) -> None:
        """Update or create the Lease, unless it has changed since it was last read or written.

        Raises ``LeaseError``.
        """
        spec = {name: value or None for name, value in to_builtins(record).items()}  # as client-go does
        try:
            if self._object is None:
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._metadata}
                self._object = self._request("POST", "", lease | {"spec": spec})
            else:  # because of its resource version, the server refuses the update after a change
                changed = self._object | {"spec": (self._object.get("spec") or {}) | spec}
                self._object = self._request("PUT", self._metadata["name"], changed)
        except Refused as refused:
            forbidden = refused.status == HTTPStatus.FORBIDDEN
            raise LeaseError(str(refused), forbidden=forbidden) from None

    def _request(self, method: str, name: str, body: object = None) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._metadata['namespace']}/leases"
        try:
            return self._rest.exchange(method, f"{path}/{name}" if name else path, self._timeout, body)
        except NO_ANSWER as error:
            raise LeaseError(f"the API server did not answer: {error}") from error


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

        def release() -> None:
            record = self._lease.read()
            if record.holder == self._election.identity:
                self._lease.write(released(record, micro_time()))

        try:
            await self._in_thread(release)
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
