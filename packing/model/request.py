"""The request of one pod in normalized form: everything that ``packing`` knows about a pod."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import Literal

_SEPARATORS = re.compile("[-_ ]+")

WHOLE = 1000
"""Compute of a whole GPU in milli-GPU; also the whole of a GPU's memory in thousandths."""
MOST = (1 << 63) - 1
"""Cap on CPU milli and bytes of memory: the largest Kubernetes quantity."""
MOST_DEVICES = 1 << 30
"""Cap on GPUs, devices, and MiB of one GPU: no node has more."""

SeparateGpus = Literal["ignore", "prefer", "require"]
"""Whether several counted devices of one container must be on different physical GPUs."""


def share_memory_mib(gpu_mib: int, memory_mib: int, memory_milli: int) -> int:
    """MiB that a share takes of a GPU with ``gpu_mib``: ``memory_mib`` plus thousandths of the GPU."""
    return memory_mib + gpu_mib * memory_milli // WHOLE


def part_milli(part: Fraction) -> int:
    """A fraction of a GPU, above 0 and at most 1, in thousandths: rounded up, but rounded down where that
    preserves the number that fit on one GPU. So 1/7 is 142, and 0.143 is 143.

    Only a fraction less than a thousandth below 1/2, 1/3, 1/4, ... is rounded down, by less than a thousandth
    of a GPU.
    """
    up, together = math.ceil(part * WHOLE), 1 // part
    down = WHOLE // together
    return down if 0 < down < up and WHOLE // down == together else up


@dataclass(frozen=True, slots=True)
class Shares:
    """The same share of each of ``count`` different GPUs of one node.

    Memory is the sum of MiB and thousandths of the GPU's memory. ``count`` and ``memory_mib`` are capped at
    ``MOST_DEVICES``. ``Shares(k, 1000, memory_milli=1000)`` are k whole GPUs. ``resource`` is the extended
    resource that counts the shares: only nodes that share their GPUs under that name accept them.
    ``containers`` is the number of the pod's containers that request them; ``stacked`` is the same on fewer
    GPUs, which these containers share, None if they cannot. Each then counts as ``slots`` of the pods among
    which a GPU may be split. ``concurrent``: the pods of the GPU compute at the same time, not in turns. Both
    kinds never share a GPU.
    """

    count: int
    compute_milli: int
    memory_mib: int = 0
    memory_milli: int = 0
    resource: str = ""
    containers: int = 1
    stacked: Shares | None = None
    slots: int = 1
    concurrent: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"shares of {self.count} GPUs: must be at least one")
        if not (
            0 <= self.compute_milli <= WHOLE and 0 <= self.memory_milli <= WHOLE and self.memory_mib >= 0
        ):
            raise ValueError(f"a share must be between nothing and one GPU: {self}")
        if not (self.compute_milli or self.memory_mib or self.memory_milli):
            raise ValueError("a share must request compute or memory")
        for name in ("count", "memory_mib"):
            if getattr(self, name) > MOST_DEVICES:
                object.__setattr__(self, name, MOST_DEVICES)

    def mib_of(self, capacity_mib: int) -> int:
        """MiB that one share takes of a GPU with this much memory."""
        return share_memory_mib(capacity_mib, self.memory_mib, self.memory_milli)


@dataclass(frozen=True, slots=True)
class NameFilter:
    """A filter that permits names that are in every group of ``allow`` and not in ``deny``. Only the empty
    filter permits an unknown name ("")."""

    allow: tuple[frozenset[str], ...] = ()
    deny: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        """Whether a name is permitted (case-sensitive)."""
        if not name:
            return not (self.allow or self.deny)
        return all(name in group for group in self.allow) and name not in self.deny


def model_text(text: str) -> str:
    """The name of a GPU model, prepared for searching: in lower case, with "-" for each run of separators."""
    return _SEPARATORS.sub("-", text.lower())


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name of GPU models as users write it: ``words`` in lower case.

    A text contains it if the words occur there in sequence, with any separators or none between them, and no
    separator within a word. ``whole``: no letter or digit directly before or after the name.
    """

    words: tuple[str, ...]
    whole: bool = False

    @classmethod
    def of(cls, text: str, *, whole: bool = False) -> ModelName:
        """Parse a name. Raises ValueError if it contains no words."""
        words = tuple(filter(None, model_text(text).split("-")))
        if not words:
            raise ValueError("a model name that consists only of separators")
        return cls(words, whole)

    def found_in(self, text: str) -> bool:
        """Whether a ``model_text`` contains the name."""
        at = -1
        while (at := text.find(self.words[0], at + 1)) >= 0:
            if self._is_at(text, at):
                return True
        return False

    def _is_at(self, text: str, start: int) -> bool:
        end = start
        for word in self.words:
            end += end > start and text.startswith("-", end)
            if not text.startswith(word, end):
                return False
            end += len(word)
        beside = text[start - 1 : start] + text[end : end + 1]
        return not (self.whole and any(letter.isascii() and letter.isalnum() for letter in beside))


@dataclass(frozen=True, slots=True)
class Models:
    """A filter that permits GPU models that contain a name of every group in ``allow`` and none of ``deny``.
    Only the empty filter permits an unknown model ("")."""

    allow: tuple[frozenset[ModelName], ...] = ()
    deny: frozenset[ModelName] = frozenset()

    def permits(self, model: str) -> bool:
        """Whether a model is permitted. The time is linear in the names; ``model`` is a node's label."""
        if not (self.allow or self.deny):
            return True
        text = model_text(model)
        if not text.strip("-") or _any_in(self.deny, text):
            return False
        return all(_any_in(group, text) for group in self.allow)


