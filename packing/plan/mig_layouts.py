"""The possible MIG layouts of a GPU, the demand that a layout would serve, and when to change the layout of a
node.

A layout of a GPU is a set of instances whose windows of memory slices do not overlap
(``packing.model.gpu_catalog.Geometry``).

A change takes a node out of service and ends the pods that must leave it. It is worthwhile if the GPU-seconds
that it loses are at most

    price x sum over the pods that would start (GPUs x seconds that each has waited while as many were free)

A node that changed recently pays for both changes. Nothing is taken away from recurring demand: a node gives
up instances, or whole GPUs, only if the other nodes have as many as were in use or requested at the peak of
the last hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packing.model.gpu_catalog import MigPlacement
from packing.model.mig_instances import window

MOST_LAYOUTS = 512
"""Maximum number of layouts of one GPU that are considered. The six profiles of an H100 have about a
hundred."""
_HOUR, _DAY = 3600.0, 86_400.0


def layouts(placements: Mapping[str, MigPlacement]) -> list[dict[str, int]]:
    """The maximal layouts of a GPU for these profiles, as instances by profile. At most ``MOST_LAYOUTS``."""
    names = sorted(placements)
    windows = [
        (name, window(start, placements[name].size)) for name in names for start in placements[name].starts
    ]
    found: dict[tuple[int, ...], None] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()

    def extend(taken: int, counts: tuple[int, ...]) -> None:
        if (taken, counts) in seen or len(found) >= MOST_LAYOUTS:
            return
        seen.add((taken, counts))
        is_full = True
        for name, mask in windows:
            if not taken & mask:
                is_full = False
                place = names.index(name)
                extend(taken | mask, (*counts[:place], counts[place] + 1, *counts[place + 1 :]))
        if is_full and any(counts):
            found[counts] = None

    extend(0, (0,) * len(names))

    def is_part(layout: tuple[int, ...], larger: tuple[int, ...]) -> bool:
        return larger != layout and all(a >= b for a, b in zip(larger, layout, strict=True))

    best = [layout for layout in found if not any(is_part(layout, other) for other in found)]
    return [
        {name: n for name, n in zip(names, layout, strict=True) if n} for layout in sorted(best, reverse=True)
    ]


class Wanted(NamedTuple):
    """Pending pods with the same request: the devices of one pod by resource, its GPUs, and the number of
    pods."""

    devices: tuple[tuple[str, int], ...]
    gpus: float
    pods: int


def served(devices: Mapping[str, int], wanted: Iterable[Wanted]) -> float:
    """GPUs of the pods that find their devices on an empty node with these ``devices``, the largest pods
    first. An upper limit of what the node can serve, as only devices are considered."""
    left, gpus = dict(devices), 0.0
    for shape in sorted(wanted, key=lambda shape: -shape.gpus):
        count = min([shape.pods, *(left.get(name, 0) // amount for name, amount in shape.devices)])
        left |= {name: left[name] - amount * count for name, amount in shape.devices if count}
        gpus += shape.gpus * count
    return gpus


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """``seconds``: how long a change takes a node out of service. ``price``: see above. ``after``: minimum
    seconds that a pod must have waited. ``nodes``, ``per_hour``: maximum number of simultaneous changes, and
    of changes per hour. ``keep``: seconds for which a node keeps a new layout."""

    seconds: float = 300.0
    price: float = 1.0
    after: float = 300.0
    nodes: int = 1
    per_hour: int = 4
    keep: float = _HOUR

    def lost(self, gpus: float, restarts: float, since_last: float) -> float:
        """GPU-seconds lost by a change of a node with this many GPUs. ``restarts``: GPU-seconds lost by the
        pods that must leave. ``since_last``: seconds since the node's previous change."""
        return restarts + gpus * self.seconds * (2 if since_last < _DAY else 1)

    def is_worth(self, lost: float, starting: Iterable[tuple[float, float]]) -> bool:
        """Whether the change is worth the loss. ``starting``: the GPUs of each pod that would start, and the
        seconds that it has waited."""
        return lost <= self.price * sum(gpus * waited for gpus, waited in starting if waited >= self.after)

    def may_begin(self, begun: Sequence[float], changing: int, now: float) -> bool:
        """Whether one more node may change. ``begun``: start times of earlier changes; ``changing``: number
        of nodes that are changing."""
        return changing < self.nodes and sum(abs(now - at) < _HOUR for at in begun) < self.per_hour
