"""What is read from the state at each scrape. Importing this module loads no kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extender.cluster.failures import Part
from extender.verbs.recheck import Outcome

if TYPE_CHECKING:  # they load kernels
    from extender.cluster.census import Census


@dataclass(frozen=True, slots=True)
class Demand:
    """What pods ask for: ``learnt`` pods since the start, the part of them ``by_size``, how far the mix has
    ``moved`` (0 to 1) since what, and CPU (milli) and host memory (MiB) beside one GPU."""

    learnt: int = 0
    by_size: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)
    cpu_milli: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """The values. Counts "since the start" are those of the process."""

    nodes: int = 0
    pods: int = 0
    problems: int = 0
    overcommitted: int = 0  # nodes
    contradictions: int = 0  # since the start
    background_failures: int = 0  # since the start
    policy_failures: Mapping[Part, int] = field(default_factory=dict)  # since the start, by what failed
    rechecks: Mapping[Outcome, int] = field(default_factory=dict)  # since the start, by outcome
    assumed_pods: int = 0  # that the watch has not confirmed yet
    assumed_seconds: float = 0.0  # the age of the oldest
    synced: Mapping[str, bool] = field(default_factory=dict)  # by resource
    age_seconds: Mapping[str, float] = field(default_factory=dict)  # by resource
    closed_seconds: Mapping[str, float] = field(default_factory=dict)  # by resource
    watch_ends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Since the start, by resource and how."""
    census: Census | None = None
    disrupted_pods: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Since the start, by queue, reason and kind of owner."""
    gpu_seconds_lost: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by queue and reason
    gpus_by_queue: Mapping[str, float] = field(default_factory=dict)  # "" for pods without one
    now: float = 0.0  # Unix seconds
    demand: Demand = Demand()
    is_leader: bool | None = None  # None without leader election
