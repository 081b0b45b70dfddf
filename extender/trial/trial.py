"""Trial placements and removals of pods on a copy of a cluster, for replays and plans.

Whether a pod fits on a node, and its cost there, are the answers of ``filter`` and ``prioritize``; there are
no separate rules. The state receives a placed pod in the form of the watch, with the annotations of ``bind``
if Stowage writes them. GPUs are assigned by the same components as to today's pods. All changes can be
undone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from extender.cluster.allocations import Placement
from extender.cluster.census import with_node
from extender.cluster.other_resources import OtherResources, lack_reason
from extender.cluster.state import State
from extender.cluster.unoffered import Unoffered
from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_request import writers_on
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import Rule
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.verbs.assignment import annotations_for
from extender.verbs.evaluate import evaluate, form_on
from extender.verbs.gang_room import Supposed, gang_would_fit
from extender.verbs.reason_codes import Codes
from packing.fleet.arrays import Flags, Floats
from packing.fleet.downgrade import Device, device_on, weaker_rows
from packing.fleet.feasibility import eviction_may_help, fits_when_empty
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import placed_shares
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, idle_nodes, on_offer
from packing.model.reasons import Reason
from packing.model.request import Request

_NO_PLACE = "no other node allowed by its rules accepts it"
_TOO_LARGE = "no node allowed by its rules is large enough for it, even without other pods"
FROM_SLICES = "it requests DRA devices, which kube-scheduler chooses"
ONLY_WEAKER = "only weaker devices are free for it (--allow-downgrade)"


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A placed or pending pod: ``rows`` (N,) are the nodes allowed by its rules, ``home`` the row where it
    runs (-1: pending), ``since`` its start (Unix seconds, 0: unknown). ``pod`` is the pod without a node."""

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
    """The items in placement order."""
    return sorted(items, key=lambda item: (-item.gpus, item.key))


@dataclass(frozen=True, slots=True)
class Staying:
    """Why a pod cannot leave its node, and what it holds. ``ends_with_node``: it ends with the node."""

    why: str
    ends_with_node: bool = False
    held: Allocation | None = None


