"""Which nodes pods insist on: the sets of nodes that the demand mix tells apart.

A pod names labels that its node must have, and taints that its node may have. Room that it can use is scarcer
than other room, and the mix knows that by the set of nodes in its requests (``Request.node_set``); None is
what pods insist on that name no label and tolerate nothing. Every set makes the mix longer and each
answer slower, so only a few are told apart: those that the most GPUs are asked for on, first of all those
that say nothing but the GPU product. A pod that insists on a set beyond that counts as one that insists on
the product only, or on nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from extender.inventory.gpu_labels import PRODUCT_LABELS
from extender.k8s.affinity import Taint
from extender.k8s.node_filter import NO_REQUIREMENT, NodeRequirement
from extender.k8s.objects import Node
from packing.fleet.fleet import Fleet
from packing.model.request import Request

MOST_SETS = 16
MOST_CLASSES = 64
"""Different memberships of nodes in the sets. The fleet numbers them as kinds of nodes."""
_CANDIDATES = 2 * MOST_SETS
"""Requirements that are compared with the nodes; several may mean the same nodes."""
_MOST_MASKS = 4096
"""Masks that are remembered, by the values of the labels that count."""

Numbers = Mapping[NodeRequirement | None, int]
"""The bit of each requirement's set in the masks of nodes; None: of ``NO_REQUIREMENT``."""


class NodeSets:
    """Chooses the sets, and tells the fleet which node is in which."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers: Numbers = {}
        self._sets = _Sets(())
        self._masks: dict[str, int] = {}

    def put(self, node: Node) -> None:
        """A node came, or its labels changed; before its inventory is put into the fleet."""
        self._masks[node.name] = self._sets.mask(node.labels, node.taints)

    def remove(self, name: str) -> None:
        self._masks.pop(name, None)

    def choose(self, nodes: Mapping[str, Node], counts: Mapping[Request, float]) -> Callable[[], Numbers]:
        """A function that chooses the sets for requests that come so often (``Demand.counts``). It uses no
        shared state, so it may run in a thread."""
        gpus = self._fleet.arrays.compute_capacity[0].tolist()
        with_gpus = [nodes[name] for name, row in self._fleet.rows.items() if gpus[row] and name in nodes]
        if not any(request.node_set for request in counts) and not any(node.taints for node in with_gpus):
            return lambda: {}
        facts = [(node.labels, node.taints) for node in with_gpus]
        return lambda: choose_sets(_asked_for(counts), *zip(*facts, strict=True)) if facts else {}

    def adopt(self, numbers: Numbers, nodes: Iterable[Node]) -> None:
        """Tell these sets apart from now on. Raises TooMany, as ``Fleet.tell_apart``."""
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
    """One requirement for each set, by its bit."""

    def __init__(self, requirements: Sequence[NodeRequirement]) -> None:
        self.requirements = tuple(requirements)
        self._keys = _keys_of(requirements)
        self._mask_of_values: dict[object, int] = {}

    def mask(self, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> int:
        """The sets that a node with these labels and taints is in."""
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
    """The sets to tell apart on nodes with these ``labels`` and ``taints`` (none if not given); ``asked``:
    how many GPUs are asked for on each.

    A requirement that all nodes meet is no set. Requirements that the same nodes meet are one set.
    """
    ranked = sorted(asked, key=lambda r: (not _is_about_product(r), -asked[r], repr(r)))[:_CANDIDATES]
    keys = _keys_of(ranked)
    facts = zip(labels, taints or [()] * len(labels), strict=True)
    # Which nodes differ at all:
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
    """How many GPUs are asked for on the nodes of each requirement, and of its part about the product."""
    asked = Counter[NodeRequirement]()
    for request, count in counts.items():
        requirement = request.node_set or NO_REQUIREMENT
        if isinstance(requirement, NodeRequirement):
            for part in {requirement, requirement.only(PRODUCT_LABELS.__contains__)}:
                asked[part] += count * request.gpus  # type: ignore[assignment]
    return asked


def _is_about_product(requirement: NodeRequirement) -> bool:
    return bool(requirement.keys) and PRODUCT_LABELS.issuperset(requirement.keys)


def _keys_of(requirements: Iterable[NodeRequirement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for requirement in requirements for key in requirement.keys))
