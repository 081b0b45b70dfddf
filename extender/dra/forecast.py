"""Which devices kube-scheduler would give a pod's claims on a node, and what that would destroy.

The search is that of ``allocator``; here is what goes into it: the claims in the order of the pod, their
requests, classes, selectors, tolerations and constraints. Where anything is not understood, nothing is
foreseen. What is tested of a device, and in which order, is read from k8s.io/dynamic-resource-allocation
v0.36.3, ``structured/internal/incubating/allocator_incubating.go``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TypeAlias
from weakref import ref

from extender.dra.allocator import MOST, Amounts, NoAnswer, Option, Rule, Want, first_fit
from extender.dra.capacity import taken
from extender.dra.cel import Exhausted, Failed, Meter, NotUnderstood, Selector, Unclear, compiled
from extender.dra.device_cache import DeviceCache, Labels, NodeDevices
from extender.dra.device_slots import Lost, Slot, lost, prices
from extender.dra.extended_resources import requests_for
from extender.k8s.affinity import tolerated
from extender.k8s.objects import Pod
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.objects import (
    Demand,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceSubRequest,
)
from extender.k8s.resource_api.values import Amount, Version
from extender.untrusted.limits import (
    DEVICE_STEPS,
    FORECAST_STEPS,
    MOST_STEPS,
    NODE_STEPS,
    POD_CLAIMS,
    quoted,
    shorten,
)

_KEPT = 128
"""Different demands whose forecasts are kept, node by node: a cluster has few templates."""
_KEPT_SIZE = 32 << 20
"""Bytes of them, about."""
REGRET = 100.0
"""GPUs: what is wanted first decides, as it does in kube-scheduler's own score, which ours outweighs
(``computeScore`` of its plugin ``dynamicresources``, v1.36.3)."""
_NOTHING: Amounts = {}
Demands = tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The devices that the claims would get, in the order of their requests, and what that costs in GPUs.

    ``rank`` is how far down the lists are the alternatives (``firstAvailable``) that they come from: 0 where
    all are the first. Without devices, ``why`` there are none: kube-scheduler gives nothing on the node
    (``refused``), or nothing is known. Without ``why``, too, there is nothing left to give.
    """

    devices: tuple[DeviceId, ...] = ()
    cost: float = 0.0
    rank: int = 0
    why: str = ""
    refused: bool = False

    @property
    def first_available_penalty(self) -> float:
        """What it costs, in GPUs, that the pod's owner wants something else first: more than any waste."""
        return REGRET * self.rank


class _Refused(Exception):
    """kube-scheduler gives the pod nothing, on whichever node."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the search found on a node, as long as ``stamp`` is the same."""

    stamp: Hashable
    forecast: Forecast
    lost: Lost = ()


@dataclass(slots=True)
class _Answers:
    """What was found for the same demands, by node, and how many bytes that is, about."""

    found: dict[str, _Found] = field(default_factory=dict)
    lost: dict[Lost, Lost] = field(default_factory=dict)  # nodes alike lose the same: one object for all
    tried: dict[str, Hashable] = field(default_factory=dict)  # stamps of nodes for which the steps ran out
    size: int = 0
    kept: bool = True

    def put(self, node: str, found: _Found) -> int:
        """Keep it; by how much the size grows."""
        before = self.size
        self.size += 400 + 100 * len(found.forecast.devices)
        if found.lost not in self.lost:
            self.size += 150 * len(found.lost)
        shared = self.lost.setdefault(found.lost, found.lost)
        self.found[node] = _Found(found.stamp, found.forecast, shared)
        return self.size - before


_Key: TypeAlias = tuple[ref[Demand], ...]


