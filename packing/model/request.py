"""The request of one pod in normalised form, which is all that ``packing`` knows of a pod."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Literal, NamedTuple

_SEPARATORS = re.compile("[-_ ]+")

WHOLE = 1000
"""Compute of a whole GPU in milli-GPU; also the whole of a GPU's memory in thousandths."""
MOST = (1 << 63) - 1
"""More CPU milli or bytes of memory than this count as this many; it is the largest Kubernetes quantity."""
MOST_DEVICES = 1 << 30
"""More GPUs, devices, or MiB of one GPU than this count as this many: no node has them."""

SeparateGpus = Literal["ignore", "prefer", "require"]
"""Whether several counted devices of one container are to be on different physical GPUs."""


def share_memory_mib(gpu_mib: int, memory_mib: int, memory_milli: int) -> int:
    """MiB that a share takes of a GPU with ``gpu_mib``: ``memory_mib`` plus thousandths of the GPU."""
    return memory_mib + gpu_mib * memory_milli // WHOLE


def part_milli(part: Fraction) -> int:
    """A part of a GPU, above 0 and at most 1, in thousandths: rounded up, but down where so many of them then
    share a GPU as do in truth. So 1/7 is 142, and 0.143 is 143.

    Only a part that is less than a thousandth below 1/2, 1/3, 1/4, ... counts less than it is, and that by
    less than a thousandth of a GPU.
    """
    up, together = math.ceil(part * WHOLE), 1 // part
    down = WHOLE // together
    return down if 0 < down < up and WHOLE // down == together else up


@dataclass(frozen=True, slots=True)
class Shares:
    """``count`` different GPUs of one node, this much of each.

    Memory is in MiB and in thousandths of the GPU's own memory, which add up. ``count`` and ``memory_mib``
    are cut to ``MOST_DEVICES``. ``Shares(k, 1000, memory_milli=1000)`` are k whole GPUs. ``resource`` is the
    extended resource that counts the shares: only nodes that share their GPUs under that name take them.
    ``containers`` of the pod request them; ``stacked`` is the same on fewer GPUs, which these containers
    share, None if they cannot. Each then counts as ``slots`` of the pods among which a GPU may be split.
    """

    count: int
    compute_milli: int
    memory_mib: int = 0
    memory_milli: int = 0
    resource: str = ""
    containers: int = 1
    stacked: Shares | None = None
    slots: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"shares of {self.count} GPUs: must be at least one")
        if not (
            0 <= self.compute_milli <= WHOLE and 0 <= self.memory_milli <= WHOLE and self.memory_mib >= 0
        ):
            raise ValueError(f"a share must be between nothing and one GPU: {self}")
        if not (self.compute_milli or self.memory_mib or self.memory_milli):
            raise ValueError("a share must ask for compute or memory")
        for name in ("count", "memory_mib"):
            if getattr(self, name) > MOST_DEVICES:
                object.__setattr__(self, name, MOST_DEVICES)

    def mib_of(self, capacity_mib: int) -> int:
        """MiB that one share takes of a GPU with so much memory."""
        return share_memory_mib(capacity_mib, self.memory_mib, self.memory_milli)


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Permits names that are in every group of ``allow`` and not in ``deny``. An unknown name ("") is
    permitted only by the empty filter."""

    allow: tuple[frozenset[str], ...] = ()
    deny: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        """Whether a name is permitted; letter case counts."""
        if not name:
            return not (self.allow or self.deny)
        return all(name in group for group in self.allow) and name not in self.deny


class ModelText(NamedTuple):
    """The name of a GPU's model, prepared for a search.

    ``letters`` is the text in lower case without separators; bit k of ``gaps`` is set if separators were
    before letter k.
    """

    letters: str
    gaps: int

    @classmethod
    def of(cls, text: str) -> ModelText:
        words = _SEPARATORS.split(text.lower())
        ends = accumulate(map(len, words[:-1]))
        return cls("".join(words), reduce(or_, map((1).__lshift__, ends), 0))


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name of GPU models as people write it: words with separators between them, in any letter case.

    A text contains it if the words follow each other there, with any separators or none between them, and no
    separator inside a word. ``whole``: no letter or digit directly before or after the name.

    ``letters`` are the words in lower case, joined; bit k of ``joints`` is set if a word other than the first
    starts at letter k.
    """

    letters: str
    joints: int = 0
    whole: bool = False

    @classmethod
    def of(cls, text: str, *, whole: bool = False) -> ModelName:
        """Parse a name. Raises ValueError if it has no word."""
        letters, gaps = ModelText.of(text)
        if not letters:
            raise ValueError("a model name of separators only")
        return cls(letters, gaps & ((1 << len(letters)) - 2), whole)

    def found_in(self, text: ModelText) -> bool:
        """Whether a text contains the name."""
        at = -1
        while (at := text.letters.find(self.letters, at + 1)) >= 0:
            if self._matches_at(text, at):
                return True
        return False

    def _matches_at(self, text: ModelText, start: int) -> bool:
        """Whether separators and ends match where the letters do."""
        end = start + len(self.letters)
        inside = (1 << len(self.letters)) - 2
        if text.gaps >> start & inside & ~self.joints:
            return False
        return not self.whole or not (_adjoins(text, start, start - 1) or _adjoins(text, end, end))


