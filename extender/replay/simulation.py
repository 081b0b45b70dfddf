"""Pods that come and go on a fleet, as a replay or a plan tries it: some may move, some stay, some wait.

Where a pod fits and what that costs is always the engine's answer, never a rule of its own. What has been
tried can be undone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from extender.cluster.census import with_node
from extender.cluster.unoffered import Unoffered
from extender.k8s.objects import Pod
from extender.replay.other_room import OtherRoom
from packing.fleet.arrays import Floats
from packing.fleet.downgrade import Device, device_on, weaker_rows
from packing.fleet.feasibility import eviction_may_help
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, idle_nodes, on_offer
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
    where it runs (-1: it waits), ``since`` when (Unix seconds, 0: not known). ``pod`` is None in a trace, and
    has no node in a cluster."""

    key: str
    request: Request
    rows: Flags
    home: int = -1
    pod: Pod | None = None
    since: float = 0.0

    @property
    def gpus(self) -> float:
        """GPUs, with CPU as a tie-breaker."""
        shares = self.request.shares
        gpus = shares.count * max(shares.compute_milli, shares.memory_milli) / 1000 if shares else 0.0
        counted = sum(count for _, count in self.request.devices)
        return gpus + counted + self.request.cpu_milli / 1e9


def largest_first(items: Iterable[Item]) -> list[Item]:
    """In the order in which they are placed."""
    return sorted(items, key=lambda item: (-item.gpus, item.key))


@dataclass(frozen=True, slots=True)
class Staying:
    """Why a pod cannot leave its node, and what it holds. ``ends_with_node``: it goes when the node goes."""

    why: str
    ends_with_node: bool = False
    held: Allocation | None = None


class Answer(NamedTuple):
    """The reason code of each row for a pod, and what placing it there costs: (N,) each. The cost means
    something only where the code is 0."""

    codes: Codes
    cost: Floats


class Gang(NamedTuple):
    """``members`` start together or none does: the pod that was asked about, and some of the ``others``
    (keys). 0: they do not fit."""

    others: Sequence[str]
    members: int


class Engine(Protocol):
    """What places pods: the verbs on a cluster's state, or a policy on the fleet of a trace."""

    @property
    def fleet(self) -> Fleet:
        """The fleet that the pods are placed on."""

    def evaluate(self, item: Item) -> Answer:
        """Where a pod without a place fits, and what that costs."""

    def rejections(self, item: Item, rows: Sequence[int]) -> list[str]:
        """Why the rules of the pod keep it off these nodes, of those where they do."""

    def gang_of(self, item: Item) -> Gang | None:
        """With which others a waiting pod must start; None for a pod that starts by itself."""

    def bind(self, item: Item, row: int) -> Allocation | None:
        """Place a pod on a node where it fits; None if it cannot be assigned its GPUs there."""

    def bind_again(self, item: Item, held: Allocation) -> Allocation:
        """Give a pod the place back that it had."""

    def unbind(self, item: Item) -> None:
        """Take a pod off its node."""


class Savepoint(NamedTuple):
    """What ``Simulation.undo_to`` goes back to."""

    done: int
    open: Flags


