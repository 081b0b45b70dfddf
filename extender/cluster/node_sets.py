"""Sets of nodes that pods require, as far as the demand mix distinguishes them.

A pod requires labels of its node and tolerates taints. Room that it can use is scarcer than other room, and
the mix accounts for that by the set of nodes in its requests (``Request.node_set``); None stands for pods
that require no label and tolerate nothing. Every set makes the mix longer and each answer slower, so only a
few are distinguished: those for which the most GPUs are requested, and first of all those that require
nothing but the GPU product. A pod that requires any other set counts as one that requires only the product,
or nothing.
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
"""Maximum number of different memberships of nodes in the sets. The fleet numbers them as kinds of nodes."""
_CANDIDATES = 2 * MOST_SETS
"""Maximum number of requirements that are compared with the nodes; several may select the same nodes."""
_MOST_MASKS = 4096
"""Maximum number of cached masks, by the values of the relevant labels."""

Numbers = Mapping[NodeRequirement | None, int]
"""The bit of each requirement's set in the masks of nodes; None: of ``NO_REQUIREMENT``."""


class NodeSets:
    """Chooses the sets, and assigns the nodes of the fleet to them."""

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