class _Kept:
    """Answers for as long as the demands are there, at most ``_KEPT`` and ``_KEPT_SIZE`` of them."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Key, _Answers] = OrderedDict()
        self._size = 0

    def of(self, demands: Demands) -> _Answers:
        """What is known for these."""
        key = tuple(ref(demand, self._gone) for demand in demands)
        answers = self._answers.setdefault(key, _Answers())
        self._answers.move_to_end(key)
        if len(self._answers) > _KEPT:
            self._drop(next(iter(self._answers)))
        return answers

    def put(self, answers: _Answers, node: str, found: _Found) -> None:
        """Keep an answer among those that were asked for last, and make room for it."""
        if not answers.kept:
            return
        self._size += answers.put(node, found)
        while self._size > _KEPT_SIZE and self._answers:
            self._drop(next(iter(self._answers)))

    def _gone(self, demand: ref[Demand]) -> None:
        for key in [key for key in self._answers if any(one is demand for one in key)]:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        answers = self._answers.pop(key)
        self._size -= answers.size
        answers.kept = False


class AllocationSimulator:
    """Forecasts from these books. The searches are kept for as long as what they rest on stays."""

    def __init__(self, books: DeviceCache) -> None:
        self._books = books
        self._kept = _Kept()
        self._made: OrderedDict[Demand, None] = OrderedDict()  # for extended resources, the last ones

    def demands(self, pod: Pod, resources: Sequence[str] = ()) -> Demands:
        """What those claims of a pod ask for that have no devices yet, and last the one that kube-scheduler
        makes for extended resources (``resources``). Raises ``Unclear``."""
        if max(len(pod.spec.claims), len(resources)) > POD_CLAIMS:
            raise NotUnderstood(f"the pod has more than {POD_CLAIMS} claims or resources")
        made = dict(pod.claims)
        names = [entry.claim or made.get(entry.name, "") for entry in pod.spec.claims]
        if not all(names) or len(set(names)) < len(names):
            raise NotUnderstood("a claim of the pod is not made yet, or comes twice")
        claims = [self._books.claims.get(f"{pod.namespace}/{name}") for name in names]
        demands = []
        for name, claim in zip(names, claims, strict=True):
            if claim is None:
                raise self._missing(f"claim {quoted(name)}")
            if claim.grants is None:
                if claim.demand.unclear:
                    raise NotUnderstood(f"claim {quoted(name)}: {claim.demand.unclear}")
                demands.append(claim.demand)
        if resources:
            classes = {name: self._class_for(name) for name in resources}
            demands.append(Demand.of(requests_for(pod.spec, classes)))
        for demand in demands:
            self._check(demand)
        if resources:
            self._keep_made(demands[-1])
        return tuple(demands)

    def _keep_made(self, demand: Demand) -> None:
        self._made[demand] = None
        self._made.move_to_end(demand)
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)

    def _missing(self, what: str) -> Exception:
        """kube-scheduler does not try a pod before its claims and classes are there. Where nothing is known
        of devices at all, we may not be allowed to list them."""
        known = self._books.claims or self._books.classes or self._books.has_slices
        return _Refused(f"{what} does not exist") if known else NotUnderstood(f"{what} is not known")

    def _check(self, demand: Demand) -> None:
        """What kube-scheduler looks at before it looks at nodes (``validateDeviceClass`` of its plugin
        ``dynamicresources``, and ``Allocate`` of the allocator)."""
        for choice in demand.choices:
            for request in choice.options:
                if request.device_class not in self._books.classes:
                    raise self._missing(f"device class {quoted(request.device_class)}")
        least = sum(min((one.count or 0 for one in choice.options), default=0) for choice in demand.choices)
        if least > MOST:
            raise _Refused(f"a claim asks for more than {MOST} devices")

    def _class_for(self, resource: str) -> str:
        found = self._books.classes_for(resource)
        if len(found) != 1:  # kube-scheduler takes the newest
            raise NotUnderstood(f"{len(found)} device classes stand for {quoted(resource)}")
        return found[0]

    def forecasts(
        self, pod: Pod, nodes: Iterable[tuple[str, Labels]], given: Iterable[Sequence[str]] = repeat(())
    ) -> list[Forecast]:
        """For a pod on nodes, each by name and labels, that give these extended resources out as devices."""
        budget = _Budget()
        worth = prices(self._books.total, self._books.sizes)
        asked: dict[tuple[str, ...], _Question | Forecast] = {}
        found = []
        for (name, labels), resources in zip(nodes, given, strict=False):
            question = asked.get(key := tuple(resources))
            if question is None:
                question = asked[key] = self._asked(pod, key, budget)
            if isinstance(question, Forecast):
                found.append(question)
            else:
                found.append(_priced(self._found(question, name, labels), worth))
        return found

    def _asked(self, pod: Pod, resources: Sequence[str], budget: _Budget) -> _Question | Forecast:
        """What is to be given, and what is known of that, or why there is nothing to foresee."""
        try:
            demands = self.demands(pod, resources)
        except (Unclear, QuantityError, _Refused) as error:
            return _nothing(error)
        if not demands:
            return Forecast()
        if self._books.hidden:
            return Forecast(why=_HIDDEN)
        return _Question(demands, self._kept.of(demands), budget, self._books)

    def _found(self, question: _Question, node: str, labels: Labels) -> _Found:
        on_node = self._books.on_node(node, labels)
        stamp = (on_node.stamp, self._books.version)
        known = question.answers.found.get(node)
        if known is not None and known.stamp == stamp:
            return known
        question.budget.allow(NODE_STEPS + DEVICE_STEPS * len(on_node.places))
        found = question.search(node, on_node, stamp)
        if found is None:
            return _Found(stamp, Forecast(why="there is too much to search at once"))
        self._kept.put(question.answers, node, found)
        return found


_HIDDEN = "a claim whose allocation cannot be read may hold the devices"


def _nothing(error: Exception) -> Forecast:
    return Forecast(why=shorten(str(error)), refused=isinstance(error, Failed | _Refused))


class _Budget:
    """The steps of one forecast: so many for each node that it is about, and ``MOST_STEPS`` at most."""

    def __init__(self) -> None:
        self.meter = Meter(min(FORECAST_STEPS, MOST_STEPS))
        self._allowed = self.meter.left

    def allow(self, steps: int) -> None:
        """So many more."""
        steps = min(steps, MOST_STEPS - self._allowed)
        self._allowed += steps
        self.meter.left += steps

    @property
    def is_full(self) -> bool:
        """Whether there are nodes that did not get their steps."""
        return self._allowed >= MOST_STEPS


@dataclass(slots=True)
class _Question:
    """What a pod asks for, and what is known of it already."""

    demands: Demands
    answers: _Answers
    budget: _Budget
    books: DeviceCache
    selectors: dict[str, Selector | NotUnderstood] = field(default_factory=dict)

    def search(self, node: str, on_node: NodeDevices, stamp: Hashable) -> _Found | None:
        """What is found on a node; None where that may be found another time.

        That is so where there are more nodes than one forecast has steps for, and where the steps are used up
        for the first time: what selectors match is known the second time.
        """
        try:
            return self._search(on_node, stamp)
        except Exhausted as error:
            tried_before = self.answers.tried.get(node) == stamp
            self.answers.tried[node] = stamp
            return _Found(stamp, _nothing(error)) if tried_before and not self.budget.is_full else None

    def _search(self, on_node: NodeDevices, stamp: Hashable) -> _Found:
        if on_node.hidden:
            return _Found(stamp, Forecast(why=_HIDDEN))
        try:
            wants, rules = self._problem(on_node)
            picks = first_fit(on_node.offer, wants, rules, self.budget.meter.spend)
        except Exhausted:
            raise
        except (Unclear, NoAnswer) as error:
            return _Found(stamp, _nothing(error))
        except RecursionError:
            return _Found(stamp, Forecast(why="too many devices are asked for at once"))
        if picks is None:
            why = "the node has no devices that fit"
            return _Found(stamp, Forecast(why=why, refused=not on_node.incomplete))
        gone = [pick.device for pick in picks if not wants[pick.want].options[pick.option].watches]
        forecast = Forecast(
            tuple(on_node.id_of(pick.device) for pick in picks),
            rank=sum(option for _, option in {(pick.want, pick.option) for pick in picks}),
        )
        return _Found(stamp, forecast, lost(on_node.room, on_node.room_without(gone, self.books.sizes)))

    def _problem(self, on_node: NodeDevices) -> tuple[list[Want], list[Rule]]:
        wants: list[Want] = []
        rules: list[Rule] = []
        for number, demand in enumerate(self.demands):
            first = len(wants)
            wants += [
                Want([self._option(request, on_node) for request in choice.options], number)
                for choice in demand.choices
            ]
            for agreement in demand.agreements:
                self.budget.meter.spend(1 + len(on_node.places))
                rules.append(_rule(agreement, demand.choices, first, on_node))
        return wants, rules

    def _option(self, request: DeviceSubRequest, on_node: NodeDevices) -> Option:
        self.budget.meter.spend(4)
        of = self.books.classes[request.device_class]
        if of.problem:
            raise NotUnderstood(f"device class {quoted(request.device_class)} cannot be read")
        if request.count is None and (on_node.incomplete or self.books.unsound):
            raise NotUnderstood("all devices are asked for, and a pool is incomplete")
        return Option(
            request.count,
            partial(self._suits, request, of, on_node, {}),
            partial(self._admits, request, on_node),
            partial(self._takes, dict(request.capacity), on_node),
            request.watching,
        )

    def _suits(
        self,
        request: DeviceSubRequest,
        of: DeviceClass,
        on_node: NodeDevices,
        known: dict[int, bool],
        index: int,
    ) -> bool:
        """Whether a device is what is asked for. ``known`` is what was found before, by device."""
        if (found := known.get(index)) is None:
            found = known[index] = self._matches(request, of, on_node, index)
        return found

    def _matches(self, request: DeviceSubRequest, of: DeviceClass, on_node: NodeDevices, index: int) -> bool:
        pool, place = on_node.places[index]
        meter = self.budget.meter
        for selectors, of_class in ((of.selectors, True), (request.selectors, False)):
            for expression in selectors:
                meter.spend()
                selector = self._selector(expression)
                if not pool.matches(place, selector, meter, of_class=of_class):
                    return False
        if unreadable := pool.devices[place].unreadable:
            raise NotUnderstood(f"{unreadable} of pool {pool.key.pool}")
        return True

    def _selector(self, expression: str) -> Selector:
        found = self.selectors.get(expression)
        if found is None:
            try:
                found = compiled(expression, self.budget.meter)
            except NotUnderstood as error:  # also Exhausted: it would not be compiled for the next node
                found = error
            self.selectors[expression] = found
        if isinstance(found, NotUnderstood):
            raise found
        return found

    def _admits(self, request: DeviceSubRequest, on_node: NodeDevices, index: int) -> bool:
        taints = on_node.device(index).taints
        self.budget.meter.spend(len(taints) * len(request.tolerations) // 8)
        return tolerated(taints, request.tolerations)

    def _takes(self, asked: Mapping[str, Amount], on_node: NodeDevices, index: int) -> Amounts | None:
        """What of the parts of a device; one that is given out whole has none, and has to be large enough."""
        pool, place = on_node.places[index]
        device = pool.devices[place]
        if not asked and not device.shared:
            return _NOTHING
        self.budget.meter.spend(len(device.named) // 4)
        if (portions := taken(asked, device.named, device.policies)) is None:
            return None
        return {(pool.key, place, name): n for name, n in portions.items()} if device.shared else _NOTHING


def _priced(found: _Found, worth: Mapping[Slot, float]) -> Forecast:
    if not found.lost:
        return found.forecast
    cost = sum(worth.get(slot, 0.0) * n for slot, n in found.lost)
    return Forecast(found.forecast.devices, cost, found.forecast.rank)


def _rule(
    agreement: DeviceConstraint, choices: Sequence[DeviceRequest], first: int, on_node: NodeDevices
) -> Rule:
    members = frozenset(
        (first + number, option)
        for number, choice in enumerate(choices)
        for option, request in enumerate(choice.options)
        if not agreement.requests
        or choice.name in agreement.requests
        or (choice.ranked and f"{choice.name}/{request.name}" in agreement.requests)
    )
    domain, _, name = agreement.attribute.partition("/")
    values = [
        on_node.device(index).attributes.get(domain, {}).get(name) for index in range(len(on_node.places))
    ]
    return Rule([_comparable(value) for value in values], members, agreement.distinct)


def _comparable(value: object) -> Hashable | None:
    """Equal for values of one type that are written alike: 1 is not true, and versions are texts here."""
    if value is None:
        return None
    return type(value), value.text if isinstance(value, Version) else value
