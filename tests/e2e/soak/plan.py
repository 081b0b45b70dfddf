"""Which fault begins when: drawn from a seed, without looking at the cluster.

Pods and faults have one common order: a fault begins when a certain number of pods has been created. So a
seed gives the same order of events on a fast and on a slow machine.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """How often a kind of fault is drawn, and how long it lasts in seconds: from shortest to longest."""

    weight: int
    shortest: float = 0.0
    longest: float = 0.0


KINDS = {
    "kill": Kind(4),
    "stop": Kind(5, 1, 20),
    "slow": Kind(5, 2, 8),
    "memory limit": Kind(2, 2, 6),
    "disk full": Kind(3, 2, 8),
    "start on a full disk": Kind(1),
    "clock jump": Kind(5, 1, 6),
    "api server killed": Kind(2),
    "api server stopped": Kind(3, 1, 5),
    "etcd restarted": Kind(2),
    "scheduler killed": Kind(2),
    "watch cut": Kind(8),
    "watch gone (410)": Kind(6),
    "watch late": Kind(6, 1, 8),
    "half-open connections": Kind(6, 3, 12),
    "watch without a head": Kind(5, 3, 15),
    "watch trickles": Kind(5, 3, 15),
    "cut off": Kind(6, 2, 15),
    "bindings fail": Kind(6, 2, 8),
    "node cordoned": Kind(4, 1, 5),
    "node not ready": Kind(4, 1, 5),
    "node deleted": Kind(4, 1, 4),
    "node re-partitioned": Kind(5, 1, 4),
    "node shrinks": Kind(5, 2, 8),
    "certificates rotated": Kind(3),
    "hostile pods": Kind(4, 2, 5),
    "hostile requests": Kind(6, 1, 4),
}
"""The faults, by the name that the report shows."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault. It begins after ``at_pod`` pods have been created; ``pick`` in [0, 1) chooses its target."""

    number: int
    at_pod: int
    kind: str
    lasts_s: float
    pick: float


def plan(seed: int, faults: int, pods: int, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Planned]:
    """The faults in their order, evenly among the pods: each kind once, then by weight."""
    draw = random.Random(f"faults {seed}")
    first = list(kinds)
    draw.shuffle(first)
    weights = [KINDS[kind].weight for kind in kinds]
    more = draw.choices(kinds, weights, k=max(0, faults - len(first)))
    gap = pods / (faults + 1)
    return [
        Planned(
            number,
            round(gap * (number + draw.uniform(0.6, 1.4))),
            kind,
            round(draw.uniform(KINDS[kind].shortest, KINDS[kind].longest), 2),
            draw.random(),
        )
        for number, kind in enumerate((first + more)[:faults])
    ]
