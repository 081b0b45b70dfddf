"""What one pod wants, normalised: the only thing the packing engine knows of a pod."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import reduce
from itertools import accumulate
from operator import or_

_SEPARATORS = re.compile("[-_ ]+")

WHOLE = 1000
"""Compute of a whole GPU in milli-GPU; also the whole of a GPU's memory in thousandths."""
MOST = (1 << 63) - 1
"""More CPU milli or bytes of memory than this count as this many: it is the largest Kubernetes quantity."""
MOST_DEVICES = 1 << 30
"""More GPUs, devices, or MiB of one GPU than this count as this many: no node has them."""
_MIB = 20
"""Bits of a MiB in bytes."""


@dataclass(frozen=True, slots=True)
class Shares:
    """``count`` different GPUs of one node, this much of each.

    Memory is asked for in MiB or in thousandths of the GPU's own memory (both add up). ``count`` and
    ``memory_mib`` are at most ``MOST_DEVICES``: what is more is cut.
    ``Shares(k, 1000, memory_milli=1000)`` are k whole GPUs. ``resource`` is the extended resource that counts
    them: only GPUs that are divided under that name take them ("" where there is but one kind).
    """

    count: int
    compute_milli: int
    memory_mib: int = 0
    memory_milli: int = 0
    resource: str = ""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"shares of {self.count} GPUs: at least one is needed")
        if not (
            0 <= self.compute_milli <= WHOLE and 0 <= self.memory_milli <= WHOLE and self.memory_mib >= 0
        ):
            raise ValueError(f"a share lies between nothing and one GPU: {self}")
        if not (self.compute_milli or self.memory_mib or self.memory_milli):
            raise ValueError("a share of nothing")
        for name in ("count", "memory_mib"):
            if getattr(self, name) > MOST_DEVICES:
                object.__setattr__(self, name, MOST_DEVICES)


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Names that will do: one of every group in ``allow``, and none of ``deny``. A name that is not known
    ("") does only where nothing is asked of it."""

    allow: tuple[frozenset[str], ...] = ()
    deny: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        """Whether a name is one of the names (which are compared as they are)."""
        if not name:
            return not (self.allow or self.deny)
        return all(name in group for group in self.allow) and name not in self.deny


class ModelText:
    """The name of a GPU's model, prepared for names to be looked for in it.

    ``letters`` is the text in lower case without separators; bit k of ``gaps`` is set where separators stood
    before letter k.
    """

    __slots__ = ("gaps", "letters")

    def __init__(self, text: str) -> None:
        self.letters, self.gaps = _without_separators(text)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name of GPU models as people write it: words with separators between them, in any letter case.

    It is found in a text where its words follow each other, with any separators between them or none, and
    none inside a word. ``whole``: no letter or digit directly before or after them.

    ``letters`` are the words in lower case, joined; bit k of ``joints`` is set where a word starts at letter
    k, the first one aside.
    """

    letters: str
    joints: int = 0
    whole: bool = False

    @classmethod
    def of(cls, text: str, *, whole: bool = False) -> ModelName:
        """The name that is written so. Raises ValueError if there is no word in it."""
        letters, gaps = _without_separators(text)
        if not letters:
            raise ValueError("a name of separators alone")
        return cls(letters, gaps & ((1 << len(letters)) - 2), whole)

    def found_in(self, text: ModelText) -> bool:
        """Whether it is somewhere in a text."""
        at = text.letters.find(self.letters)
        while at >= 0:
            if self._stands_at(text, at):
                return True
            at = text.letters.find(self.letters, at + 1)
        return False

    def _stands_at(self, text: ModelText, start: int) -> bool:
        """Whether separators and ends are right where the letters are found."""
        end = start + len(self.letters)
        inside = (1 << len(self.letters)) - 2
        if text.gaps >> start & inside & ~self.joints:
            return False
        return not self.whole or not (_adjoins(text, start, start - 1) or _adjoins(text, end, end))


def _without_separators(text: str) -> tuple[str, int]:
    """A text in lower case without separators, and before which of its letters some stood, as a mask."""
    words = _SEPARATORS.split(text.lower())
    ends = accumulate(map(len, words[:-1]))
    return "".join(words), reduce(or_, map((1).__lshift__, ends), 0)


