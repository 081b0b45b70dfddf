"""The demand: the policy learns the requests of arriving pods, and statistics show the mix; and the sets of
nodes that the mix distinguishes.

Requests are learned only from the watch, never from calls of verbs: kube-scheduler makes many for one pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from extender.dialects.pod_request import request_or_none
from extender.inventory.gpu_labels import PRODUCT_LABELS
from extender.k8s.affinity import Taint
from extender.k8s.node_filter import NO_REQUIREMENT, NodeRequirement, node_requirement
from extender.k8s.objects import Node, Pod
from extender.untrusted.limits import NAME, TAUGHT_NAMES
from packing.cost.demand import Demand, Mix
from packing.fleet.arrays import ALMOST_WHOLE
from packing.fleet.feasibility import could_host
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import Beside
from packing.model.request import WHOLE, Request
from packing.policies.interface import Policy

SIZES = ("part", "1", "2", "3-4", "5-8", "9 or more")
"""GPUs that a pod requests; ``part``: less than one, such as a share, a replica or a MIG instance."""
_MOST_REQUESTS = 1000
"""Maximum number of requests for which it is cached whether a node could host them."""


class DemandLearner:
    """Shows each pod to the policy once: when the watch first shows it without scheduling gates or, if no
    node could host it then, when it is bound. Until the nodes are known, pods are deferred to ``start``.
    ``learned`` counts the pods that the policy has learned from; ``monitor`` holds their requests and
    statistics. ``stopped``: nothing more is learned.
    """

    def __init__(self, policy: Policy, fleet: Fleet) -> None:
        self._policy, self._fleet = policy, fleet
        self.learned = 0
        self.stopped = False
        self.monitor = DemandMonitor(fleet)
        self._started = False
        self._untaught: dict[str, None] = {}  # keys of pods, in order of arrival
        self._hostable: dict[Request, bool] = {}
        self._hostable_at = fleet.replaced

    def start(self, pods: Mapping[str, Pod]) -> None:
        """Learn from the pods that arrived before all nodes were known."""
        if not self._started:
            self._started = True
            for key in [*self._untaught]:
                self._learn(pods[key])

    def learn_from(self, pod: Pod, before: Pod | None) -> None:
        """Learn from a pod as the watch shows it; ``before``: the pod that it showed under this name until
        now."""
        if pod.terminated:
            self.forget(pod.key)
        elif before is None or before.uid != pod.uid:
            self._untaught[pod.key] = None
            self._learn(pod)
        elif (before.node_name, before.gates) != (pod.node_name, pod.gates):
            self._learn(pod)

    def forget(self, key: str) -> None:
        self._untaught.pop(key, None)

    def keep(self, keys: frozenset[str]) -> None:
        for key in self._untaught.keys() - keys:
            self.forget(key)

    def _learn(self, pod: Pod) -> None:
        if self.stopped or not self._started or pod.gates or pod.key not in self._untaught:
            return
        if (request := _typical_request(pod)) is None:
            self.forget(pod.key)
        elif self._can_be_hosted(request):
            self.forget(pod.key)
            if (required := node_requirement(pod)) is not None:
                request = replace(request, node_set=required)
            self._policy.observe(request)
            self.monitor.demand.observe(request)
            self.learned += 1

    def _can_be_hosted(self, request: Request) -> bool:
        """Whether some node could host it when empty. The policy reserves no room for requests that no node
        can meet."""
        if self._hostable_at != self._fleet.replaced or len(self._hostable) >= _MOST_REQUESTS:
            self._hostable.clear()
            self._hostable_at = self._fleet.replaced
        if request not in self._hostable:
            self._hostable[request] = could_host(self._fleet, request)
        return self._hostable[request]


def _typical_request(pod: Pod) -> Request | None:
    """The pod's request, if it includes GPUs and is short enough to be shared by other pods."""
    if (request := request_or_none(pod)) is None:
        return None
    names = [*request.products.allow, request.products.deny, *request.uuids.allow, request.uuids.deny]
    listed = sum(map(len, names)) + len(request.models or ())
    return request if request.wants_gpu and listed <= TAUGHT_NAMES and len(request.mode) <= NAME else None