def _any_in(names: Iterable[ModelName], text: str) -> bool:
    return any(name.found_in(text) for name in names if name.words[0] in text)


ANY = NameFilter()
ANY_MODEL = Models()


class _Hashed:
    """Caches the hash: requests have many fields and are looked up far more often than created."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Request(_Hashed):
    """CPU and memory (bytes) of a pod, and its GPU request in one or both of two forms.

    - ``devices``: counted devices behind a device plugin, by extended resource (``nvidia.com/gpu: 2``); the
      kubelet chooses the physical device.
    - ``shares``: fractions of GPUs, or whole ones, that are placed GPU by GPU.
    - ``models``: names of the allowed GPU models, ``None`` for any; ``products``: the same by names that the
      node's model or product must contain; ``uuids``: the GPUs that shares may use.
    - ``island``: the GPUs must be NVLink peers; ``scattered``: they need not be. If neither is set, peers are
      preferred.
    - ``cuda``: the CUDA version that the driver must support (12.4 is 12004), 0 for any.
    - ``together``: the most counted devices of one kind that a single container requests.
    - ``separate``: whether the devices of such a container must be on different physical GPUs; None: the
      fleet's default.
    - ``node_set``: the required set of nodes, which the fleet may distinguish (``Names.node_sets``); None for
      all nodes.
    - ``device_mib``: the minimum memory of each GPU, or fraction of one; ``whole``: each must be a whole GPU,
      neither a replica nor a MIG instance. None: unspecified.
    - ``mode``: a text that contains the names of the permitted modes of nodes, "" for any but
      ``FOR_MACHINES``; ``agents``: the sharing system whose agents must be ready on the node, "" for none.

    CPU and memory are capped at ``MOST``, and counts at ``MOST_DEVICES``, so that every request can be
    compared with the arrays.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: tuple[tuple[str, int], ...] = ()
    shares: Shares | None = None
    models: frozenset[str] | None = None
    island: bool = False
    products: Models = ANY_MODEL
    uuids: NameFilter = ANY
    cuda: int = 0
    together: int = 1
    mode: str = ""
    scattered: bool = False
    separate: SeparateGpus | None = None
    node_set: Hashable | None = None
    device_mib: int = 0
    whole: bool | None = None
    agents: str = ""

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise ValueError(f"negative CPU or memory: {self}")
        for name in ("cpu_milli", "memory_bytes"):
            if getattr(self, name) > MOST:
                object.__setattr__(self, name, MOST)
        if any(not 1 <= count <= MOST_DEVICES for _, count in self.devices):
            for name, count in self.devices:
                if count < 1:
                    raise ValueError(f"{name}: {count} requested, must be at least one")
            bounded = tuple((name, min(count, MOST_DEVICES)) for name, count in self.devices)
            object.__setattr__(self, "devices", bounded)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(_VALUES(self)))
            return self._hash

    @property
    def memory_mib(self) -> int:
        """Memory of the pod in MiB, rounded up."""
        return -(-self.memory_bytes >> 20)

    @property
    def gpus(self) -> int:
        """The total number of GPUs and counted devices of all kinds; at most ``MOST_DEVICES``."""
        counted = sum(count for _, count in self.devices)
        return min(counted + (self.shares.count if self.shares else 0), MOST_DEVICES)

    @property
    def stacked(self) -> Request | None:
        """The same request with ``Shares.stacked``; None if there is no such form."""
        part = self.shares.stacked if self.shares else None
        return replace(self, shares=part) if part else None

    @property
    def wants_gpu(self) -> bool:
        """Whether the pod requests any GPU."""
        return bool(self.devices or self.shares)


_VALUES = attrgetter(*(field.name for field in fields(Request)))


def whole_gpus(count: int, resource: str = "") -> Shares:
    """``count`` whole GPUs, placed GPU by GPU."""
    return Shares(count, WHOLE, memory_milli=WHOLE, resource=resource)
