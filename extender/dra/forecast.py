"""Which devices kube-scheduler would give a pod's claims on a node, and what that would destroy.

The search is that of ``packing.first_fit``; here is what goes into it: the claims in the order of the pod,
their requests, classes, selectors, tolerations and constraints. Where anything is not understood, nothing is
foreseen. What is tested of a device, and in which order, is read from k8s.io/dynamic-resource-allocation
v0.36.3, ``structured/internal/incubating/allocator_incubating.go``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

from extender.dra.books import DeviceBooks, Labels, OnNode
from extender.dra.capacity import taken
from extender.dra.cel import NotUnderstood, Unclear
from extender.dra.extended import requests_for
from extender.dra.records import Agreement, Choice, Demand, DeviceClass, DeviceId, DeviceRequest
from extender.dra.values import Amount, Version
from extender.objects import Pod
from extender.quantity import QuantityError
from extender.taints import tolerated
from packing.first_fit import Amounts, NoAnswer, Option, Rule, Want, first_fit
from packing.room import Lost, Slot, lost, prices

_KEPT = 128
"""Different demands whose forecasts are kept, node by node: a cluster has few templates."""
_EFFORT = 100_000
"""Devices that are looked at for one question about all nodes: some tenths of a second."""
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
    def regret(self) -> float:
        """What it costs, in GPUs, that the pod's owner wants something else first: more than any waste."""
        return REGRET * self.rank


@dataclass(frozen=True, slots=True)
class _Found:
    """What the search found on a node, as long as ``stamp`` is the same."""

    stamp: Hashable
    forecast: Forecast
    lost: Lost = ()


