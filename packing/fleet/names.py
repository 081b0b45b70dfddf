"""Index numbers for the names that nodes advertise, and the kinds of nodes on which a request may run.

The numbers index the arrays. The number of names is limited; names that no node has anymore are forgotten
when a limit is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packing.model.node_spec import FOR_MACHINES
from packing.model.request import Request

MOST_RESOURCES = 128
"""Maximum number of extended resources of all nodes together. Real clusters have one or two per MIG
profile."""
MOST_KINDS = 512
"""Maximum number of kinds of nodes: by model, product and mode of their GPUs, and by the sets that contain
them."""
MOST_SHARING_RESOURCES = 255
"""Maximum number of resources that count the shares of GPUs: ``NodeArrays.sharing`` is a byte."""
MOST_ALLOWED_BYTES = 1 << 20
"""Approximate memory limit of the texts kept by the cached answers of ``Names.allowed``."""


class NodeKind(NamedTuple):
    """The properties of a node that decide whether a request may run there: model, products (one per line if
    there are several) and mode of its GPUs, a mask of the sets that contain the node, its ready agents."""

    model: str | None = None
    products: str = ""
    mode: str = ""
    sets: int = 0
    agents: frozenset[str] = frozenset()


class TooMany(ValueError):
    """A node would exceed one of the fleet's limits, which the text names."""


class Names:
    """Numbers of the extended resources (``resources``), of the resources that count shares of GPUs
    (``sharing_resources``), and of kinds of nodes (places in ``kinds``).

    ``node_sets`` are the distinguished sets of nodes, each with its bit in ``NodeKind.sets``; equal sets with
    different names have the same bit.
    """

    def __init__(self) -> None:
        self.grown = 0
        """Number of assignments of new numbers; a number may be reused for another name."""
        self.resources: dict[str, int] = {}
        self.resource_count = 0
        self.sharing_resources: dict[str, int] = {"": 0}
        self.kinds = [NodeKind()]
        self.modes = ""
        """The modes of the known kinds, as the ``mode`` of a request that permits them all."""
        self._numbers = {NodeKind(): 0}
        self.node_sets: Mapping[Hashable, int] = {}
        self._set_names: dict[int, Hashable] = {}
        self._allowed: dict[tuple[object, ...], npt.NDArray[np.uint8]] = {}
        self._allowed_bytes = 0

    def number_resources(self, names: Collection[str], in_use: Callable[[], set[str]]) -> list[int]:
        """The numbers of these resources. Raises TooMany."""
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
        """The number of a kind of node; ``in_use`` are the numbers of present nodes. Raises TooMany."""
        if kind not in self._numbers:
            if len(self._numbers) >= MOST_KINDS:
                if len(keep := in_use() | {0}) >= MOST_KINDS:
                    raise TooMany(f"nodes have more than {MOST_KINDS} different GPUs or sets")
                self._numbers = {kind: index for kind, index in self._numbers.items() if index in keep}
            self._numbers[kind] = index = min(set(range(len(self._numbers) + 1)) - {*self._numbers.values()})
            self.kinds[index : index + 1] = [kind]  # in place of a forgotten kind, or at the end
            self.modes = ", ".join(sorted({kind.mode for kind in self.kinds}))
            self.grown += 1
        return self._numbers[kind]

    def tell_apart(self, node_sets: Mapping[Hashable, int], *, renamed: bool) -> None:
        """Replace ``node_sets``. Unless the sets are only ``renamed``, all kinds of nodes are forgotten: each
        node must be numbered again."""
        self.node_sets, self._set_names = node_sets, {}
        for name, number in node_sets.items():
            self._set_names.setdefault(number, name)
        if not renamed:
            self.kinds, self._numbers = [NodeKind()], {NodeKind(): 0}
            self.grown += 1

    def known_set(self, node_set: Hashable | None) -> Hashable | None:
        """The distinguished set under the first of its names; None if the set is not distinguished. A request
        without a required set (None) also has one if it may not run everywhere."""
        number = self.node_sets.get(node_set)
        return None if number is None else self._set_names[number]

    def allowed(self, request: Request) -> npt.NDArray[np.uint8]:
        """(M,) 1 for each kind of node on which the request may run; read only. A set of nodes that is not
        distinguished permits all."""
        number = None if request.node_set is None else self.node_sets.get(request.node_set)
        key = self.grown, request.models, request.products, request.mode, request.agents, number
        if (found := self._allowed.get(key)) is None:
            self._allowed_bytes += _size(request)
            if self._allowed_bytes > MOST_ALLOWED_BYTES:
                self._allowed.clear()
                self._allowed_bytes = _size(request)
            found = np.array([allows(request, kind) for kind in self.kinds], np.uint8)
            if number is not None:
                found &= np.array([kind.sets >> number & 1 for kind in self.kinds], np.uint8)
            self._allowed[key] = found
        return found


def allows(request: Request, kind: NodeKind) -> bool:
    """Whether the request may run on GPUs of this kind, without regard to sets of nodes."""
    names = [" ".join(filter(None, (kind.model, product))) for product in kind.products.split("\n")]
    return (
        (request.models is None or kind.model in request.models)
        and any(map(request.products.permits, names))
        and (kind.mode in request.mode or not (request.mode or kind.mode == FOR_MACHINES))
        and (not request.agents or request.agents in kind.agents)
    )


def _size(request: Request) -> int:
    """Approximate bytes of the texts that decide on which models a request may run."""
    groups = *request.products.allow, request.products.deny
    names = [sum(map(len, name.words)) for group in groups for name in group]
    models = [len(name) for name in request.models or ()]
    return 512 + 256 * len(names) + sum(names) + 64 * len(models) + sum(models) + len(request.mode)
