"""Which MIG layouts there can be, what one would serve, and when a node should get another.

A layout of a GPU is a set of instances whose windows of memory slices do not overlap
(``packing.model.gpu_catalogue.Geometry``).

A change takes a node out of service, and ends the pods that must leave it. It is right when the GPU-seconds
that this loses are at most

    price x sum over the pods that would start (GPUs x seconds that each has waited while as many were free)

A node that has changed lately pays for both changes. Nothing is taken from a demand that comes back: a node
gives up instances, or whole GPUs, only if the others have as many as were in use or asked for at the peak of
the last hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packing.model.gpu_catalogue import Placement
from packing.model.mig_instances import window

MOST_LAYOUTS = 512
"""Layouts of one GPU that are looked at. The six profiles of an H100 have about a hundred."""
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def layouts(placements: Mapping[str, Placement]) -> list[dict[str, int]]:
    """The layouts of a GPU for these profiles to which nothing can be added: instances by profile. At most
    ``MOST_LAYOUTS``."""
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
    best = [layout for layout in found if not any(_contains(other, layout) for other in found)]
    return [
        {name: n for name, n in zip(names, layout, strict=True) if n} for layout in sorted(best, reverse=True)
    ]


def _contains(larger: tuple[int, ...], counts: tuple[int, ...]) -> bool:
    return larger != counts and all(a >= b for a, b in zip(larger, counts, strict=True))


class Wanted(NamedTuple):
    """Pending pods that ask for the same: the devices of one by resource, the GPUs that one takes, and how
    many pods."""

    devices: tuple[tuple[str, int], ...]
    gpus: float
    pods: int


def served(devices: Mapping[str, int], wanted: Iterable[Wanted]) -> float:
    """The GPUs of the pods that find their devices on an empty node with these, the largest pods first: the
    most that the node can serve, as devices are all that is looked at."""
    left, gpus = dict(devices), 0.0
    for shape in sorted(wanted, key=lambda shape: -shape.gpus):
        count = min([shape.pods, *(left.get(name, 0) // amount for name, amount in shape.devices)])
        left |= {name: left[name] - amount * count for name, amount in shape.devices if count}
        gpus += shape.gpus * count
    return gpus


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """``seconds``: that a change takes a node out of service. ``price``: see above. ``after``: seconds that a
    pod must have waited. ``nodes``, ``per_hour``: the most that change at a time and in an hour. ``keep``:
    seconds for which a node keeps a layout that it was given."""

    seconds: float = 300.0
    price: float = 1.0
    after: float = 300.0
    nodes: int = 1
    per_hour: int = 4
    keep: float = _HOUR

    def lost(self, gpus: float, restarts: float, since_last: float) -> float:
        """GPU-seconds that a change of a node of so many GPUs loses. ``restarts``: GPU-seconds that the pods
        lose which leave it. ``since_last``: seconds since it was changed before."""
        return restarts + gpus * self.seconds * (2 if since_last < _DAY else 1)

    def is_worth(self, lost: float, starting: Iterable[tuple[float, float]]) -> bool:
        """``starting``: the GPUs of each pod that would start, and the seconds that it has waited."""
        return lost <= self.price * sum(gpus * waited for gpus, waited in starting if waited >= self.after)

    def may_begin(self, begun: Sequence[float], changing: int, now: float) -> bool:
        """Whether one more node may change. ``begun``: when changes began; ``changing``: nodes that do."""
        return changing < self.nodes and sum(abs(now - at) < _HOUR for at in begun) < self.per_hour


class Peaks:
    """The most that was in use or asked for of each resource within the last hour, minute by minute. Times in
    seconds of any one clock."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[float, dict[str, int]]] = deque()

    def see(self, amounts: Mapping[str, int], now: float) -> None:
        """What is in use or asked for now."""
        if not self._minutes or now - self._minutes[-1][0] >= _MINUTE:
            self._minutes.append((now, {}))
        last = self._minutes[-1][1]
        last.update({name: max(n, last.get(name, 0)) for name, n in amounts.items()})
        while now - self._minutes[0][0] > _HOUR:
            self._minutes.popleft()

    def leaves_enough(
        self, total: Mapping[str, int], today: Mapping[str, int], then: Mapping[str, int]
    ) -> bool:
        """Whether a node may have ``then`` what it has ``today``: of ``total`` in all enough is left."""
        return all(
            total.get(name, 0) - count + then.get(name, 0)
            >= max((minute.get(name, 0) for _, minute in self._minutes), default=0)
            for name, count in today.items()
            if then.get(name, 0) < count
        )