class Forecaster:
    """Forecasts from these books. The searches are kept for as long as what they rest on stays."""

    def __init__(self, books: DeviceBooks) -> None:
        self._books = books
        self._effort = _EFFORT
        self._kept: OrderedDict[Demands, dict[str, _Found]] = OrderedDict()

    def demands(self, pod: Pod, resources: Sequence[str] = ()) -> Demands:
        """What those claims of a pod ask for that have no devices yet, and last the one that kube-scheduler
        makes for extended resources (``resources``). Raises ``Unclear``."""
        made = dict(pod.claims)
        names = [entry.claim or made.get(entry.name, "") for entry in pod.spec.claims]
        if not all(names) or len(set(names)) < len(names):
            raise NotUnderstood("a claim of the pod is not made yet, or comes twice")
        claims = [self._books.claims.get(f"{pod.namespace}/{name}") for name in names]
        demands = []
        for name, claim in zip(names, claims, strict=True):
            if claim is None:
                raise NotUnderstood(f"claim {name} is not known")
            if claim.grants is None:
                if claim.demand.unclear:
                    raise NotUnderstood(f"claim {name}: {claim.demand.unclear}")
                demands.append(claim.demand)
        if resources:
            classes = {name: self._class_for(name) for name in resources}
            demands.append(Demand(requests_for(pod.spec, classes)))
        return tuple(demands)

    def _class_for(self, resource: str) -> str:
        found = self._books.classes_for(resource)
        if len(found) != 1:  # kube-scheduler takes the newest
            raise NotUnderstood(f"{len(found)} device classes stand for {resource}")
        return found[0]

    def forecasts(
        self, pod: Pod, nodes: Iterable[tuple[str, Labels]], given: Iterable[Sequence[str]] = repeat(())
    ) -> list[Forecast]:
        """For a pod on nodes, each by name and labels, that give these extended resources out as devices."""
        self._effort = _EFFORT
        worth = prices(self._books.total, self._books.sizes)
        asked: dict[tuple[str, ...], tuple[Demands, dict[str, _Found]] | Forecast] = {}
        found = []
        for (name, labels), resources in zip(nodes, given, strict=False):
            question = asked.get(key := tuple(resources))
            if question is None:
                question = asked[key] = self._asked(pod, key)
            if isinstance(question, Forecast):
                found.append(question)
            else:
                found.append(_priced(self._found(*question, name, labels), worth))
        return found

    def _asked(self, pod: Pod, resources: Sequence[str]) -> tuple[Demands, dict[str, _Found]] | Forecast:
        """What is to be given, and what is known of that, or why there is nothing to foresee."""
        try:
            demands = self.demands(pod, resources)
        except (Unclear, QuantityError) as error:
            return Forecast(why=str(error))
        if not demands:
            return Forecast()
        return demands, self._kept_of(demands)

    def _kept_of(self, demands: Demands) -> dict[str, _Found]:
        kept = self._kept.setdefault(demands, {})
        self._kept.move_to_end(demands)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return kept

    def _found(self, demands: Demands, kept: dict[str, _Found], node: str, labels: Labels) -> _Found:
        on_node = self._books.on_node(node, labels)
        stamp = (on_node.stamp, self._books.version)
        known = kept.get(node)
        if known is not None and known.stamp == stamp:
            return known
        if self._effort <= 0:
            return _Found(stamp, Forecast(why="there is too much to search at once"))
        found = kept[node] = self._search(demands, on_node, stamp)
        return found

    def _search(self, demands: Demands, on_node: OnNode, stamp: Hashable) -> _Found:
        try:
            wants, rules = self._problem(demands, on_node)
            picks = first_fit(on_node.offer, wants, rules)
        except (Unclear, NoAnswer) as error:
            return _Found(stamp, Forecast(why=str(error)))
        except RecursionError:
            return _Found(stamp, Forecast(why="too many devices are asked for at once"))
        if picks is None:
            return _Found(stamp, Forecast(why="the node has no devices that fit", refused=True))
        gone = [pick.device for pick in picks if not wants[pick.want].options[pick.option].watches]
        forecast = Forecast(
            tuple(on_node.id_of(pick.device) for pick in picks),
            rank=sum(option for _, option in {(pick.want, pick.option) for pick in picks}),
        )
        return _Found(stamp, forecast, lost(on_node.room, on_node.room_without(gone, self._books.sizes)))

    def _problem(self, demands: Demands, on_node: OnNode) -> tuple[list[Want], list[Rule]]:
        wants: list[Want] = []
        rules: list[Rule] = []
        for number, demand in enumerate(demands):
            first = len(wants)
            wants += [
                Want([self._option(request, on_node) for request in choice.options], number)
                for choice in demand.choices
            ]
            rules += [_rule(agreement, demand.choices, first, on_node) for agreement in demand.agreements]
        return wants, rules

    def _option(self, request: DeviceRequest, on_node: OnNode) -> Option:
        of = self._books.classes.get(request.device_class)
        if of is None or of.problem:
            raise NotUnderstood(f"device class {request.device_class} is not known, or cannot be read")
        if request.count is None and (on_node.incomplete or self._books.unsound):
            raise NotUnderstood("all devices are asked for, and a pool is incomplete")
        return Option(
            request.count,
            partial(self._suits, request, of, on_node),
            partial(_admits, request, on_node),
            partial(_takes, dict(request.capacity), on_node),
            request.watching,
        )

    def _suits(self, request: DeviceRequest, of: DeviceClass, on_node: OnNode, index: int) -> bool:
        self._effort -= 1
        pool, place = on_node.places[index]
        if not all(pool.matches(place, selector) for selector in (*of.selectors, *request.selectors)):
            return False
        if unreadable := pool.devices[place].unreadable:
            raise NotUnderstood(f"{unreadable} of pool {pool.key.pool}")
        return True


def _priced(found: _Found, worth: Mapping[Slot, float]) -> Forecast:
    if not found.lost:
        return found.forecast
    cost = sum(worth.get(slot, 0.0) * n for slot, n in found.lost)
    return Forecast(found.forecast.devices, cost, found.forecast.rank)


def _admits(request: DeviceRequest, on_node: OnNode, index: int) -> bool:
    return tolerated(on_node.device(index).taints, request.tolerations)


def _takes(asked: Mapping[str, Amount], on_node: OnNode, index: int) -> Amounts | None:
    """What of the parts of a device; one that is given out whole has none, and has to be large enough."""
    pool, place = on_node.places[index]
    device = pool.devices[place]
    if not asked and not device.shared:
        return _NOTHING
    if (portions := taken(asked, device.named, device.policies)) is None:
        return None
    return {(pool.key, place, name): n for name, n in portions.items()} if device.shared else _NOTHING


def _rule(agreement: Agreement, choices: Sequence[Choice], first: int, on_node: OnNode) -> Rule:
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
