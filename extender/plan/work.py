"""The work of a fleet as a plan sees it: pods that may move, pods that stay, pods that wait.

Where a pod fits is always the engine's answer (``codes``: the reason codes of the service), never a rule of
its own. A plan tries moves on the fleet and takes them back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.k8s.objects import Pod
from packing.fleet.feasibility import eviction_may_help
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, on_offer
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Policy

Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
_NO_PLACE = "no other node that its rules allow takes it"


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A pod that has a place or wants one: ``rows`` (N,) are the nodes that its rules allow, ``home`` the row
    where it runs (-1: it waits). ``pod`` is None in a trace."""

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


class Work:
    """``open`` (N,): nodes that take pods; ``pods_left`` (N,): how many more pods kubelet takes there.

    ``at``: what each movable or placed pod holds now. ``unplanned``: waiting pods that no plan places, and
    why. ``codes``: the reason code of each row for a pod, (N,). ``learn`` lets the policy
    learn from the pods.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        open_rows: Flags,
        pods_left: npt.NDArray[np.int64],
        codes: Callable[[Item], Codes],
        learn: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet, self._policy, self._codes = fleet, policy, codes
        self._learn: Callable[[], None] | None = learn
        self.open, self.pods_left = open_rows, pods_left
        self.movable: dict[str, Item] = {}
        self.staying: dict[str, Staying] = {}
        self.waiting: list[Item] = []
        self.unplanned: dict[str, str] = {}
        self.at: dict[str, Allocation] = {}
        self.staying_on: defaultdict[int, dict[str, Staying]] = defaultdict(dict)
        self._on_row: defaultdict[int, dict[str, None]] = defaultdict(dict)

    @property
    def policy(self) -> Policy:
        """The policy, which has learnt from the pods before it is used for the first time."""
        if self._learn is not None:
            learn, self._learn = self._learn, None
            learn()
        return self._policy

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
        """(N,) where the pod fits now."""
        fits: Flags = (self._codes(item) == Reason.FITS) & item.rows & self.open & (self.pods_left > 0)
        return fits

    def place(self, item: Item, among: Flags | None = None) -> bool:
        """Place the pod where the policy likes it best; False if it fits nowhere ``among`` these rows."""
        fits = self.fits(item) if among is None else self.fits(item) & among
        rows = np.flatnonzero(fits)
        if not rows.size:
            return False
        cost = self.policy.cost(self.fleet, item.request)[rows]
        self.put(item, int(rows[np.lexsort((self.fleet.arrays.order[rows], cost))[0]]))
        return True

    def put(self, item: Item, row: int) -> None:
        """Place the pod on a node where it fits; the policy chooses the GPUs."""
        gpus = self.policy.choose(self.fleet, item.request, row)
        self.restore(item, allocation_of(self.fleet, row, item.request, gpus))

    def restore(self, item: Item, held: Allocation) -> None:
        """Give the pod what it held before."""
        self.fleet.take(held)
        self.pods_left[held.row] -= 1
        self.runs(item, held)

    def runs(self, item: Item, held: Allocation) -> None:
        """The pod holds this on the fleet already."""
        self.at[item.key] = held
        self._on_row[held.row][item.key] = None

    def lift(self, item: Item) -> Allocation:
        """Take the pod off its node; returns what it held."""
        held = self.at.pop(item.key)
        del self._on_row[held.row][item.key]
        self.fleet.give_back(held)
        self.pods_left[held.row] += 1
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
        reasons of nodes that lack only room."""
        codes = self._codes(item)[item.rows & self.open]
        codes = codes[codes != Reason.FITS]
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