class Simulation:
    """``open`` (N,): nodes that take pods; ``other_room``: what they have left beside what Stowage counts.

    ``held``: what each movable or placed pod holds now. ``unplanned``: waiting pods that no plan places, and
    why; ``apart``: nodes with GPUs that take no pods, or none from here, and why. ``learn`` lets the policy
    learn from the pods before it is used for the first time. ``sample``: the number of fitting nodes that are
    looked at, 0 for all.

    Unless ``allow_downgrade``, no pod that runs gets a weaker device than it has (``weaker_rows``).
    ``held_back`` are the pods for which the engine would have chosen one.
    """

    def __init__(
        self,
        engine: Engine,
        open_rows: Flags,
        other_room: OtherRoom,
        learn: Callable[[], None] | None = None,
        *,
        sample: int = 0,
        allow_downgrade: bool = False,
    ) -> None:
        self.engine, self.fleet, self._learn = engine, engine.fleet, learn
        self.open, self.other_room = open_rows, other_room
        self._open_today = open_rows.copy()
        self.movable: dict[str, Item] = {}
        self.waiting: list[Item] = []
        self.unplanned: dict[str, str] = {}
        self.apart: dict[str, str] = {}
        self.only_for_claims: dict[int, Unoffered] = {}
        """Those of them on offer, by row."""
        self.must_stay: dict[int, str] = {}
        """The nodes that their owners keep, by row, and why."""
        self.held: dict[str, Allocation] = {}
        self.staying_on: defaultdict[int, dict[str, Staying]] = defaultdict(dict)
        """By row and key."""
        self.held_back: set[str] = set()
        self._without_gang: set[str] = set()
        self._keys_on: defaultdict[int, set[str]] = defaultdict(set)
        self._journal: list[tuple[Item, Allocation | None]] = []  # what pods held before each change
        self._pick = NodePicker(np.argsort(self.fleet.arrays.order, kind="stable"), sample=sample)
        self._allow_downgrade = allow_downgrade
        self._nowhere: Flags = np.zeros(open_rows.size, bool)
        self._weaker: dict[tuple[Request, Device], Flags] = {}

    def name(self, row: int) -> str:
        """The name of the node of a row."""
        spec = self.fleet.specs[row]
        return spec.name if spec else ""

    def node_of(self, key: str) -> str:
        """The node of a pod that has one."""
        return self.name(self.held[key].row)

    @property
    def gpu_rows(self) -> list[int]:
        """The rows of nodes with GPUs that take pods, by name."""
        specs = enumerate(self.fleet.specs)
        return sorted((row for row, spec in specs if spec and spec.gpus and self.open[row]), key=self.name)

    @property
    def staying(self) -> dict[str, Staying]:
        """All pods that stay, by key."""
        return {key: one for on_row in self.staying_on.values() for key, one in on_row.items()}

    def blockers(self, row: int) -> dict[str, str]:
        """The pods that keep a node from going, and why, by key; by its name, whether its owner keeps it."""
        marked = {self.name(row): self.must_stay[row]} if row in self.must_stay else {}
        return marked or {k: one.why for k, one in self.staying_on[row].items() if not one.ends_with_node}

    def items_on(self, row: int) -> list[Item]:
        """The pods of a node that can leave it, by key."""
        return [self.movable[key] for key in sorted(self._keys_on[row]) if key in self.movable]

    def fits(self, item: Item) -> Flags:
        """(N,) where the pod fits now and may go."""
        return np.isfinite(self.costs(item))

    def costs(self, item: Item) -> Floats:
        """(N,) what placing the pod costs on each node, infinite where it does not fit or would get a weaker
        device than it has."""
        return np.where(self.weaker(item), np.float32(np.inf), self._costs(item))

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

    def place(self, item: Item, node: str = "") -> bool:
        """Place the pod on this node, or where the engine likes it best; False if it fits nowhere there."""
        everywhere = self._costs(item)
        if node:
            among = np.arange(everywhere.size) == self.fleet.rows.get(node, -1)
            everywhere = np.where(among, everywhere, np.float32(np.inf))
        weaker = self.weaker(item)
        cost = np.where(weaker, np.float32(np.inf), everywhere)
        if not np.isfinite(cost).any():
            return False
        if weaker[np.argmin(everywhere)]:
            self.held_back.add(item.key)
        return self.place_on(item, self._pick(cost))

    def place_on(self, item: Item, row: int) -> bool:
        """Place the pod on a node where it fits; False if it cannot be assigned its GPUs there."""
        if (held := self.engine.bind(item, row)) is None:
            return False
        self._journal.append((item, None))
        self._took(item, held)
        return True

    def runs(self, item: Item, held: Allocation) -> None:
        """The pod holds this on the fleet already."""
        self.held[item.key] = held
        self._keys_on[held.row].add(item.key)

    def restore(self, item: Item, held: Allocation) -> None:
        """Give the pod what it held before."""
        self._took(item, self.engine.bind_again(item, held))

    def evict(self, item: Item) -> None:
        """Take the pod off its node."""
        self._journal.append((item, self.held[item.key]))
        self._leave(item)

    def relocate(self, items: Iterable[Item], place: Callable[[Item], bool] | None = None) -> Item | None:
        """All these pods leave, and each gets a place (``place``, else the engine's best), the largest first;
        the first that finds none is returned, for the caller to undo."""
        in_order = largest_first(items)
        for item in in_order:
            self.evict(item)
        return next((item for item in in_order if not (place or self.place)(item)), None)

    def cordon(self, row: int) -> None:
        """The node takes no more pods."""
        self.open[row] = False

    def savepoint(self) -> Savepoint:
        """Now, for ``undo_to``."""
        return Savepoint(len(self._journal), self.open.copy())

    def undo_to(self, savepoint: Savepoint) -> None:
        """Every pod has what it held at that time, and every node is as open as it was."""
        before: dict[str, tuple[Item, Allocation | None]] = {}
        for item, held in self._journal[savepoint.done :]:
            before.setdefault(item.key, (item, held))
        del self._journal[savepoint.done :]
        for item, _ in before.values():
            if item.key in self.held:
                self._leave(item)
        for item, held in before.values():
            if held is not None:
                self.restore(item, held)
        self.open[:] = savepoint.open

    def _took(self, item: Item, held: Allocation) -> None:
        self.other_room.take(item.pod, held.row)
        self.runs(item, held)

    def _leave(self, item: Item) -> None:
        held = self.held.pop(item.key)
        self._keys_on[held.row].remove(item.key)
        self.engine.unbind(item)
        self.other_room.take(item.pod, held.row, times=-1)

    def why_nowhere(self, item: Item) -> str:
        """The most frequent reason of the nodes that take pods: of those that the pod's rules allow what the
        engine does not count, then a lack of room; then the rule that keeps it off others that could take it,
        cordoned or not; then what else is the matter with those that it may get."""
        codes = self.engine.evaluate(item).codes
        if self._has_room(item, codes).any():
            return Reason.GANG_DOES_NOT_FIT.text if item.key in self._without_gang else ONLY_WEAKER
        allowed = item.rows & self.open
        if used_up := self.other_room.why_not(item.pod, allowed & (codes == Reason.FITS)):
            return used_up
        lacks_room = eviction_may_help(codes)
        if (allowed & lacks_room).any():
            return _most_frequent(codes[allowed & lacks_room])
        able = self._open_today & ~item.rows & (lacks_room | (codes == Reason.FITS))
        if rules := self.engine.rejections(item, np.flatnonzero(able).tolist()):
            return max(rules, key=rules.count)
        return _most_frequent(codes[allowed & (codes != Reason.FITS)])

    def place_waiting(self) -> dict[str, str]:
        """Place the waiting pods in kube-scheduler's order; returns the node of each that fits: of a gang as
        many members as must start together, or none. Those placed can move like the others."""
        waiting = {item.key: item for item in self.waiting}
        for item in self.waiting:
            if item.key not in self.held:
                self._start(item, waiting)
        placed = [item for item in self.waiting if item.key in self.held]
        self.movable |= {item.key: item for item in placed}
        return {item.key: self.node_of(item.key) for item in placed}

    def _start(self, item: Item, waiting: Mapping[str, Item]) -> None:
        gang = self.engine.gang_of(item)
        if gang is None:
            self.place(item)
            return
        others = sorted((waiting[key] for key in gang.others if key in waiting), key=lambda one: one.gpus)
        members, before = [item, *others][: gang.members], self.savepoint()
        if len(members) == gang.members > 0 and all(self.place(one) for one in largest_first(members)):
            return
        self.undo_to(before)
        self._without_gang.add(item.key)

    def offered(self) -> Flags:
        """(N,) the nodes on offer that take pods."""
        return on_offer(self.fleet, np.flatnonzero(~self.open).tolist())

    def figures(self) -> Fragmentation:
        """What is free and whole, as the census counts it."""
        figures, _ = fragmentation(self.fleet, self.offered(), Beside())
        return reduce(with_node, self.only_for_claims.values(), figures)

    def free_nodes(self) -> int:
        """Nodes on offer with GPUs of which nothing is taken."""
        return int((idle_nodes(self.fleet.arrays) & self.offered()).sum())


def _most_frequent(codes: Codes) -> str:
    return Reason(int(np.bincount(codes).argmax())).text if codes.size else _NO_PLACE