class DemandMonitor:
    """Counts the requests that the policy learns from in ``demand``, with the same half-life, whatever the
    policy does with them."""

    def __init__(self, fleet: Fleet) -> None:
        self.demand = Demand()
        self._expected: dict[Request, float] = {}
        self._planned: dict[Request, float] = {}
        self._fleet = fleet

    def expect(self, prior: Mix | None) -> None:
        """Start with the demand of the settings, None if they have none."""
        if prior is not None:
            self.demand = Demand(prior=prior)
            self._expected = self._shares()

    def planned(self) -> None:
        """Record that the policy plans with the present demand."""
        self._planned = self._shares()

    @property
    def moved_since_plan(self) -> float:
        """Shift of the mix since the last plan, from 0 to 1: half the sum of the differences."""
        return distance(self._shares(), self._planned) if self._planned else 0.0

    @property
    def moved_since_settings(self) -> float | None:
        """Shift of the mix from the demand of the settings; None if they have none."""
        return distance(self._shares(), self._expected) if self._expected else None

    def by_size(self) -> dict[str, float]:
        """Fraction of the pods for each of ``SIZES``; 0 before the first pod."""
        sums = dict.fromkeys(SIZES, 0.0)
        for request, share in self._shares().items():
            sums[size_of(gpus_of(self._fleet, request))] += share
        return sums

    def beside(self) -> Beside:
        """Mean CPU and host memory that pods request per GPU."""
        gpus = cpu = memory = 0.0
        for request, share in self._shares().items():
            gpus += share * gpus_of(self._fleet, request)
            cpu += share * request.cpu_milli
            memory += share * request.memory_mib
        return Beside(cpu / gpus, memory / gpus) if gpus else Beside()

    def _shares(self) -> dict[Request, float]:
        """Fraction of each kind of request. Requests that differ only in the set of nodes count as one kind,
        and memory is rounded up to GiB."""
        counts, shares = self.demand.counts(), Counter[Request]()
        total = sum(counts.values())
        for request, count in counts.items():
            gib = -(-request.memory_bytes >> 30)
            kind = replace(request, memory_bytes=gib << 30, node_set=None)
            shares[kind] += count / total  # type: ignore[assignment]
        return dict(shares)


def distance(first: Mapping[Request, float], other: Mapping[Request, float]) -> float:
    """The total variation distance of two distributions."""
    return sum(abs(first.get(kind, 0.0) - other.get(kind, 0.0)) for kind in first.keys() | other.keys()) / 2


def size_of(gpus: float) -> str:
    """The entry of ``SIZES`` for this number of GPUs."""
    if gpus < 1:
        return "part"
    limits = zip((1, 2, 4, 8), SIZES[1:], strict=False)
    return next((size for limit, size in limits if gpus <= limit), SIZES[-1])


def gpus_of(fleet: Fleet, request: Request) -> float:
    """GPUs that the request takes, on the nodes where it takes the most. A resource that no node has counts
    as one GPU per device."""
    arrays, gpus = fleet.arrays, 0.0
    for name, count in request.devices:
        number = fleet.names.resources.get(name)
        size = 1.0 if number is None else float(arrays.device_gpu[number].max(initial=0))
        gpus += count * (1.0 if size > ALMOST_WHOLE else size)
    if part := request.shares:
        largest = max(1.0, float(np.max(arrays.memory_capacity, initial=0)))
        memory = part.memory_milli / WHOLE + part.memory_mib / largest
        gpus += part.count * min(1.0, max(part.compute_milli / WHOLE, memory))
    return gpus


MOST_SETS = 16
MOST_CLASSES = 64
"""Maximum number of different memberships of nodes in the sets. The fleet numbers them as kinds of nodes."""
_CANDIDATES = 2 * MOST_SETS
"""Maximum number of requirements that are compared with the nodes; several may select the same nodes."""
_MOST_MASKS = 4096
"""Maximum number of cached masks, by the values of the relevant labels."""

Numbers = Mapping[NodeRequirement | None, int]
"""The bit of each requirement's set in the masks of nodes; None: of ``NO_REQUIREMENT``."""


