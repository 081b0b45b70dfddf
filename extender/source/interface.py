"""The interface of a source: an API server or snapshot that delivers the cluster's state and binds pods."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, get_args

from extender.background import Background
from extender.k8s.objects import Event, Kind, Pod
from extender.source.errors import Unavailable

if TYPE_CHECKING:  # it loads urllib3, which snapshots do not need
    from extender.source.rest import RestClient

Apply: TypeAlias = Callable[[Sequence[Event]], None]
"""Applies events in the order in which they happened. It must not block, and several threads may call it
concurrently. If it raises, the source lists everything again."""
RECENT = 2.0
"""Seconds that an event may wait while the state is good enough for answers that ``bind`` checks again."""


class Backlog:
    """Delivered events that are not applied yet. Here the event loop applies each in its next iteration."""

    def has_room(self, kind: Kind) -> bool:
        """Whether more events of this kind may be delivered now. Any thread may call it."""
        return True

    def age(self) -> float:
        """Seconds since the oldest of these events was delivered, 0 if there is none."""
        return 0.0

    async def applied(self, within: float = math.inf) -> bool:
        """Wait, on the event loop, until all present events are applied; False after ``within`` seconds."""
        await asyncio.sleep(0)
        return True


NO_BACKLOG = Backlog()

WatchEnd: TypeAlias = Literal["in_time", "relist", "error"]
"""The server ended the watch at its timeout; everything must be listed again; no answer, or a refusal."""
WATCH_ENDS: tuple[WatchEnd, ...] = get_args(WatchEnd)


class Interruption(NamedTuple):
    """Times at which a watch broke and was open again (None: not yet), in monotonic seconds."""

    began_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """State of the watch of one kind. Times are in seconds.

    ``resource``: kubectl's name of the kind. ``silent``: time since the last bytes, infinite before the
    first; in a cluster without changes, five minutes are normal. ``closed``: time since it was last open, 0
    while it is. ``problem``: why the last attempt to list or watch failed, "" if it succeeded and for kinds
    that the cluster does not serve. ``ends``: number of watches, and attempts to open one, that ended, by
    cause; a new attempt follows each. ``forbidden``: the API server refuses the right.
    """

    resource: str
    silent: float = 0.0
    closed: float = 0.0
    problem: str = ""
    ends: Mapping[WatchEnd, int] = field(default_factory=dict)
    forbidden: bool = False


class Source(Protocol):
    """Delivers events to the state. ``Listed`` follows each full list of a kind.

    Methods with a body here have the behavior of files: no API server, and no changes.
    """

    has_other_readers: bool = False
    """Whether other instances of Stowage may serve the same cluster."""

    def start(
        self, apply: Apply, backlog: Backlog = NO_BACKLOG, background: Background | None = None
    ) -> None:
        """Start to deliver events to ``apply``. Returns immediately if they come from the network.
        ``backlog``: the events that ``apply`` has queued. While it has no room for a kind, nothing more is
        read of it. ``background`` runs the threads."""

    def stop(self) -> None:
        """Stop delivering. Returns within about a second. May be called twice, or without ``start``."""

    def list_once(self) -> Iterable[Sequence[Event]]:
        """All current objects of each kind, in one attempt; call it instead of ``start``. Raises
        ``Unavailable``, but not for optional kinds."""

    def read_for_audit(self) -> None:
        """Make ``list_once`` also list ``OF_UNMADE_PODS``, and go on, with ``Unlisted``, if it may not list
        the pods of all namespaces."""
        return None

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind the pod of this UID to a node and annotate it, atomically. Raises ``BindError``."""

    async def look_up(self, pod: Pod) -> Pod | None:
        """The current version of the pod of this name, None if it does not exist. Raises ``Unreachable``."""

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """The current versions of a node's pods, terminated ones included. Raises ``Unreachable``."""

    def describe(self) -> str:
        """A short description of the source, for a log line."""

    def select_nodes(self, selector: str, schedulers: Collection[str]) -> None:
        """Deliver only the nodes of this label selector, the pods that are bound or nominated to them, and
        the pods of these ``schedulerName``s. See ``Shard``.

        Call it before ``start``. Raises ``Unavailable`` if the source cannot select.
        """
        raise Unavailable("node_selector: a file delivers all its nodes; remove the others from it")

    def joining(self) -> frozenset[str]:
        """Nodes that will be delivered within seconds (see ``Shard``)."""
        return frozenset()

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        """Also deliver the MIG manager's ConfigMap of this name, or for "" those that it writes itself. Files
        deliver all that they contain anyway.

        Call it before ``start``.
        """
        return

    async def caught_up(self, recent: float = 0.0) -> bool:
        """Whether all events up to now have been delivered and applied, apart from those of the last
        ``recent`` seconds. Waits for them briefly.

        True also if the API server does not answer, because then no other client can bind either. False if it
        answers, but the events since the connection broke have not been delivered yet, or not applied.
        """
        return True

    def interruption(self) -> Interruption | None:
        """The last interruption of the pod watch, None if there was none."""
        return None

    async def relist(self) -> None:
        """List the pods again. Returns once everything written before the call has been delivered."""
        return

    def watches(self) -> Mapping[Kind, WatchStatus]:
        """State of the watch of each kind. Empty for a file."""
        return {}

    def server_version(self) -> str:
        """Version of the API server such as "1.36", "" if unknown. May block for a few seconds."""
        return ""

    def limit_binds(self, write_deadline: Callable[[], float]) -> None:
        """Call ``write_deadline`` before each bind, from any thread, for its time limit in seconds, or 0."""
        return

    def api_client(self, needed_by: str) -> RestClient:
        """The API server. ``needed_by``: the settings that need it. Raises ``Unavailable`` if there is
        none."""
        raise Unavailable(f"{needed_by}: a snapshot has no API server")
