"""Leader election through one Lease: the rules, without I/O or a clock, and the requests.

The rules are those of client-go (``k8s.io/client-go/tools/leaderelection``, v0.36), so the usual tools can
read the Lease. Clocks of different machines are never compared. A candidate waits for the lease duration
after it *observed* a change to the record. A leader steps down two thirds of that duration after it *sent*
its last renewal. So the old leader stops before a new one starts, if their clocks run at similar speeds.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from extender.k8s.manifest import Unreadable, read_value
from extender.source.errors import LeaseError
from extender.source.rest import NO_ANSWER, Refused, RestClient

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