class NodeSets:
    """Chooses sets of nodes that pods require, and assigns the nodes of the fleet to them.

    A pod requires labels of its node and tolerates taints. Room that it can use is scarcer than other room,
    and the mix accounts for that by the set of nodes in its requests (``Request.node_set``); None stands for
    pods that require no label and tolerate nothing. Every set makes the mix longer and each answer slower, so
    only a few are distinguished: those for which the most GPUs are requested, and first of all those that
    require nothing but the GPU product. A pod that requires any other set counts as one that requires only
    the product, or nothing.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers: Numbers = {}
        self._sets = _Sets(())
        self._masks: dict[str, int] = {}

    def put(self, node: Node) -> None:
        """Add a node or update its labels, before its inventory is put into the fleet."""
        self._masks[node.name] = self._sets.mask(node.labels, node.taints)

    def remove(self, name: str) -> None:
        self._masks.pop(name, None)

    def choose(self, nodes: Mapping[str, Node], counts: Mapping[Request, float]) -> Callable[[], Numbers]:
        """Return a function that chooses the sets for requests with these frequencies (``Demand.counts``). It
        uses no shared state, so it may run in a thread."""
        gpus = self._fleet.arrays.compute_capacity[0].tolist()
        with_gpus = [nodes[name] for name, row in self._fleet.rows.items() if gpus[row] and name in nodes]
        if not any(request.node_set for request in counts) and not any(node.taints for node in with_gpus):
            return lambda: {}
        facts = [(node.labels, node.taints) for node in with_gpus]
        return lambda: choose_sets(_asked_for(counts), *zip(*facts, strict=True)) if facts else {}

    def adopt(self, numbers: Numbers, nodes: Iterable[Node]) -> None:
        """Distinguish these sets from now on. Raises TooMany, as ``Fleet.tell_apart``."""
        if numbers == self._numbers:
            return
        first = dict[int, NodeRequirement]()
        for requirement, number in numbers.items():
            first.setdefault(number, requirement or NO_REQUIREMENT)
        sets, masks = _Sets([first[number] for number in range(len(first))]), self._masks
        if sets.requirements != self._sets.requirements:
            masks = {node.name: sets.mask(node.labels, node.taints) for node in nodes}
        self._fleet.tell_apart({name: number for name, number in numbers.items()}, masks)
        self._numbers, self._sets, self._masks = numbers, sets, masks


class _Sets:
    """One requirement for each set, in the order of the bits."""

    def __init__(self, requirements: Sequence[NodeRequirement]) -> None:
        self.requirements = tuple(requirements)
        self._keys = _keys_of(requirements)
        self._mask_of_values: dict[object, int] = {}

    def mask(self, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> int:
        """Mask of the sets that contain a node with these labels and taints."""
        values = tuple([labels.get(key) for key in self._keys]), taints
        mask = self._mask_of_values.get(values)
        if mask is None:
            mask = sum(r.matches(labels, taints) << number for number, r in enumerate(self.requirements))
            if len(self._mask_of_values) >= _MOST_MASKS:
                self._mask_of_values.clear()
            self._mask_of_values[values] = mask
        return mask


def choose_sets(
    asked: Mapping[NodeRequirement, float],
    labels: Sequence[Mapping[str, str]],
    taints: Sequence[tuple[Taint, ...]] = (),
) -> Numbers:
    """The sets to distinguish on nodes with these ``labels`` and ``taints`` (none if not given). ``asked``:
    number of GPUs requested with each requirement.

    A requirement that all nodes meet forms no set. Requirements that the same nodes meet form one set.
    """
    only_product = {r for r in asked if r.keys and PRODUCT_LABELS.issuperset(r.keys)}
    ranked = sorted(asked, key=lambda r: (r not in only_product, -asked[r], repr(r)))[:_CANDIDATES]
    keys = _keys_of(ranked)
    facts = zip(labels, taints or [()] * len(labels), strict=True)
    # Nodes that differ:
    combinations = {(*[of.get(key) for key in keys], tainted): (of, tainted) for of, tainted in facts}
    names_of: dict[tuple[bool, ...], list[NodeRequirement]] = {}
    everywhere = set[NodeRequirement]()
    for requirement in ranked:
        column = tuple([requirement.matches(*node) for node in combinations.values()])
        if all(column):
            everywhere.add(requirement)
        elif column in names_of:
            names_of[column].append(requirement)
        elif len(names_of) < MOST_SETS and len({*zip(*names_of, column, strict=True)}) <= MOST_CLASSES:
            names_of[column] = [requirement]
    sets = sorted((sorted(names, key=repr) for names in names_of.values()), key=repr)
    numbers: dict[NodeRequirement | None, int] = {}
    numbers |= {name: number for number, names in enumerate(sets) for name in names}
    for requirement in asked.keys() - numbers.keys() - everywhere:
        product = requirement.only(PRODUCT_LABELS.__contains__)
        if product in numbers:
            numbers[requirement] = numbers[product]
    if NO_REQUIREMENT in numbers:
        numbers[None] = numbers[NO_REQUIREMENT]
    return numbers


def _asked_for(counts: Mapping[Request, float]) -> Counter[NodeRequirement]:
    """Number of GPUs requested with each requirement, and with its part about the product."""
    asked = Counter[NodeRequirement]()
    for request, count in counts.items():
        requirement = request.node_set or NO_REQUIREMENT
        if isinstance(requirement, NodeRequirement):
            for part in {requirement, requirement.only(PRODUCT_LABELS.__contains__)}:
                asked[part] += count * request.gpus  # type: ignore[assignment]
    return asked


def _keys_of(requirements: Iterable[NodeRequirement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for requirement in requirements for key in requirement.keys))
