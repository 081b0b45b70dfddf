"""When moves are worth what they cost, and how much they may cost in an hour.

A move ends a pod, and it goes on elsewhere from its last checkpoint. It loses GPU-seconds: the GPUs that it
holds x (the seconds since its last checkpoint + 300 for the restart), see ``gpu_seconds``. For a job that
waits, moves are right when all that they lose together is at most

    PRICE x GPUs of the job x seconds that it has waited while as many GPUs were free in all

so nobody loses more than what the job has lost already by waiting beside GPUs that were free in pieces. The
rule needs no estimate of how long anybody runs. In an hour all moves lose at most ``lost_share`` of the
GPU-seconds of the fleet, or ``least_lost`` where that is more.

Where small jobs queue, GPUs are short, and moves only change who waits: nobody moves for ``calm`` seconds
after a job of fewer than ``gpus`` has started that had waited ``small_wait`` seconds or longer.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import on_offer
from packing.model.request import WHOLE, Request

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class MoveRule:
    """``gpus``: smaller jobs get nothing. ``after``: seconds that a job must have waited beside free GPUs.
    ``price``: see above. ``moves``: the most pods that move for a job. ``age``: seconds that a pod has run
    before it moves. ``shield``: seconds for which a pod that has moved, or was evicted, does not move again.
    ``least_lost``: GPU-seconds an hour. ``small_wait``, ``calm``: seconds, see above."""

    gpus: float = 4.0
    after: float = 300.0
    price: float = 1.0
    moves: int = 4
    age: float = 600.0
    shield: float = 3600.0
    lost_share: float = 0.005
    least_lost: float = 2 * _HOUR
    small_wait: float = math.inf
    calm: float = _HOUR

    def may_lose(self, gpus: float, waited: float) -> float:
        """GPU-seconds that moves may lose for a job of so many GPUs that has waited so many seconds beside
        as many free ones; 0 for a job that is too small or has not waited long enough."""
        if gpus < self.gpus or waited < self.after:
            return 0.0
        return self.price * gpus * waited


class LossBudget:
    """What moves have lost in the last hour. Times in seconds of any one clock. ``spent``: the time of each
    loss and its GPU-seconds; what is older than an hour is removed."""

    def __init__(self, rule: MoveRule, spent: list[tuple[float, float]] | None = None) -> None:
        self._rule, self._spent = rule, [] if spent is None else spent

    def left(self, gpus: float, now: float) -> float:
        """GPU-seconds that may still be lost in a fleet of so many GPUs."""
        self._spent[:] = [(at, lost) for at, lost in self._spent if at > now - _HOUR]
        most = max(self._rule.lost_share * gpus * _HOUR, self._rule.least_lost)
        return most - sum(lost for _, lost in self._spent)

    def spend(self, lost: float, now: float) -> None:
        """Moves have lost so many GPU-seconds."""
        self._spent.append((now, lost))


class SmallWaits:
    """Whether small jobs have waited for long lately. Times in seconds of any one clock. A job counts when it
    starts, so one that waits for what is not there holds up nobody."""

    def __init__(self, rule: MoveRule) -> None:
        self._rule, self._last = rule, -math.inf

    def started(self, gpus: float, waited: float, now: float) -> None:
        """A job of so many GPUs has started after so many seconds."""
        if gpus < self._rule.gpus and waited >= self._rule.small_wait:
            self._last = now

    def lately(self, now: float) -> bool:
        """Whether nobody should move now."""
        return now - self._last < self._rule.calm


class WaitClock:
    """For how long each job has waited while as many GPUs were free in all as it asks for."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, float, bool]] = {}  # seconds, until when, whether it counts on

    def look(self, job: str, now: float, *, enough: bool) -> float:
        """The seconds up to ``now``. ``enough``: whether as many GPUs are free from now on."""
        seconds, until, counts = self._jobs.get(job, (0.0, now, False))
        seconds += (now - until) * counts
        self._jobs[job] = seconds, now, enough
        return seconds

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all others."""
        self._jobs = {job: known for job, known in self._jobs.items() if job in jobs}


def free_pieces(fleet: Fleet, request: Request) -> npt.NDArray[np.int64]:
    """(N,) how many of the devices or shares that the request asks for are free on each node that takes pods,
    whether or not so many are together, and whatever CPU and memory are left."""
    arrays = fleet.arrays
    usable = (gpu_sizes(fleet, request) > 0) & on_offer(fleet)
    usable &= fleet.names.allowed(request)[arrays.model] > 0
    free = np.zeros(arrays.capacity, np.int64)
    for name, _ in request.devices:
        if (resource := fleet.names.resources.get(name)) is not None:
            free += np.maximum(arrays.free_devices[resource], 0)
    if (part := request.shares) is not None:
        memory = part.memory_mib + part.memory_milli * arrays.memory_capacity / WHOLE
        fits = (arrays.divisible > 0) & (arrays.compute >= part.compute_milli) & (arrays.memory >= memory)
        free += fits.sum(axis=0)
    return np.where(usable, free, 0)
