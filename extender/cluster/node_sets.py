"""Which nodes pods insist on: the sets of nodes that the demand mix tells apart.

A pod names labels that its node must have. Room that it can use is scarcer than other room, and the mix knows
that by the set of nodes in its requests (``Request.node_set``). Every set makes the mix longer and each
answer slower, so only a few are told apart: those that the most GPUs are asked for on, first of all those
that say nothing but the GPU product. A pod that insists on a set beyond that counts as one that insists on
the product only, or on nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from extender.inventory.gpu_labels import PRODUCT_LABELS
from extender.k8s.node_filter import NodeRequirement
from extender.k8s.objects import Node
from packing.cost.demand import Demand, Mix
from packing.fleet.fleet import Fleet
from packing.model.request import Request

MOST_SETS = 16
MOST_CLASSES = 64
"""Different memberships of nodes in the sets. The fleet numbers them as kinds of nodes."""
_CANDIDATES = 2 * MOST_SETS
"""Requirements that are compared with the nodes; several may mean the same nodes."""
_MOST_MASKS = 4096
"""Masks that are remembered, by the values of the labels that count."""

Numbers = Mapping[NodeRequirement, int]
"""The bit of each requirement's set in the masks of nodes."""


class NodeSets:
    """Learns what pods insist on, chooses the sets, and tells the fleet which node is in which."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._demand = fleet, Demand()
        self._numbers: Numbers = {}
        self._sets = _Sets(())
        self._masks: dict[str, int] = {}

    def expect(self, prior: Mix | None) -> None:
        """Before any pod arrives: the requests that are expected."""
        self._demand = Demand(prior=prior)

    def observe(self, request: Request) -> None:
        """A pod with this request arrives."""
        self._demand.observe(request)

    def put(self, node: Node) -> None:
        """A node came, or its labels changed; before its inventory is put into the fleet."""
        self._masks[node.name] = self._sets.mask(node.labels)

    def remove(self, name: str) -> None:
        self._masks.pop(name, None)

    def choose(self, nodes: Mapping[str, Node]) -> Callable[[], Numbers]:
        """A function that chooses the sets for what was learnt. It uses no shared state, so it may run in a
        thread."""
        counts = self._demand.counts()
        if not any(request.node_set for request in counts):
            return lambda: {}
        gpus = self._fleet.arrays.compute_capacity[0].tolist()
        labels = [nodes[name].labels for name, row in self._fleet.rows.items() if gpus[row] and name in nodes]
        return lambda: choose_sets(_asked_for(counts), labels)

    def adopt(self, numbers: Numbers, nodes: Iterable[Node]) -> None:
        """Tell these sets apart from now on. Raises TooMany, as ``Fleet.tell_apart``."""
        if numbers == self._numbers:
            return
        first = dict[int, NodeRequirement]()
        for requirement, number in numbers.items():
            first.setdefault(number, requirement)
        sets, masks = _Sets([first[number] for number in range(len(first))]), self._masks
        if sets.requirements != self._sets.requirements:
            masks = {node.name: sets.mask(node.labels) for node in nodes}
        self._fleet.tell_apart({name: number for name, number in numbers.items()}, masks)
        self._numbers, self._sets, self._masks = numbers, sets, masks


class _Sets:
    """One requirement for each set, by its bit."""

    def __init__(self, requirements: Sequence[NodeRequirement]) -> None:
        self.requirements = tuple(requirements)
        self._keys = _keys_of(requirements)
        self._mask_of_values: dict[tuple[str | None, ...], int] = {}

    def mask(self, labels: Mapping[str, str]) -> int:
        """The sets that a node with these labels is in."""
        values = tuple([labels.get(key) for key in self._keys])
        mask = self._mask_of_values.get(values)
        if mask is None:
            mask = sum(one.matches(labels) << number for number, one in enumerate(self.requirements))
            if len(self._mask_of_values) >= _MOST_MASKS:
                self._mask_of_values.clear()
            self._mask_of_values[values] = mask
        return mask


def choose_sets(asked: Mapping[NodeRequirement, float], labels: Collection[Mapping[str, str]]) -> Numbers:
    """The sets to tell apart on nodes with these ``labels``; ``asked``: how many GPUs are asked for on each.

    A requirement that all nodes meet is no set. Requirements that the same nodes meet are one set.
    """
    ranked = sorted(asked, key=lambda one: (not _is_about_product(one), -asked[one], repr(one)))[:_CANDIDATES]
    keys = _keys_of(ranked)
    combinations = {tuple([of.get(key) for key in keys]): of for of in labels}  # which nodes differ at all
    names_of: dict[tuple[bool, ...], list[NodeRequirement]] = {}
    everywhere = set[NodeRequirement]()
    for requirement in ranked:
        column = tuple([requirement.matches(of) for of in combinations.values()])
        if all(column):
            everywhere.add(requirement)
        elif column in names_of:
            names_of[column].append(requirement)
        elif len(names_of) < MOST_SETS and _classes([*names_of, column]) <= MOST_CLASSES:
            names_of[column] = [requirement]
    sets = sorted((sorted(names, key=repr) for names in names_of.values()), key=repr)
    numbers = {name: number for number, names in enumerate(sets) for name in names}
    for requirement in asked.keys() - numbers.keys() - everywhere:
        product = requirement.only(PRODUCT_LABELS.__contains__)
        if product in numbers:
            numbers[requirement] = numbers[product]
    return numbers


def _asked_for(counts: Mapping[Request, float]) -> Counter[NodeRequirement]:
    """How many GPUs are asked for on the nodes of each requirement, and of its part about the product."""
    asked = Counter[NodeRequirement]()
    for request, count in counts.items():
        requirement = request.node_set
        if isinstance(requirement, NodeRequirement):
            product = requirement.only(PRODUCT_LABELS.__contains__)
            for one in {requirement, product} - {None}:
                asked[one] += count * request.gpus  # type: ignore[index, assignment]
    return asked


def _classes(columns: Sequence[tuple[bool, ...]]) -> int:
    """How many different memberships there are."""
    return len({*zip(*columns, strict=True)})


def _is_about_product(requirement: NodeRequirement) -> bool:
    return PRODUCT_LABELS.issuperset(requirement.keys)


def _keys_of(requirements: Iterable[NodeRequirement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for one in requirements for key in one.keys))