def _adjoins(text: ModelText, place: int, neighbour: int) -> bool:
    """Whether a letter or digit is the direct neighbour of a place in a text."""
    if text.gaps >> place & 1 or not 0 <= neighbour < len(text.letters):
        return False
    letter = text.letters[neighbour]
    return letter.isascii() and letter.isalnum()


@dataclass(frozen=True, slots=True)
class Models:
    """GPU models that will do: those in which one name of every group in ``allow`` is found, and none of
    ``deny``. A model that is not known ("") does only where nothing is asked of it."""

    allow: tuple[frozenset[ModelName], ...] = ()
    deny: frozenset[ModelName] = frozenset()

    def permits(self, model: str) -> bool:
        """Whether a model will do. The time is linear in the names; ``model`` is a node's label."""
        if not (self.allow or self.deny):
            return True
        text = ModelText(model)
        if not text.letters:
            return False
        return all(_any_in(group, text) for group in self.allow) and not _any_in(self.deny, text)


def _any_in(names: Iterable[ModelName], text: ModelText) -> bool:
    return any(name.found_in(text) for name in names if name.letters in text.letters)


ANY = NameFilter()
ANY_MODEL = Models()


class _Hashed:
    """Remembers its hash: requests are looked up far more often than made, and have many fields."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Request(_Hashed):
    """CPU and memory (bytes) of a pod, and the GPU it asks for in one or more of three ways.

    ``devices``: counted devices behind a device plugin, by extended resource (``nvidia.com/gpu: 2``);
    which physical device it will be is the kubelet's choice.
    ``shares``: parts of GPUs, or whole ones, that are placed device by device.
    ``profiles``: MIG instances made on demand, by profile name.
    ``models``: names of the GPU models allowed, ``None`` for any. ``island``: the GPUs must be NVLink peers.
    ``products``: names that must be found in the model's or the product's name. ``uuids``: which GPUs shares
    may take. ``cuda``: the CUDA version that the driver must support (12.4 is 12004), 0 for any.
    ``together``: the most counted devices of one kind that a single container asks for. ``mode``: names of
    the ways in which GPUs may be divided for it, in any text, "" for any.

    CPU and memory are at most ``MOST``, each count at most ``MOST_DEVICES``: what is more is cut, so that no
    request is too large for the arrays that it is compared with.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: tuple[tuple[str, int], ...] = ()
    shares: Shares | None = None
    profiles: tuple[tuple[str, int], ...] = ()
    models: frozenset[str] | None = None
    island: bool = False
    products: Models = ANY_MODEL
    uuids: NameFilter = ANY
    cuda: int = 0
    together: int = 1
    mode: str = ""

    def __post_init__(self) -> None:
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise ValueError(f"negative CPU or memory: {self}")
        for name in ("cpu_milli", "memory_bytes"):
            if getattr(self, name) > MOST:
                object.__setattr__(self, name, MOST)
        for name in ("devices", "profiles"):
            counts = getattr(self, name)
            if any(not 1 <= count <= MOST_DEVICES for _, count in counts):
                object.__setattr__(self, name, tuple(_bounded(*one) for one in counts))

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # not asked before
            object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _FIELDS)))
            return self._hash

    @property
    def memory_mib(self) -> int:
        """Memory of the pod in MiB, rounded up."""
        return -(-self.memory_bytes >> _MIB)

    @property
    def gpus(self) -> int:
        """GPUs and counted devices that are asked for, all kinds together; at most ``MOST_DEVICES``."""
        counted = sum(count for _, count in self.devices)
        return min(counted + (self.shares.count if self.shares else 0), MOST_DEVICES)

    @property
    def wants_gpu(self) -> bool:
        """Whether any GPU is asked for."""
        return bool(self.devices or self.shares or self.profiles)


def _bounded(name: str, count: int) -> tuple[str, int]:
    if count < 1:
        raise ValueError(f"{name}: {count} asked for, at least one is needed")
    return name, min(count, MOST_DEVICES)


_FIELDS = tuple(field.name for field in fields(Request))


def share_memory_mib(gpu_mib: int, memory_mib: int, memory_milli: int) -> int:
    """MiB that a share takes of a GPU with ``gpu_mib``: ``memory_mib`` plus thousandths of the GPU."""
    return memory_mib + gpu_mib * memory_milli // WHOLE


def whole_gpus(count: int, resource: str = "") -> Shares:
    """``count`` whole GPUs, placed device by device."""
    return Shares(count, WHOLE, memory_milli=WHOLE, resource=resource)
