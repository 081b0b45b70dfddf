"""The work of a fleet as a replay or a plan sees it: pods that may move, pods that stay, pods that wait.

Where a pod fits and what that costs is always the engine's answer, never a rule of its own. Moves are tried
on the engine's fleet and taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from extender.k8s.objects import Pod
from extender.replay.other_room import OtherRoom
from packing.fleet.arrays import Floats
from packing.fleet.downgrade import Device, device_on, weaker_rows
from packing.fleet.feasibility import eviction_may_help
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, on_offer
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.replay.pick_node import NodePicker

Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
_NO_PLACE = "no other node that its rules allow takes it"
ONLY_WEAKER = "only weaker devices are free for it (--allow-downgrade)"


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A pod that has a place or wants one: ``rows`` (N,) are the nodes that its rules allow, ``home`` the row
    where it runs (-1: it waits). ``pod`` is None in a trace, and has no node in a cluster."""

    key: str
    request: Request
    rows: Flags
    home: int = -1
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class Staying:
    """Why a pod cannot leave its node, and what it holds. ``ends_with_node``: it goes when the node goes."""

    row: int
    why: str
    ends_with_node: bool = False
    held: Allocation | None = None


class Answer(NamedTuple):
    """The reason code of each row for a pod, and what placing it there costs: (N,) each. The cost means
    something only where the code is 0."""

    codes: Codes
    cost: Floats


class Engine(Protocol):
    """What places pods: the verbs on a cluster's state, or a policy on the fleet of a trace."""

    @property
    def fleet(self) -> Fleet:
        """The fleet that the pods are placed on."""

    def evaluate(self, item: Item) -> Answer:
        """Where a pod without a place fits, and what that costs."""

    def bind(self, item: Item, row: int) -> Allocation | None:
        """Place a pod on a node where it fits; None if it cannot be assigned its GPUs there."""

    def bind_again(self, item: Item, held: Allocation) -> Allocation:
        """Give a pod the place back that it had."""

    def unbind(self, item: Item) -> None:
        """Take a pod off its node."""


