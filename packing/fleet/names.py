"""Index numbers for the names that nodes advertise, and which kinds of nodes a request may run on.

The numbers index the arrays. How many names there are is bounded; names that no node has any more are
forgotten when a bound is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping

import numpy as np
import numpy.typing as npt

from packing.model.request import Request

MOST_RESOURCES = 128
"""Extended resources of all nodes together. Real clusters have one or two for each MIG profile."""
MOST_KINDS = 512
"""Different nodes: by model, product and mode of their GPUs, and by the sets that they are in."""
MOST_SHARING_RESOURCES = 255
"""Resources that count the shares of GPUs: ``NodeArrays.sharing`` is a byte."""
_MOST_ALLOWED_BYTES = 1 << 20
"""Memory, roughly, of the texts that the answers of ``Names.allowed`` keep alive."""

NodeKind = tuple[str | None, str, str, int]
"""(model, products, mode) of a node's GPUs, and a mask of the sets that the node is in. There is a line for
each product if there are several."""


class TooMany(ValueError):
    """A node would take the fleet beyond one of its bounds; the text says which."""


class Names:
    """Numbers of the extended resources (``resources``), of the resources that count shares of GPUs
    (``sharing_resources``), and of kinds of nodes (places in ``model_names``, ``products``, ``modes`` and
    ``sets``).

    ``node_sets`` are the sets of nodes that are told apart, each with its bit in the masks of ``sets``; equal
    sets with different names have the same bit.
    """

    def __init__(self) -> None:
        self.grown = 0
        """Counts new numbers; a number may have meant another name before."""
        self.resources: dict[str, int] = {}
        self.resource_count = 0
        self.sharing_resources: dict[str, int] = {"": 0}
        self.model_names: list[str | None]
        self.products: list[str]
        self.modes: list[str]
        self.sets: list[int]
        self._kinds: dict[NodeKind, int]
        self._forget_kinds()
        self.node_sets: Mapping[Hashable, int] = {}
        self._set_names: dict[int, Hashable] = {}
        self._allowed: dict[tuple[object, ...], npt.NDArray[np.uint8]] = {}
        self._allowed_bytes = 0

    def number_resources(self, names: Collection[str], in_use: Callable[[], set[str]]) -> list[int]:
        """Numbers of these resources. Raises TooMany."""
        missing = [name for name in dict.fromkeys(names) if name not in self.resources]
        if missing:
            if len(self.resources) + len(missing) > MOST_RESOURCES:
                keep = in_use() | set(names)
                kept = {name: index for name, index in self.resources.items() if name in keep}
                if len(kept) + len(missing) > MOST_RESOURCES:
                    raise TooMany(f"nodes advertise more than {MOST_RESOURCES} different resources")
                self.resources = kept
            vacant = sorted(set(range(self.resource_count)) - {*self.resources.values()})
            vacant += range(self.resource_count, self.resource_count + len(missing) - len(vacant))
            self.resource_count = max(self.resource_count, *(number + 1 for number in vacant))
            self.resources |= zip(missing, vacant, strict=False)
            self.grown += 1
        return [self.resources[name] for name in names]

    def number_sharing_resource(self, name: str) -> int:
        """The number of a resource that counts shares. Raises TooMany."""
        if name not in self.sharing_resources:
            if len(self.sharing_resources) >= MOST_SHARING_RESOURCES:
                raise TooMany(f"nodes share their GPUs under more than {MOST_SHARING_RESOURCES} resources")
            self.sharing_resources[name] = len(self.sharing_resources)
            self.grown += 1
        return self.sharing_resources[name]

    def number_kind(self, kind: NodeKind, in_use: Callable[[], set[int]]) -> int:
        """The number of a kind of node; ``in_use`` are the numbers that nodes have. Raises TooMany."""
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                if len(keep := in_use() | {0}) >= MOST_KINDS:
                    raise TooMany(f"nodes have more than {MOST_KINDS} different GPUs or sets")
                self._kinds = {kind: index for kind, index in self._kinds.items() if index in keep}
            self._kinds[kind] = index = min(set(range(len(self._kinds) + 1)) - {*self._kinds.values()})
            at = slice(index, index + 1)  # the place of a forgotten kind, or the end
            self.model_names[at], self.products[at], self.modes[at] = [kind[0]], [kind[1]], [kind[2]]
            self.sets[at] = [kind[3]]
            self.grown += 1
        return self._kinds[kind]

    def tell_apart(self, node_sets: Mapping[Hashable, int], *, renamed: bool) -> None:
        """Replace ``node_sets``. Unless the sets are only ``renamed``, all kinds of nodes are forgotten: each
        node must be numbered again."""
        self.node_sets, self._set_names = node_sets, {}
        for name, number in node_sets.items():
            self._set_names.setdefault(number, name)
        if not renamed:
            self._forget_kinds()
            self.grown += 1

    def _forget_kinds(self) -> None:
        self.model_names, self.products, self.modes, self.sets = [None], [""], [""], [0]
        self._kinds = {(None, "", "", 0): 0}

    def known_set(self, node_set: Hashable | None) -> Hashable | None:
        """The set if it is told apart, always by the first of its names; None if not."""
        number = self.node_sets.get(node_set)
        return None if number is None else self._set_names[number]

    def allowed(self, request: Request) -> npt.NDArray[np.uint8]:
        """For each kind of node 1 where the request may run, (M,); read only. A set of nodes that is not told
        apart permits all."""
        number = None if request.node_set is None else self.node_sets.get(request.node_set)
        key = self.grown, request.models, request.products, request.mode, number
        if (found := self._allowed.get(key)) is None:
            self._allowed_bytes += _size(request)
            if self._allowed_bytes > _MOST_ALLOWED_BYTES:
                self._allowed.clear()
                self._allowed_bytes = _size(request)
            kinds = zip(self.model_names, self.products, self.modes, strict=True)
            found = np.array([_allows(request, *kind) for kind in kinds], np.uint8)
            if number is not None:
                found &= np.array([mask >> number & 1 for mask in self.sets], np.uint8)
            self._allowed[key] = found
        return found


def _allows(request: Request, model: str | None, product: str, mode: str) -> bool:
    return (
        (request.models is None or model in request.models)
        and any(request.products.permits(" ".join(filter(None, (model, one)))) for one in product.split("\n"))
        and (not (request.mode and mode) or mode in request.mode)
    )


def _size(request: Request) -> int:
    """Bytes, roughly, of the texts that decide which models a request may run on."""
    names = [
        len(name.letters) for group in (*request.products.allow, request.products.deny) for name in group
    ]
    models = [len(name) for name in request.models or ()]
    return 512 + 256 * len(names) + sum(names) + 64 * len(models) + sum(models) + len(request.mode)