class Trial:
    """Changes its ``state``, which must not be shared; the policy does not learn from these changes. ``open``
    (N,): nodes that accept pods.

    ``held``: the current allocation of each movable or placed pod. ``unplanned``: pending pods that no plan
    places, and why; ``apart``: nodes with GPUs that accept no pods, or none from plans, and why;
    ``only_for_claims``: those of them on offer, by row. ``must_stay``: nodes that their owners keep, by row,
    and why. ``staying_on``: pods that stay, by row and key. ``learn`` teaches the policy from the pods before
    its first use.

    Unless ``allow_downgrade``, no running pod is allocated a weaker device than now (``weaker_rows``).
    ``held_back`` are the pods for which the policy would have chosen a weaker one.
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
        self._undo: list[Callable[[], object]] = []  # the way back from each change
        self._placements: dict[str, Placement] = {}  # of pods whose annotations cannot express their GPUs
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
        """The node of a placed pod."""
        return self.name(self.held[key].row)

    @property
    def gpu_rows(self) -> list[int]:
        """The rows of nodes with GPUs that accept pods, sorted by name."""
        specs = enumerate(self.fleet.specs)
        return sorted((row for row, spec in specs if spec and spec.gpus and self.open[row]), key=self.name)

    @property
    def staying(self) -> dict[str, Staying]:
        """All pods that stay, by key."""
        return {key: staying for on_row in self.staying_on.values() for key, staying in on_row.items()}

    def blockers(self, row: int) -> dict[str, str]:
        """The pods that block a node's removal, and why, by key; its owner's reason, by the node's name."""
        marked = {self.name(row): self.must_stay[row]} if row in self.must_stay else {}
        return marked or {
            k: staying.why for k, staying in self.staying_on[row].items() if not staying.ends_with_node
        }

    def items_on(self, row: int) -> list[Item]:
        """The movable pods of a node, sorted by key."""
        return [self.movable[key] for key in sorted(self._keys_on[row]) if key in self.movable]

    def evaluate(self, item: Item) -> tuple[Codes, Floats]:
        """A reason code and a cost for each row, (N,) each, by the code behind ``filter`` and ``prioritize``.
        DRA devices are not placed here, so nodes where the pod needs them are excluded."""
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

    def costs(self, item: Item) -> Floats:
        """(N,) cost of placing the pod on each node, infinite where it does not fit or would be allocated a
        weaker device than now."""
        return np.where(self.weaker(item), np.float32(np.inf), self._costs(item))

    def _costs(self, item: Item) -> Floats:
        """The costs, with weaker devices permitted."""
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
        """(N,) the nodes that are excluded because their devices are weaker than the pod's present ones."""
        runs = item.home >= 0 and not self._allow_downgrade
        has = device_on(self.fleet, item.home, item.request) if runs else None
        if has is None:
            return self._nowhere
        kind = item.request, has
        if kind not in self._weaker:
            self._weaker[kind] = weaker_rows(self.fleet, *kind)
        return self._weaker[kind]

    def place(self, item: Item, node: str = "") -> bool:
        """Place the pod on this node, or on the policy's best node; False if it does not fit."""
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
        """Place the pod on a node where it fits, with the GPUs that the policy chooses; False if these cannot
        be assigned there."""
        spec = self.fleet.specs[row]
        assert spec is not None
        request = form_on(self.fleet, row, item.request)
        gpus = self.state.policy.choose(self.fleet, request, row)
        pod, placement = replace(item.pod, node_name=spec.name, phase="Running"), None
        if gpus and not writers_on(spec.sharing_resource):
            placement = _placement(pod, self.fleet, row, request, gpus)
        elif gpus:
            try:
                assignment, _ = annotations_for(self.fleet, row, item.pod, request, gpus)
            except RequestError:
                return False
            pod = replace(pod, annotations={**pod.annotations, **assignment})
        pending = self.state.pods.get(item.key)
        self._show(item, pod, placement)
        self._undo.append(partial(self._hide, item, pending))
        return True

    def _show(self, item: Item, pod: Pod, placement: Placement | None) -> None:
        """Let the state see the pod on its node, with these GPUs if its annotations do not name them."""
        allocations, key = self.state.allocations, item.key
        allocations.deferred = placement is not None
        self.state.apply([Upserted(pod)])
        if placement:
            allocations.deferred = False
            allocations.allocate(key, placement)
            self.state.sync_nodes([pod.node_name])
            self._placements[key] = placement
        held = allocations.allocation_of(key)
        assert held is not None  # its node is known
        self.others.take(item.pod, held.row)
        self.runs(item, held)

    def runs(self, item: Item, held: Allocation) -> None:
        """Record that the pod already has this allocation in the fleet."""
        self.held[item.key] = held
        self._keys_on[held.row].add(item.key)

    def leave(self, item: Item) -> None:
        """Remove the pod from its node."""
        shown = self.state.pods[item.key], self._placements.get(item.key)
        self._hide(item)
        self._undo.append(partial(self._show, item, *shown))

    def _hide(self, item: Item, pending: Pod | None = None) -> None:
        """Let the state see that the pod is gone, or pending again."""
        held = self.held.pop(item.key)
        self._keys_on[held.row].remove(item.key)
        self._placements.pop(item.key, None)
        self.state.apply([Deleted("Pod", item.key), *([Upserted(pending)] if pending else [])])
        self.others.take(item.pod, held.row, -1)

    def relocate(self, items: Iterable[Item], place: Callable[[Item], bool] | None = None) -> Item | None:
        """Remove all these pods and place each again (``place``, else the policy's best node), the largest
        first. Returns the first that does not fit, for the caller to undo."""
        in_order = largest_first(items)
        for item in in_order:
            self.leave(item)
        return next((item for item in in_order if not (place or self.place)(item)), None)

    def empty(self, row: int, items: Iterable[Item]) -> str:
        """Cordon the node and move these pods off it; "" if all fit elsewhere, else the first that does not,
        and why, with everything unchanged."""
        before = self.savepoint()
        self.cordon(row)
        if (left := self.relocate(items)) is None:
            return ""
        why = f"{left.key}: {self.why_not(left)}"
        self.undo_to(before)
        return why

    def cordon(self, row: int) -> None:
        """Make the node accept no more pods."""
        self._undo.append(partial(self.open.__setitem__, row, self.open[row]))
        self.open[row] = False

    def savepoint(self) -> int:
        """The number of changes made so far, for ``undo_to``."""
        return len(self._undo)

    def undo_to(self, savepoint: int) -> None:
        """Undo all later changes: placements, removals and cordons."""
        while len(self._undo) > savepoint:
            self._undo.pop()()

    def why_not(self, item: Item) -> str:
        """Why the pod fits nowhere: the most frequent reason among nodes that accept pods. For nodes allowed
        by its rules, resources that Stowage does not place come first, then insufficient resources; next, the
        rule that excludes other suitable nodes, cordoned or not; then other problems of allowed nodes, and
        the reasons others are closed."""
        codes, _ = self.evaluate(item)
        if self._has_room(item, codes).any():
            return Reason.GANG_DOES_NOT_FIT.text if item.key in self._without_gang else ONLY_WEAKER
        resources = {name for name, _ in item.request.devices}
        if resources & self.state.devices.extended_resources:
            return FROM_SLICES
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
        if rules := Counter(filter(None, found)):  # of selected nodes before others
            return min(
                rules, key=lambda why: (why in (Rule.OTHER_SELECTOR, Rule.OTHER_AFFINITY), -rules[why])
            )
        refusing = allowed & (codes != Reason.FITS)
        if refusing.any():
            offering = refusing & (codes != Reason.NO_SUCH_RESOURCE)
            return _most_frequent(codes[offering if offering.any() else refusing])
        closed = [rejection(self.state.nodes[name]) or why for name, why in self.apart.items()]
        return max(closed, key=closed.count, default=_NO_PLACE)

    def place_waiting(self) -> dict[str, str]:
        """Place the pending pods in kube-scheduler's order; returns the node of each that fits. Of a gang, as
        many members as must start together are placed, or none. Placed pods are movable like the others."""
        for _ in self.starting():
            pass
        placed = [item for item in self.waiting if item.key in self.held]
        self.movable |= {item.key: item for item in placed}
        return {item.key: self.node_of(item.key) for item in placed}

    def starting(self, among: Sequence[Item] = ()) -> Iterator[None]:
        """Place the pending pods, or those ``among`` them, one per iteration. Pods equal to one that does not
        fit are skipped."""
        waiting, nowhere = {item.key: item for item in self.waiting}, set[object]()
        for item in among or self.waiting:
            kind = item.request, item.pod.spec, id(item.rows)
            if item.key in self.held or kind in nowhere:
                continue
            self._start(item, waiting)
            if item.key not in self.held and self.state.gangs.gang_of(item.pod) is None:
                nowhere.add(kind)
            yield

    def _start(self, item: Item, waiting: Mapping[str, Item]) -> None:
        """Place the pod, with as many other members of its gang as must start with it."""
        gang = self.state.gangs.gang_of(item.pod) if self.state.gang_check else None
        if gang is None or gang.to_place < 2:
            self.place(item)
            return
        gangs, pods = self.state.gangs, self.state.pods
        others = gangs.still_to_start(gang, gang.to_place, pods.is_bound, but=item.key)
        if others.room:
            self.place(item)
            return
        with_gpus = [member.key for member in others.free if self.state.wants_gpu(member)]
        plain = len(others.free) - len(with_gpus)  # they fit wherever the others do
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
        """(N,) the nodes on offer that accept pods."""
        return on_offer(self.fleet, np.flatnonzero(~self.open).tolist())

    def figures(self) -> Fragmentation:
        """Free and whole GPUs, as counted by the census."""
        figures, _ = fragmentation(self.fleet, self.offered(), Beside())
        return reduce(with_node, self.only_for_claims.values(), figures)

    def free_nodes(self) -> int:
        """Number of nodes on offer whose GPUs are entirely free."""
        return int((idle_nodes(self.fleet.arrays) & self.offered()).sum())


def _most_frequent(codes: Codes) -> str:
    return Reason(int(np.bincount(codes).argmax())).text


def _placement(pod: Pod, fleet: Fleet, row: int, request: Request, gpus: tuple[int, ...]) -> Placement | None:
    """The pod with these GPUs, as if the sharing system had assigned them."""
    part, spec = placed_shares(fleet, row, request), fleet.specs[row]
    if part is None or spec is None:
        return None
    size = part.compute_milli, part.memory_mib, part.memory_milli, part
    claims = Claims(spec.sharing_resource, tuple(Claim(str(gpu), *size) for gpu in gpus))
    return Placement(pod.node_name, request, claims, priority=pod.priority, uid=pod.uid)
