"""The order in which gangs start.

kube-scheduler binds pod after pod, and bindings are observed with a delay: two gangs that start at the same
time might each get a part of the resources. So a gang waits for those that started before it. Anyone who may
create pods can declare gangs, so a namespace can hold others back with a limited number of gangs and for a
limited time, whatever their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from extender.k8s.objects import Pod
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import GANG_STARTS

_NEXT_ANSWER = 2.0
"""Seconds from the answer about one member of a gang to the answer about the next."""
_RETRIED = 12.0
"""Seconds within which kube-scheduler retries refused members (``podMaxBackoffSeconds`` is 10 by default), so
others wait for a gang that long from its first answer."""
_PATIENCE, _LONGEST_WAIT = 10.0, 20.0
"""Seconds from a gang's first refusal until it goes before those that start later, and until it waits for no
gang of that namespace."""
_AGAIN = 60.0
"""Seconds from the first answer or refusal until others, or the gang itself, wait again."""


@dataclass(slots=True)
class Start:
    """A gang that starts, or waits to start, and the ``scheduler`` that asked about it. In seconds of the
    clock: ``began``, its place in the order; ``until``, others wait for it until then, longer after another
    call; ``ends``, and until then at most; ``refused``, the first refusal for a gang of each namespace."""

    gang: str
    namespace: str
    priority: int
    scheduler: str
    began: float
    ends: float
    until: float = -math.inf
    refused: dict[str, float] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        return now >= min(self.until, self.ends)

    def refused_lately(self, now: float) -> dict[str, float]:
        """``refused`` within a minute, if kube-scheduler goes on asking."""
        return {name: at for name, at in self.refused.items() if now < min(self.until, at + _AGAIN)}


class GangStarts:
    """The gangs that start or wait. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._starts: BoundedMap[str, Start] = BoundedMap(1024)

    def answered(self, gang: str, pod: Pod) -> None:
        """Record that kube-scheduler will most likely bind this member of a gang that has not started."""
        start, now = self._start_of(gang, pod), self._clock()
        start.began, start.ends = min(start.began, now), min(start.ends, now + _RETRIED)
        start.until = max(start.until, now + _NEXT_ANSWER)
        self._limit(pod.namespace)

    def refused(self, gang: str, pod: Pod, first: str) -> None:
        """Record that this member waits for a gang of the namespace ``first``."""
        start, now = self._start_of(gang, pod), self._clock()
        start.refused = {first: now, **start.refused_lately(now)}
        start.until = now + _RETRIED
        self._limit(pod.namespace)

    def ended(self, gang: str) -> None:
        """Record that enough members run, or that the gang is gone."""
        self._starts.pop(gang)

    def before(self, gang: str, priority: int) -> list[Start]:
        """The gangs that start before this one: of equal priority those that began earlier, of higher
        priority all."""
        now, own = self._clock(), self._starts.get(gang)
        refused = own.refused_lately(now) if own else {}
        began = min(refused.values(), default=now) + _PATIENCE
        if own and not own.is_over(now):
            began = own.began
        return [
            other
            for other in self._starts.values()
            if other.gang != gang and other.began <= now and not other.is_over(now)
            if (-other.priority, other.began, other.gang) < (-priority, began, gang)
            if now < refused.get(other.namespace, now) + _LONGEST_WAIT
        ]

    def _start_of(self, gang: str, pod: Pod) -> Start:
        start, now = self._starts.get(gang), self._clock()
        if start is None or now >= min(start.until, start.ends - _RETRIED + _AGAIN):
            ends = start.ends if start and now < start.ends - _RETRIED + _AGAIN else math.inf
            start = Start(gang, pod.namespace, pod.priority, pod.scheduler_name, now + _PATIENCE, ends)
            self._starts.put(gang, start, len(gang))
        return start

    def _limit(self, namespace: str) -> None:
        """Forget a gang of a namespace that has too many: one that is over, or else the last that waits."""
        own = [start for start in self._starts.values() if start.namespace == namespace]
        if len(own) > GANG_STARTS:
            now = self._clock()
            self.ended(max(reversed(own), key=lambda start: (start.is_over(now), start.ends)).gang)