def _adjoins(text: ModelText, place: int, neighbour: int) -> bool:
    """Whether a letter or digit is directly beside a place in a text."""
    if text.gaps >> place & 1 or not 0 <= neighbour < len(text.letters):
        return False
    letter = text.letters[neighbour]
    return letter.isascii() and letter.isalnum()


@dataclass(frozen=True, slots=True)
class Models:
    """Permits GPU models that contain a name of every group in ``allow`` and none of ``deny``. An unknown
    model ("") is permitted only by the empty filter."""

    allow: tuple[frozenset[ModelName], ...] = ()
    deny: frozenset[ModelName] = frozenset()

    def permits(self, model: str) -> bool:
        """Whether a model is permitted. The time is linear in the names; ``model`` is a node's label."""
        if not (self.allow or self.deny):
            return True
        text = ModelText.of(model)
        if not text.letters:
            return False
        return all(_any_in(group, text) for group in self.allow) and not _any_in(self.deny, text)


def _any_in(names: Iterable[ModelName], text: ModelText) -> bool:
    return any(name.found_in(text) for name in names if name.letters in text.letters)


ANY = NameFilter()
ANY_MODEL = Models()


class _Hashed:
    """Keeps its hash: requests are looked up far more often than made, and have many fields."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Request(_Hashed):
    """CPU and memory (bytes) of a pod, and the GPU that it asks for in one or both of two ways.

    - ``devices``: counted devices behind a device plugin, by extended resource (``nvidia.com/gpu: 2``); the
      kubelet chooses the physical device.
    - ``shares``: parts of GPUs, or whole ones, that are placed GPU by GPU.
    - ``models``: names of the GPU models allowed, ``None`` for any; ``products``: the same by names that the
      node's model or product must contain; ``uuids``: the GPUs that shares may take.
    - ``island``: the GPUs must be NVLink peers; ``scattered``: they need not be. Otherwise they should be.
    - ``cuda``: the CUDA version that the driver must support (12.4 is 12004), 0 for any.
    - ``together``: the most counted devices of one kind that a single container asks for.
    - ``separate``: whether the devices of such a container are to be on different physical GPUs; None: as the
      fleet says.
    - ``node_set``: the set of nodes that it insists on, one that the fleet may know (``Names.node_sets``);
      None for all nodes.
    - ``device_mib``: the memory that each GPU, or part of one, must have at least; ``whole``: each must be a
      whole GPU, neither a replica nor a MIG instance. None: the pod does not say.
    - ``mode``: a text that contains the names of the allowed ways to isolate shares, "" for any.

    CPU and memory are cut to ``MOST``, and counts to ``MOST_DEVICES``, so that every request fits the arrays
    that it is compared with.
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

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise ValueError(f"negative CPU or memory: {self}")
        for name in ("cpu_milli", "memory_bytes"):
            if getattr(self, name) > MOST:
                object.__setattr__(self, name, MOST)
        if any(not 1 <= count <= MOST_DEVICES for _, count in self.devices):
            object.__setattr__(self, "devices", tuple(_bounded(*device) for device in self.devices))

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _FIELDS)))
            return self._hash

    @property
    def memory_mib(self) -> int:
        """Memory of the pod in MiB, rounded up."""
        return -(-self.memory_bytes >> 20)

    @property
    def gpus(self) -> int:
        """The number of GPUs and counted devices, all kinds together; at most ``MOST_DEVICES``."""
        counted = sum(count for _, count in self.devices)
        return min(counted + (self.shares.count if self.shares else 0), MOST_DEVICES)

    @property
    def stacked(self) -> Request | None:
        """The same request with ``Shares.stacked``; None if there is no such form."""
        part = self.shares.stacked if self.shares else None
        return replace(self, shares=part) if part else None

    @property
    def chooses_gpus(self) -> bool:
        """Whether it may not have every GPU of a node that has one for it."""
        return self.uuids is not ANY or self.device_mib > 0

    @property
    def wants_gpu(self) -> bool:
        """Whether the pod asks for any GPU."""
        return bool(self.devices or self.shares)


def _bounded(name: str, count: int) -> tuple[str, int]:
    if count < 1:
        raise ValueError(f"{name}: {count} requested, must be at least one")
    return name, min(count, MOST_DEVICES)


_FIELDS = tuple(field.name for field in fields(Request))


def whole_gpus(count: int, resource: str = "") -> Shares:
    """``count`` whole GPUs, placed GPU by GPU."""
    return Shares(count, WHOLE, memory_milli=WHOLE, resource=resource)
