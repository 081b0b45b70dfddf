"""Whether each evicted pod made room for a pod of higher priority that then ran, or moved for a large one."""

from collections import Counter
from dataclasses import dataclass, field

from ..controlplane.api import Object

GANG, JOB = "stowage.dev/gang", "job-name"
WITHIN_S = 60.0  # after an eviction the pod that it was for must run by then
TOLD_S = 120.0  # after a move its Event has been read by then
REASONS = ("PreemptionByScheduler", "EvictionByEvictionAPI")


@dataclass(slots=True)
class Victim:
    """One evicted pod; ``at`` in monotonic seconds. ``job``: of a pod that is evicted to move."""

    name: str
    node: str
    priority: int
    gang: str
    at: float
    job: str = ""


@dataclass
class Evictions:
    """``outcome`` counts the victims by what came of it. Judge them with ``settle``. ``moved``: by UID;
    ``told``: the UIDs of those with an Event ``Moved``."""

    outcome: Counter[str] = field(default_factory=Counter)
    open: dict[str, Victim] = field(default_factory=dict)
    in_vain: list[Victim] = field(default_factory=list)
    moved: dict[str, Victim] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    untold: list[Victim] = field(default_factory=list)
    moved_again: list[Victim] = field(default_factory=list)
    _judged: set[str] = field(default_factory=set)
    _judged_moves: set[str] = field(default_factory=set)

    def see(self, pod: Object, now: float) -> None:
        """A pod as it is now."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if not node or uid in self.open or uid in self._judged:
            return
        conditions = pod["status"].get("conditions", ())
        if any(one["type"] == "DisruptionTarget" and one.get("reason") in REASONS for one in conditions):
            labels = pod["metadata"].get("labels", {})
            name, priority = pod["metadata"]["name"], pod["spec"].get("priority", 0)
            victim = Victim(name, node, priority, labels.get(GANG, ""), now, labels.get(JOB, ""))
            self.open[uid] = victim
            if victim.job:
                self.moved[uid] = victim

    def bound(self, pod: Object, now: float) -> None:
        """A pod got its node: all that was taken there from pods of lower priority was for a reason, and the
        moves if it is not one of the small Jobs."""
        node, priority = pod["spec"]["nodeName"], pod["spec"].get("priority", 0)
        for uid, victim in list(self.open.items()):
            if victim.node != node or now < victim.at:
                continue
            if victim.job and JOB not in pod["metadata"].get("labels", {}):
                self._close(uid, "moved, and made room")
            elif victim.priority < priority:
                self._close(uid, "made room")

    def settle(self, now: float, disturbed: list[tuple[float, float]]) -> None:
        """Judge those that are old enough. ``disturbed`` are the times of faults, from and to."""
        for uid, victim in list(self.open.items()):
            if now - victim.at < WITHIN_S:
                continue
            if victim.gang:
                self._close(uid, "with its gang")
            elif _beside(victim, disturbed):
                self._close(uid, "beside a fault")
            else:
                self.in_vain.append(victim)
                self._close(uid, "in vain")
        for uid, victim in self.moved.items():
            if uid not in self._judged_moves and now - victim.at > TOLD_S:
                self._judge_move(uid, victim, disturbed)

    def _judge_move(self, uid: str, victim: Victim, disturbed: list[tuple[float, float]]) -> None:
        """Without an Event, or of a Job that had moved before: once each for a finding."""
        self._judged_moves.add(uid)
        before = [one for one in self.moved.values() if one.job == victim.job and one.at < victim.at]
        if before and not any(_beside(one, disturbed) for one in (*before, victim)):
            self.moved_again.append(victim)
        if uid in self.told:
            self.outcome["moved, with an Event"] += 1
        elif not _beside(victim, disturbed):
            self.untold.append(victim)

    def _close(self, uid: str, outcome: str) -> None:
        del self.open[uid]
        self._judged.add(uid)
        self.outcome[outcome] += 1


def _beside(victim: Victim, disturbed: list[tuple[float, float]]) -> bool:
    return any(begin - 10 < victim.at < end + 10 for begin, end in disturbed)
