"""Where the cluster's state comes from, and where binds go: one interface before the live API and a snapshot.

SourceError
+-- Unavailable      it cannot be used at all: no such file, no kubeconfig
+-- BindError        the pod was not bound; the text is fit for its event
    +-- BindConflict     it is bound already, being deleted, or was made anew under its name
    +-- PodNotFound      there is no such pod
    +-- Unreachable      no answer came: whether it is bound will be seen in the events
+-- LeaseError       the Lease was not read or written
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from extender.k8s.objects import Event, Kind, Pod
from extender.source.leader_election import Record

Apply: TypeAlias = Callable[[Sequence[Event]], None]
"""Takes events in the order they happened. It is called from any thread, from several at a time, and must not
block; an exception that it raises makes the source list everything anew."""


class SourceError(Exception):
    """Base of what goes wrong with a source."""


class Unavailable(SourceError):
    """The source cannot be used at all."""


class BindError(SourceError):
    """The pod was not bound."""


class BindConflict(BindError):
    """The pod is bound already, being deleted, or another one than was meant."""


class PodNotFound(BindError):
    """There is no such pod."""


class Unreachable(BindError):
    """No answer came; the bind may have happened or not."""


class LeaseError(SourceError):
    """The Lease was not read; or not written, as far as is known."""


class Lease(Protocol):
    """One Lease of the API server. Both calls block, for a third of its duration at most."""

    def read(self) -> Record:
        """What it says, an empty record where there is none. Raises ``LeaseError``."""

    def write(self, record: Record) -> None:
        """Change it, or create it, if it is as it was last read or written here. Raises ``LeaseError``."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """When a watch broke and when it was open again (None: not yet), in monotonic seconds."""

    began_at: float
    ended_at: float | None


class Source(Protocol):
    """What feeds ``State``. ``Listed`` follows the first full list of each kind: then that kind is synced."""

    def start(self, apply: Apply) -> None:
        """Begin to deliver events to ``apply``; returns at once where they come from the network."""

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        """Deliver the MIG manager's ConfigMap of this name, too, or ("") its own ones. Before ``start``."""

    def stop(self) -> None:
        """Deliver nothing more. Returns within about a second; may be called twice, or without ``start``."""

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind the pod of this uid to a node and annotate it, all or nothing. Raises ``BindError``."""

    async def look_up(self, pod: Pod) -> Pod | None:
        """The pod of this name as it is at this moment, None where there is none. Raises ``Unreachable``."""

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """The pods of a node as it is at this moment, ended ones included. Raises ``Unreachable``."""

    async def caught_up(self) -> bool:
        """Whether nothing newer can be had than what was delivered, trying for a moment to catch up.

        True as well where the API server does not answer: then nobody can bind anything either. False while
        it answers, and what happened since the connection broke has not been delivered yet.
        """

    def interruption(self) -> Interruption | None:
        """The last one of the watch of pods, None if there was none."""

    async def relist(self) -> None:
        """List the pods once more; returns once all has been delivered that was written before the call."""

    def lease(self, namespace: str, name: str, seconds: int) -> Lease:
        """A Lease that is held for so many seconds. Raises ``Unavailable`` where there can be none."""

    def write_only_while(self, allowed_for: Callable[[], float]) -> None:
        """Ask ``allowed_for`` before each bind, from any thread: the seconds that it may take, 0 for none."""

    def staleness(self) -> Mapping[Kind, float]:
        """Seconds since each kind was last heard of, infinite before the first time; empty if never stale.

        Five minutes are nothing unusual in a cluster where nothing changes.
        """

    def server_version(self) -> str:
        """Version of the API server such as "1.36", "" where unknown. May block for a few seconds."""

    def describe(self) -> str:
        """What it is, in a few words for a log line."""
