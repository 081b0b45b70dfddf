"""NVLink islands: groups of a node's GPUs that are all-pairs peers.

An island is a group in which every GPU has a direct NVLink path to every other one. A connected component is
not sufficient: the eight GPUs of a DGX-1V are one component, but only ``0-3`` and ``4-7`` are islands.
"""

from __future__ import annotations

import re
from functools import lru_cache

from packing.model.node_spec import MOST_GPUS

Islands = tuple[tuple[int, ...], ...]

_ITEM = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)
_LONGEST = 256
"""Maximum length of the label form. 64 GPUs in groups of two take 181 characters; a label has 63."""


def parse_islands(value: str) -> Islands:
    """Parse the label form: ``0-7``, ``0.1_2.3``, ``0.1.3-7`` or ``none``.

    ``_`` separates groups and ``.`` items; ``-`` denotes a range. Raises ValueError if it is malformed, or
    names a GPU twice or a GPU above 63.
    """
    if value == "none":
        return ()
    if len(value) > _LONGEST:
        raise ValueError(f"islands: more than {_LONGEST} characters")
    islands = tuple(
        tuple(g for item in group.split(".") for g in _item(item, value)) for group in value.split("_")
    )
    named = [gpu for island in islands for gpu in island]
    if len(set(named)) != len(named):
        raise ValueError(f"islands {value!r}: a GPU is named twice")
    return islands


def reference_islands(gpus: int, island: int) -> Islands:
    """The islands of ``gpus`` GPUs in the vendor's reference design: consecutive groups of ``island``."""
    if island < 2:
        return ()
    groups = (tuple(range(first, min(first + island, gpus))) for first in range(0, gpus, island))
    return tuple(group for group in groups if len(group) > 1)


@lru_cache(maxsize=4096)
def sure_peers(groups: tuple[int, ...], free: int, together: tuple[int, ...] = ()) -> int:
    """Number of free devices that are guaranteed to be in one group, wherever a device plugin has placed the
    pods.

    ``groups``: devices of each group of peers; ``free``: total of free devices; ``together``: the devices of
    each pod that is known to be in one group. If every group had fewer than k free ones, at most the sum of
    min(size, k - 1) would be free, minus the devices of these pods within their groups.
    """
    if len(groups) == 1:
        return max(free, 0)
    for k in range(min(free, max(groups, default=0)), 1, -1):
        scattered = sum(min(size, k - 1) for size in groups)
        for count in together:  # of one group, which lower its part of the sum by at least this
            lowered = (min(size, k - 1) - min(size - count, k - 1) for size in groups if size >= count)
            scattered -= min(lowered, default=0)
        if free > scattered:
            return k
    return min(max(free, 0), 1)


def _item(item: str, value: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"islands {value!r}: {item!r} is neither a GPU index nor a range of them")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"islands {value!r}: the range {item!r} goes backwards")
    if last >= MOST_GPUS:
        raise ValueError(f"islands {value!r}: GPU {last} is above {MOST_GPUS - 1}")
    return range(first, last + 1)
