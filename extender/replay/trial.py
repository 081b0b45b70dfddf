"""Pods that come and go on a copy of a cluster, as a replay or a plan tries it.

Where a pod fits and what that costs is what ``filter`` and ``prioritize`` say, never a rule of its own. A pod
that is placed is shown to the state as the watch would show it, with the annotations that ``bind`` writes
where Stowage writes them. What assigns GPUs to the pods that run today assigns them here, too. What has been
tried can be undone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from extender.cluster.allocations import Placement
from extender.cluster.census import with_node
from extender.cluster.other_resources import OtherResources, lack_reason
from extender.cluster.state import State
from extender.cluster.unoffered import Unoffered
from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_request import WRITERS
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import OTHER_AFFINITY, OTHER_SELECTOR
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.verbs.assignment import annotations_for
from extender.verbs.evaluate import Codes, Flags, evaluate, form_on
from extender.verbs.gang_fit import Supposed, gang_would_fit, wants_gpu
from packing.fleet.arrays import Floats
from packing.fleet.downgrade import Device, device_on, weaker_rows
from packing.fleet.feasibility import eviction_may_help, fits_when_empty
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import placed_shares
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, idle_nodes, on_offer
from packing.model.reasons import Reason
from packing.model.request import Request

_NO_PLACE = "no other node that its rules allow takes it"
_TOO_LARGE = "no node that its rules allow is large enough for it, even without other pods"
ONLY_WEAKER = "only weaker devices are free for it (--allow-downgrade)"


class BadInput(ValueError):
    """What a replay or a plan cannot use; the text names the file or the option."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A pod that has a place or wants one: ``rows`` (N,) are the nodes that its rules allow, ``home`` the row
    where it runs (-1: it waits), ``since`` when (Unix seconds, 0: not known). ``pod`` is the pod without a
    node."""

    key: str
    request: Request
    rows: Flags
    pod: Pod
    home: int = -1
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


class Savepoint(NamedTuple):
    """What ``Trial.undo_to`` goes back to."""

    done: int
    open: Flags


class _Bound(NamedTuple):
    """A pod with a node. ``placement`` says which GPUs it has where none of our annotations can."""

    pod: Pod
    placement: Placement | None = None


class Trial:
    """Changes its ``state``, which nobody else uses; the policy learns nothing from that. ``open`` (N,):
    nodes that take pods.

    ``held``: what each movable or placed pod holds now. ``unplanned``: pending pods that no plan places, and
    why; ``apart``: nodes with GPUs that take no pods, or none from here, and why; ``only_for_claims``: those
    of them on offer, by row. ``must_stay``: the nodes that their owners keep, by row, and why.
    ``staying_on``: pods that stay, by row and key. ``learn`` lets the policy learn from the pods before it is
    used for the first time.

    Unless ``allow_downgrade``, no pod that runs gets a weaker device than it has (``weaker_rows``).
    ``held_back`` are the pods for which the policy would have chosen one.
    """

    def __init__(
        self,
        state: State,
        open_rows: Flags,
        learn: Callable[[], None] | None = None,
        *,
        allow_downgrade: bool = False,
    ) -> None:
        self.state, self.fleet, self._learn = state, state.fleet, learn
        state.learner.stopped = True
        state.assigns_all = True
        state.numa.clear()
        self.open, self._open_today = open_rows, open_rows.copy()
        self.movable: dict[str, Item] = {}
        self.waiting: list[Item] = []
        self.unplanned: dict[str, str] = {}
        self.apart: dict[str, str] = {}
        self.only_for_claims: dict[int, Unoffered] = {}
        self.must_stay: dict[int, str] = {}
        self.held: dict[str, Allocation] = {}
        self.staying_on: defaultdict[int, dict[str, Staying]] = defaultdict(dict)
        self.held_back: set[str] = set()
        self._without_gang: set[str] = set()
        self._keys_on: defaultdict[int, set[str]] = defaultdict(set)
        self._journal: list[tuple[Item, Allocation | None]] = []  # what pods held before each change
        self._bound: dict[tuple[str, Allocation], _Bound] = {}
        self._names, self._named_at = NodeNames.of(()), -1
        self._allow_downgrade = allow_downgrade
        self._nowhere: Flags = np.zeros(open_rows.size, bool)
        self._weaker: dict[tuple[Request, Device], Flags] = {}
        self.others = OtherResources(state)

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
        return {key: staying for on_row in self.staying_on.values() for key, staying in on_row.items()}

    def blockers(self, row: int) -> dict[str, str]:
        """The pods that keep a node from going, and why, by key; by its name, whether its owner keeps it."""
        marked = {self.name(row): self.must_stay[row]} if row in self.must_stay else {}
        return marked or {
            k: staying.why for k, staying in self.staying_on[row].items() if not staying.ends_with_node
        }

    def items_on(self, row: int) -> list[Item]:
        """The pods of a node that can leave it, by key."""
        return [self.movable[key] for key in sorted(self._keys_on[row]) if key in self.movable]

    def evaluate(self, item: Item) -> tuple[Codes, Floats]:
        """A reason code and a cost for each row, (N,) each, by the code that answers ``filter`` and
        ``prioritize``. Devices of DRA are not placed here, so a node where the pod needs some does not
        count."""
        if self._named_at != self.fleet.replaced:
            self._names, self._named_at = NodeNames.of(self.fleet.rows), self.fleet.replaced
        capacity = self.fleet.arrays.capacity
        codes = np.full(capacity, Reason.UNKNOWN_NODE, np.int8)
        cost = np.full(capacity, np.inf, np.float32)
        found = evaluate(self.state, item.pod, item.request, self._names)
        codes[found.rows], cost[found.rows] = found.codes, found.cost
        if found.forecasts:
            by_claims = np.array([bool(forecast.devices or forecast.problem) for forecast in found.forecasts])
            codes[found.rows[by_claims]] = Reason.NO_SUCH_RESOURCE
        return codes, cost

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
        codes, cost = self.evaluate(item)
        return np.where(self._has_room(item, codes), cost, np.float32(np.inf))

    def _has_room(self, item: Item, codes: Codes) -> Flags:
        fits: Flags = (codes == Reason.FITS) & item.rows & self.open
        for lacks in self.others.lacking(item.pod).values():
            fits &= ~lacks
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
        """Place the pod on this node, or where the policy likes it best; False if it fits nowhere there."""
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
        return self.place_on(item, int(np.lexsort((self.fleet.arrays.order, cost))[0]))

    def place_on(self, item: Item, row: int) -> bool:
        """Place the pod on a node where it fits; False if it cannot be assigned its GPUs there."""
        if (bound := self._bind(item, row)) is None:
            return False
        self._journal.append((item, None))
        self._show(item, bound)
        return True

    def _bind(self, item: Item, row: int) -> _Bound | None:
        """The pod on the node, with the GPUs that the policy chooses; None if it cannot be assigned them."""
        spec = self.fleet.specs[row]
        assert spec is not None
        request = form_on(self.fleet, row, item.request)
        gpus = self.state.policy.choose(self.fleet, request, row)
        bound = replace(item.pod, node_name=spec.name, phase="Running")
        if not gpus:
            return _Bound(bound)
        if spec.sharing_resource not in WRITERS:
            return _Bound(bound, _placement(bound, self.fleet, row, request, gpus))
        try:
            assignment, _ = annotations_for(self.fleet, row, item.pod, request, gpus)
        except RequestError:
            return None
        return _Bound(replace(bound, annotations={**bound.annotations, **assignment}))

    def _show(self, item: Item, bound: _Bound) -> None:
        """Let the pod have its place."""
        allocations, key = self.state.allocations, item.key
        allocations.deferred = bound.placement is not None  # its annotations say nothing of its GPUs
        self.state.apply([Upserted(bound.pod)])
        if bound.placement:
            allocations.deferred = False
            allocations.allocate(key, bound.placement)
            self.state.sync_nodes([bound.pod.node_name])
        held = allocations.allocation_of(key)
        assert held is not None  # its node is known
        self._bound[key, held] = bound
        self.others.take(item.pod, held.row)
        self.runs(item, held)

    def runs(self, item: Item, held: Allocation) -> None:
        """The pod holds this on the fleet already."""
        self.held[item.key] = held
        self._keys_on[held.row].add(item.key)

    def leave(self, item: Item) -> None:
        """Take the pod off its node."""
        self._journal.append((item, self.held[item.key]))
        self._leave(item)

    def _leave(self, item: Item) -> None:
        held = self.held.pop(item.key)
        self._keys_on[held.row].remove(item.key)
        self._bound.setdefault((item.key, held), _Bound(self.state.pods[item.key]))
        self.state.apply([Deleted("Pod", item.key)])
        self.others.take(item.pod, held.row, -1)

    def relocate(self, items: Iterable[Item], place: Callable[[Item], bool] | None = None) -> Item | None:
        """All these pods leave, and each gets a place (``place``, else the policy's best), the largest first;
        the first that finds none is returned, for the caller to undo."""
        in_order = largest_first(items)
        for item in in_order:
            self.leave(item)
        return next((item for item in in_order if not (place or self.place)(item)), None)

    def empty(self, row: int, items: Iterable[Item]) -> str:
        """Cordon the node and move these pods off it; "" if each finds a place, else the first that finds
        none, and why: then nothing has changed."""
        before = self.savepoint()
        self.cordon(row)
        if (left := self.relocate(items)) is None:
            return ""
        why = f"{left.key}: {self.why_not(left)}"
        self.undo_to(before)
        return why

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
                self._show(item, self._bound[item.key, held])
        self.open[:] = savepoint.open

    def why_not(self, item: Item) -> str:
        """Why the pod fits nowhere, by the most nodes that take pods: of those that its rules allow what
        Stowage does not place by, then a lack of room; then the rule that keeps it off others that could take
        it, cordoned or not; then what else is the matter with those that it may get, and why others are
        closed."""
        codes, _ = self.evaluate(item)
        if self._has_room(item, codes).any():
            return Reason.GANG_DOES_NOT_FIT.text if item.key in self._without_gang else ONLY_WEAKER
        allowed = item.rows & self.open
        lacking = {
            name: int((lacks & allowed & (codes == Reason.FITS)).sum())
            for name, lacks in self.others.lacking(item.pod).items()
        }
        if any(lacking.values()):
            name = max(lacking, key=lambda name: lacking[name])
            return lack_reason(name, offered=name in self.others.left)
        lacks_room = eviction_may_help(codes)
        if (allowed & lacks_room).any():
            could = allowed & fits_when_empty(self.fleet, item.request.stacked or item.request)
            return _most_frequent(codes[could & lacks_room]) if (could & lacks_room).any() else _TOO_LARGE
        able = self._open_today & ~item.rows & (lacks_room | (codes == Reason.FITS))
        rejection = self.state.node_filter(item.pod).rejection
        found = (rejection(self.state.nodes[self.name(row)]) for row in np.flatnonzero(able).tolist())
        if rules := Counter(filter(None, found)):  # of nodes that it selects, before any that it does not
            return min(rules, key=lambda why: (why in (OTHER_SELECTOR, OTHER_AFFINITY), -rules[why]))
        refusing = allowed & (codes != Reason.FITS)
        if refusing.any():
            offering = refusing & (codes != Reason.NO_SUCH_RESOURCE)
            return _most_frequent(codes[offering if offering.any() else refusing])
        closed = [rejection(self.state.nodes[name]) or why for name, why in self.apart.items()]
        return max(closed, key=closed.count, default=_NO_PLACE)

    def place_waiting(self) -> dict[str, str]:
        """Place the pending pods in kube-scheduler's order; returns the node of each that fits: of a gang as
        many members as must start together, or none. Those placed can move like the others."""
        for _ in self.starting():
            pass
        placed = [item for item in self.waiting if item.key in self.held]
        self.movable |= {item.key: item for item in placed}
        return {item.key: self.node_of(item.key) for item in placed}

    def starting(self) -> Iterator[None]:
        """Place the waiting pods, one with each step. One like another that found no place is not tried."""
        waiting, nowhere = {item.key: item for item in self.waiting}, set[object]()
        for item in self.waiting:
            kind = item.request, item.pod.spec, id(item.rows)
            if item.key in self.held or kind in nowhere:
                continue
            self._start(item, waiting)
            if item.key not in self.held and self.state.gangs.gang_of(item.pod) is None:
                nowhere.add(kind)
            yield

    def _start(self, item: Item, waiting: Mapping[str, Item]) -> None:
        """Place the pod, with as many others of its gang as must start with it."""
        gang = self.state.gangs.gang_of(item.pod) if self.state.gang_check else None
        if gang is None or gang.to_place < 2:
            self.place(item)
            return
        gangs, pods = self.state.gangs, self.state.pods
        others = gangs.still_to_start(gang, gang.to_place, pods.is_bound, but=item.key)
        if others.room:
            self.place(item)
            return
        with_gpus = [member.key for member in others.free if wants_gpu(self.state, member)]
        plain = len(others.free) - len(with_gpus)  # they have room wherever the others find theirs
        count, before = max(min(gang.to_place, 1 + len(others.free)) - plain, 1), self.savepoint()
        smallest = sorted(
            (waiting[key] for key in with_gpus if key in waiting), key=lambda member: member.gpus
        )
        chosen = [item, *smallest][:count]
        fits = gang_would_fit(self.state, item.pod, item.request, Supposed(self.state.nodes))
        if fits and len(chosen) == count and all(map(self.place, largest_first(chosen))):
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
    return Reason(int(np.bincount(codes).argmax())).text


def _placement(pod: Pod, fleet: Fleet, row: int, request: Request, gpus: tuple[int, ...]) -> Placement | None:
    """The pod with these GPUs, as if the sharing system had said so."""
    part, spec = placed_shares(fleet, row, request), fleet.specs[row]
    if part is None or spec is None:
        return None
    size = part.compute_milli, part.memory_mib, part.memory_milli, part
    claims = Claims(spec.sharing_resource, tuple(Claim(str(gpu), *size) for gpu in gpus))
    return Placement(pod.node_name, request, claims, priority=pod.priority, uid=pod.uid)
