"""The data of the page at ``/``, and its changes since the last request of a reader.

It is rendered only while somebody asks, at most once a second for all readers together, and in small steps
with other tasks in between, so that no request of kube-scheduler waits for more than about a millisecond. A
row is rendered again when its node changed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic, time

from pydantic_core import to_json

from extender.background import with_turns
from extender.cluster.census import Census, CensusTaker, pods_waiting_for_devices
from extender.cluster.state import State
from extender.cluster.totals import Totals
from extender.explain.candidates import candidates_of
from extender.explain.fleet_row import fleet_row
from extender.explain.overview import waiting_line
from extender.explain.start_forecast import StartForecasts
from extender.untrusted.limits import PAGE_WAITING

_REFRESH = 1.0
"""Seconds for which readers get the same answer."""
_WAITING = 5.0
"""Seconds after which pending pods are explained again, which costs as much as a filter request for
each."""
_ALL = 60.0
"""Seconds after which every row is rendered again: the queue of a running pod can change with no change of
its node."""
_IDLE = 600.0
"""Seconds without a reader after which all data is dropped."""
_ROWS, _LOOKS = 3, 100
"""Rows that are rendered, and nodes that are looked at, before other tasks run."""
INTERVAL = 10.0
"""Seconds between two samples."""
_RECENT, _EVERY, _OLDER = 90, 18, 720
"""Samples that are all kept (15 minutes); of older ones one in three minutes is kept, for 36 hours."""
PAST = _EVERY * _OLDER * INTERVAL
"""The seconds that are shown of the past."""
_TOTALS = "gpus", "used", "waiting", "whole", "whole_nodes"
_ON_OFFER = (
    "largest_request",
    "largest_island",
    "stranded_compute",
    "stranded_by_cpu",
    "stranded_by_host_memory",
)
"""Columns, which are fields of ``Totals`` and of ``Fragmentation``."""
_COLUMNS = "at", *_TOTALS, *_ON_OFFER, "stranded"


@dataclass(slots=True)
class _Row:
    """A rendered row, the version in which it changed last, and what it was rendered from."""

    body: bytes
    version: int
    source: object


@dataclass(slots=True)
class _Kept:
    """What was rendered and when, all of it since the ``epoch`` began. ``waiting_from``: what the waiting
    pods were explained with."""

    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    refreshed: float = float("-inf")
    rendered_all: float = float("-inf")
    waiting_at: float = float("-inf")
    totals: Totals | None = None
    rows: dict[str, _Row] = field(default_factory=dict)
    waiting: bytes = b"[]"
    more_waiting: int = 0
    waiting_version: int = 0
    waiting_from: object = None


class FleetFeed:
    """The rows of all nodes and the pending pods, as JSON, with a version."""

    def __init__(
        self,
        state: State,
        census: CensusTaker,
        clock: Callable[[], float] = monotonic,
        starts: StartForecasts | None = None,
    ) -> None:
        self._state, self._census, self._clock, self._lock = state, census, clock, asyncio.Lock()
        self._asked, self._kept, self._starts = float("-inf"), _Kept(), starts or StartForecasts(state)

    async def since(self, version: str) -> list[bytes]:
        """What changed since this version, or everything where it is unknown ("" is): the parts of a JSON
        object, none of them long.

        ``version``; ``all``: whether everything is listed; ``at``, Unix seconds; ``totals`` of the census;
        ``beside``: what pods ask for beside one GPU on average (CPU in milli, host memory in MiB), two digits
        of it; ``nodes``: rows (``FleetRow``); ``waiting`` (``WaitingLine``, null if unchanged) and
        ``more_waiting``. After nodes were removed, everything is listed."""
        async with self._lock:
            now = self._clock()
            if now - self._asked > _IDLE:
                self._kept = _Kept()
            self._asked = now
            if now - self._kept.refreshed >= _REFRESH:
                await self._refresh(now)
            epoch, _, number = version.partition(".")
            is_ours = epoch == self._kept.epoch and number.isascii() and number.isdecimal()
            known = int(number) if is_ours and len(number) < 10 else 0
            return self._answer(known if known <= self._kept.version else 0)

    def forget_if_idle(self) -> None:
        """Free the memory after ten minutes without a request."""
        if self._clock() - self._asked > _IDLE:
            self._kept = _Kept()

    async def _refresh(self, now: float) -> None:
        kept = self._kept
        if removed := kept.rows.keys() - self._state.fleet.rows.keys():
            kept.epoch = secrets.token_hex(4)  # all others are listed again
            for name in removed:
                del kept.rows[name]
        kept.totals = (await self._census.take()).totals
        kept.version += 1
        rows_changed = await self._render_rows(now)
        if not (await self._explain_waiting(now) or rows_changed):
            kept.version -= 1
        kept.refreshed = self._clock()

    async def _render_rows(self, now: float) -> bool:
        """Render the rows of the nodes that changed; whether any did."""
        everything = now - self._kept.rendered_all >= _ALL
        looked = with_turns(list(self._state.fleet.rows), _LOOKS)
        kept = self._kept.rows
        stale = [
            name
            async for name in looked
            if everything or name not in kept or kept[name].source != self._source(name)
        ]
        changed = [self._render(name) async for name in with_turns(stale, _ROWS)]
        if everything:
            self._kept.rendered_all = now
        return any(changed)

    def _source(self, name: str) -> object:
        """What the row of the node is rendered from."""
        row, fleet = self._state.fleet.rows.get(name, -1), self._state.fleet
        count, node = self._census.node(name), self._state.nodes.get(name)
        return int(fleet.arrays.generation[row]), count, node, self._state.large_jobs.note(name)

    def _render(self, name: str) -> bool:
        """Whether the row is another one than before."""
        row = fleet_row(self._state, name, self._census.node(name), monotonic())
        if row is None:  # removed in the meantime
            return False
        body, kept = to_json(row), self._kept.rows.get(name)
        same = kept is not None and kept.body == body
        version = kept.version if kept and same else self._kept.version
        self._kept.rows[name] = _Row(body, version, self._source(name))
        return not same

    async def _explain_waiting(self, now: float) -> bool:
        """Explain the pending pods again if due. Returns whether something changed."""
        kept = self._kept
        if now - kept.waiting_at < _WAITING:
            return False
        kept.waiting_at, pods = now, pods_waiting_for_devices(self._state)
        source = (
            self._state.room_version,
            self._starts.version,
            [(pod.key, pod.uid, pod.nominated_node) for pod in pods],
        )
        if source == kept.waiting_from:
            return False
        lines = []
        for pod in pods[:PAGE_WAITING]:
            candidates = await candidates_of(self._state, pod)
            lines.append(to_json(waiting_line(self._state, pod, candidates, self._starts.of(pod))))
        body, more = b"[" + b",".join(lines) + b"]", max(0, len(pods) - PAGE_WAITING)
        kept.waiting_from = source
        if (body, more) == (kept.waiting, kept.more_waiting):
            return False
        kept.waiting, kept.more_waiting, kept.waiting_version = body, more, kept.version
        return True

    def _answer(self, known: int) -> list[bytes]:
        kept = self._kept
        rows = [row.body for row in kept.rows.values() if row.version > known]
        waiting = kept.waiting if kept.waiting_version > known or not known else b"null"
        beside = self._state.learner.monitor.beside()
        head = to_json(
            {
                "version": f"{kept.epoch}.{kept.version}",
                "all": not known,
                "at": round(time(), 1),
                "totals": kept.totals,
                "beside": [_rounded(beside.cpu_milli), _rounded(beside.memory_mib)],
                "more_waiting": kept.more_waiting,
            }
        )
        head = head[:-1] + b',"waiting":' + waiting + b',"nodes":['
        return [head, *(b",\n" * (place > 0) + row for place, row in enumerate(rows)), b"]}\n"]


def _rounded(amount: float) -> float:
    """Two significant digits, so that it seldom changes."""
    return float(f"{amount:.2g}")


class FleetHistory:
    """The samples of the last 36 hours."""

    def __init__(self, census: CensusTaker) -> None:
        self._census = census
        self._recent: deque[tuple[float, ...]] = deque()
        self._older: deque[tuple[float, ...]] = deque(maxlen=_OLDER)
        self._moved = 0

    async def sample(self, at: float) -> None:
        """Add a sample of this moment, in Unix seconds."""
        self._recent.append((round(at, 1), *_figures(await self._census.take())))
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            if self._moved % _EVERY == 0:
                self._older.append(oldest)
            self._moved += 1

    def last(self) -> dict[str, float]:
        """The last sample, by column."""
        return dict(zip(_COLUMNS, self._recent[-1], strict=True))

    def restore(self, samples: Iterable[dict[str, float]]) -> None:
        """Put earlier samples before all others, the oldest first. One without a time counts as old."""
        for sample in samples:
            if not self._older or sample.get("at", 0.0) - self._older[-1][0] >= _EVERY * INTERVAL:
                self._older.append(tuple(sample.get(name, 0.0) for name in _COLUMNS))

    def columns(self) -> dict[str, list[float]]:
        """By name, the values from the oldest to the newest. ``stranded`` is compute for which GPU memory, or
        the more of CPU and host memory, is lacking."""
        rows = [*self._older, *self._recent]
        return {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}


def _figures(census: Census) -> list[float]:
    fleet = census.fleet
    figures = [getattr(census.totals, field) for field in _TOTALS]
    figures += [getattr(fleet, field) for field in _ON_OFFER]
    stranded = fleet.stranded_compute + max(fleet.stranded_by_cpu, fleet.stranded_by_host_memory)
    return [round(figure, 2) for figure in (*figures, stranded)]
