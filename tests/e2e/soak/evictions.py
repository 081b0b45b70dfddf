"""Whether each evicted pod made room for a pod of higher priority that then ran."""

from collections import Counter
from dataclasses import dataclass, field

from ..controlplane.api import Object

GANG = "stowage.dev/gang"
WITHIN_S = 60.0  # after an eviction the pod that it was for must run by then
REASONS = ("PreemptionByScheduler", "EvictionByEvictionAPI")


@dataclass(slots=True)
class Victim:
    """One evicted pod; ``at`` in monotonic seconds."""

    name: str
    node: str
    priority: int
    gang: str
    at: float


@dataclass
class Evictions:
    """``outcome`` counts the victims by what came of it. Judge them with ``settle``."""

    outcome: Counter[str] = field(default_factory=Counter)
    open: dict[str, Victim] = field(default_factory=dict)
    in_vain: list[Victim] = field(default_factory=list)
    _judged: set[str] = field(default_factory=set)

    def see(self, pod: Object, now: float) -> None:
        """A pod as it is now."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if not node or uid in self.open or uid in self._judged:
            return
        conditions = pod["status"].get("conditions", ())
        if any(one["type"] == "DisruptionTarget" and one.get("reason") in REASONS for one in conditions):
            labels = pod["metadata"].get("labels", {})
            self.open[uid] = Victim(
                pod["metadata"]["name"], node, pod["spec"].get("priority", 0), labels.get(GANG, ""), now
            )

    def bound(self, pod: Object, now: float) -> None:
        """A pod got its node: all that was taken there from pods of lower priority was for a reason."""
        node, priority = pod["spec"]["nodeName"], pod["spec"].get("priority", 0)
        for uid, victim in list(self.open.items()):
            if victim.node == node and victim.priority < priority and now >= victim.at:
                self._close(uid, "made room")

    def settle(self, now: float, disturbed: list[tuple[float, float]]) -> None:
        """Judge those that are old enough. ``disturbed`` are the times of faults, from and to."""
        for uid, victim in list(self.open.items()):
            if now - victim.at < WITHIN_S:
                continue
            if victim.gang:
                self._close(uid, "with its gang")
            elif any(begin - 10 < victim.at < end + 10 for begin, end in disturbed):
                self._close(uid, "beside a fault")
            else:
                self.in_vain.append(victim)
                self._close(uid, "in vain")

    def _close(self, uid: str, outcome: str) -> None:
        del self.open[uid]
        self._judged.add(uid)
        self.outcome[outcome] += 1