class Work:
    """``open`` (N,): nodes that take pods; ``other_room``: what they have left of the rest.

    ``at``: what each movable or placed pod holds now. ``unplanned``: waiting pods that no plan places, and
    why. ``learn`` lets the policy learn from the pods before it is used for the first time. ``sample``: the
    number of fitting nodes that are looked at, 0 for all.

    Unless ``allow_downgrade``, no pod that runs gets a weaker device than it has (``weaker_rows``).
    ``held_back`` are the pods for which the engine would have chosen one.
    """

    def __init__(
        self,
        engine: Engine,
        open_rows: Flags,
        other_room: OtherRoom,
        learn: Callable[[], None] = lambda: None,
        *,
        sample: int = 0,
        allow_downgrade: bool = False,
    ) -> None:
        self.engine, self.fleet = engine, engine.fleet
        self._learn: Callable[[], None] | None = learn
        self.open, self.other_room = open_rows, other_room
        self.movable: dict[str, Item] = {}
        self.staying: dict[str, Staying] = {}
        self.waiting: list[Item] = []
        self.unplanned: dict[str, str] = {}
        self.at: dict[str, Allocation] = {}
        self.staying_on: defaultdict[int, dict[str, Staying]] = defaultdict(dict)
        self.held_back: set[str] = set()
        self._on_row: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._pick = NodePicker(np.argsort(self.fleet.arrays.order, kind="stable"), sample=sample)
        self._allow_downgrade = allow_downgrade
        self._nowhere: Flags = np.zeros(open_rows.size, bool)
        self._weaker: dict[tuple[Request, Device], Flags] = {}

    def name(self, row: int) -> str:
        """The name of the node of a row."""
        spec = self.fleet.specs[row]
        return spec.name if spec else ""

    @property
    def gpu_rows(self) -> list[int]:
        """The rows of nodes with GPUs that take pods, by name."""
        specs = enumerate(self.fleet.specs)
        found = [(spec.name, row) for row, spec in specs if spec and spec.gpus and self.open[row]]
        return [row for _, row in sorted(found)]

    def fits(self, item: Item) -> Flags:
        """(N,) where the pod fits now and may go."""
        return np.isfinite(self.costs(item))

    def costs(self, item: Item) -> Floats:
        """(N,) what placing the pod costs on each node, infinite where it does not fit or would get a weaker
        device than it has."""
        return self._without_weaker(item, self._costs(item))

    def _costs(self, item: Item) -> Floats:
        """The same with weaker devices."""
        if self._learn is not None:
            learn, self._learn = self._learn, None
            learn()
        codes, cost = self.engine.evaluate(item)
        return np.where(self._has_room(item, codes), cost, np.float32(np.inf))

    def _has_room(self, item: Item, codes: Codes) -> Flags:
        fits: Flags = (codes == Reason.FITS) & item.rows & self.open & self.other_room.fits(item.pod)
        return fits

    def _without_weaker(self, item: Item, cost: Floats) -> Floats:
        return np.where(self.weaker(item), np.float32(np.inf), cost)

    def weaker(self, item: Item) -> Flags:
        """(N,) the nodes where the pod may not go because their devices are weaker than those that it has."""
        runs = item.home >= 0 and not self._allow_downgrade
        has = device_on(self.fleet, item.home, item.request) if runs else None
        if has is None:
            return self._nowhere
        kind = item.request, has
        if kind not in self._weaker:
            self._weaker[kind] = weaker_rows(self.fleet, *kind)
        return self._weaker[kind]

    def place(self, item: Item, among: Flags | None = None) -> bool:
        """Place the pod where the engine likes it best; False if it fits nowhere ``among`` these rows."""
        everywhere = self._costs(item)
        if among is not None:
            everywhere = np.where(among, everywhere, np.float32(np.inf))
        cost = self._without_weaker(item, everywhere)
        if not np.isfinite(cost).any():
            return False
        if self.weaker(item)[np.argmin(everywhere)]:
            self.held_back.add(item.key)
        return self.put(item, self._pick(cost))

    def put(self, item: Item, row: int) -> bool:
        """Place the pod on a node where it fits; False if it cannot be assigned its GPUs there."""
        if (held := self.engine.bind(item, row)) is None:
            return False
        self._took(item, held)
        return True

    def restore(self, item: Item, held: Allocation) -> None:
        """Give the pod what it held before."""
        self._took(item, self.engine.bind_again(item, held))

    def _took(self, item: Item, held: Allocation) -> None:
        self.other_room.take(item.pod, held.row)
        self.runs(item, held)

    def runs(self, item: Item, held: Allocation) -> None:
        """The pod holds this on the fleet already."""
        self.at[item.key] = held
        self._on_row[held.row][item.key] = None

    def lift(self, item: Item) -> Allocation:
        """Take the pod off its node; returns what it held."""
        held = self.at.pop(item.key)
        del self._on_row[held.row][item.key]
        self.engine.unbind(item)
        self.other_room.take(item.pod, held.row, times=-1)
        return held

    def move_all(self, items: Sequence[Item], among: Flags | None = None) -> str:
        """Move pods to other nodes ``among`` these rows. Returns "", or which pod finds no place and why;
        then everything is as before."""
        before = [(item, self.lift(item)) for item in items]
        placed: list[Item] = []
        for item in sorted(items, key=lambda one: (-weight(one), one.key)):
            if self.place(item, among):
                placed.append(item)
                continue
            problem = f"{item.key}: {self.why_nowhere(item)}"
            for one in placed:
                self.lift(one)
            for one, held in before:
                self.restore(one, held)
            return problem
        return ""

    def why_nowhere(self, item: Item) -> str:
        """The most frequent reason of the nodes that the pod's rules allow and that take pods; first of all
        what the engine does not count, then reasons of nodes that lack only room."""
        codes = self.engine.evaluate(item).codes
        if self._has_room(item, codes).any():
            return ONLY_WEAKER
        allowed = item.rows & self.open
        if used_up := self.other_room.why_not(item.pod, allowed & (codes == Reason.FITS)):
            return used_up
        codes = codes[allowed & (codes != Reason.FITS)]
        lacks_room = eviction_may_help(codes)
        counts = np.bincount(codes[lacks_room] if lacks_room.any() else codes, minlength=1)
        return Reason(int(counts.argmax())).text if counts.any() else _NO_PLACE

    def items_on(self, row: int) -> list[Item]:
        """The pods of a node that can leave it, by key."""
        return [self.movable[key] for key in sorted(self._on_row.get(row, ())) if key in self.movable]

    def place_waiting(self) -> dict[str, str]:
        """Place the waiting pods in kube-scheduler's order; returns the node of each that fits. Those placed
        can move like the others."""
        found: dict[str, str] = {}
        for item in self.waiting:
            if self.place(item):
                self.movable[item.key] = item
                found[item.key] = self.name(self.at[item.key].row)
        return found

    def figures(self, gone: Iterable[int] = ()) -> Fragmentation:
        """What is free and whole, without the nodes that are ``gone``."""
        closed = {*np.flatnonzero(~self.open).tolist(), *gone}
        return fragmentation(self.fleet, on_offer(self.fleet, closed), Beside())[0]


def add_staying(work: Work, key: str, one: Staying) -> None:
    """Note a pod that cannot move."""
    work.staying[key] = work.staying_on[one.row][key] = one


def blockers(work: Work, row: int) -> dict[str, str]:
    """The pods that keep a node from going, and why, by key."""
    return {key: one.why for key, one in work.staying_on.get(row, {}).items() if not one.ends_with_node}


def overcommitted(fleet: Fleet) -> set[str]:
    """The nodes where more GPU is taken than there is, by the engine's own count."""
    specs = (fleet.specs[row] for row in np.flatnonzero(fleet.arrays.overcommitted).tolist())
    return {spec.name for spec in specs if spec}


def free_nodes(fleet: Fleet, offered: Flags) -> int:
    """Of the ``offered`` nodes (N,) those with GPUs of which nothing is taken."""
    arrays = fleet.arrays
    has = arrays.compute_capacity > 0
    idle = (arrays.compute == arrays.compute_capacity) & (arrays.memory == arrays.memory_capacity)
    return int(((idle | ~has).all(axis=0) & has.any(axis=0) & offered).sum())


def weight(item: Item) -> float:
    """GPUs, with CPU as a tie-breaker: large pods are placed first."""
    shares = item.request.shares
    gpus = shares.count * max(shares.compute_milli, shares.memory_milli) / 1000 if shares else 0.0
    counted = sum(count for _, count in item.request.devices)
    return gpus + counted + item.request.cpu_milli / 1e9
