"""Jobs that lost pods to preemption or interruption, when, and the lost work: the time since the last
checkpoint, or since the start; and PodDisruptionBudgets.

Kubernetes marks a pod that it is about to end with the condition ``DisruptionTarget``. Its reasons are listed
in "Pod disruption conditions" (kubernetes.io/docs/concepts/workloads/pods/disruptions, 1.31 and later), and
``DeletionByDeviceTaintManager`` in pkg/controller/devicetainteviction of Kubernetes 1.36. Volcano and KAI
also set ``PreemptionByScheduler`` (Volcano pkg/scheduler/cache/cache.go at ed72c7c8, KAI-Scheduler
pkg/scheduler/cache/evictor/default_evictor.go at d5bc503a).
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, ValidationError, convert

from extender.inventory.node_state import is_leaving
from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.job_kinds import JOB_KINDS
from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.queues.queue import Queues
from extender.settings import Queue
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.duration import DurationError, seconds
from extender.untrusted.limits import BUDGETS_PER_POD, DISRUPTIONS, KEY
from packing.victims.rights import rounds_of

if TYPE_CHECKING:  # it loads the compiler
    from packing.fleet.arrays import Doubles

CHECKPOINTED_AT = "stowage.dev/checkpointed-at"
"""Annotation: when the pod last saved its work, in RFC 3339."""
CHECKPOINT_INTERVAL = "stowage.dev/checkpoint-interval"
"""Annotation: how often the pod saves its work, as a Go duration or in seconds."""
PREEMPTIONS = ("PreemptionByScheduler", "EvictionByEvictionAPI")
"""Reasons of disruptions that make room for other pods. ``kubectl drain`` also causes the second one."""
NODE_INTERRUPTION = "NodeInterruption"
"""Stowage's reason for a pod that is evicted from a node with an interruption taint, or deleted there."""
REASONS = (
    *PREEMPTIONS, NODE_INTERRUPTION, "DeletionByTaintManager", "DeletionByDeviceTaintManager",
    "DeletionByPodGC", "TerminationByKubelet", "other",
)  # fmt: skip
OWNERS = ("Job", "ReplicaSet", "StatefulSet", "DaemonSet", "none", "other")
"""Kinds of controllers that metrics distinguish."""
NO_QUEUE_LABEL = "none"
"""Label value in metrics for pods without a queue."""
REPLACEMENT_SECONDS = 3600.0
"""Seconds after an interruption in which a pending pod of the same job counts as the replacement."""
_LEFT_OUT = 10.0, 300.0
"""Seconds for which a pod is excluded from plans after its eviction was rejected, initially and at most."""
_K = TypeVar("_K")
_T = TypeVar("_T")
_NODE_CLOCK_SKEW = 60.0  # seconds that the clock of a node may be ahead of ours
_LONGEST_TIME = 40  # characters: RFC 3339 with nanoseconds and an offset has 35
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
_HOUR = 3600.0
_MOST_LOST = 1e15  # GPU-seconds
_CLOCK_SKEW = 5.0
"""Seconds by which the clock of the component that ends a pod may be ahead of the API server's, which sets
the creation time of the replacement."""


_CONTROLLERS = frozenset({
    *("Job", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "CloneSet"),
    *("Pod", "PodClique", "VirtualMachineInstance"),  # Spark's driver, NVIDIA Grove, KubeVirt
    *JOB_KINDS,
})  # fmt: skip
"""Kinds of owners that create their pods from one template, or a few that belong together. Others may own
unrelated pods: the Service of a vcluster, the Cluster of k3k, an Argo Workflow."""


def job_of(pod: Pod) -> str:
    """The identity that outlives a replaced pod: the UID of its controller, otherwise the pod's own name. The
    namespace is included because anyone who can create pods can write any UID."""
    if pod.owner and pod.owner.uid and pod.owner.kind in _CONTROLLERS:
        return f"{pod.namespace}/{pod.owner.uid}"[:KEY]
    return pod.key


def disruption_reason(pod: Pod, *, node_interrupted: bool) -> str:
    """Why a bound pod that ends was disrupted, one of ``REASONS``; "" without a sign of a disruption.

    Without the condition, only a pod that is deleted on a node with an interruption taint counts.
    """
    if pod.disruption == PREEMPTIONS[0]:
        return pod.disruption
    if node_interrupted and (pod.disruption or not pod.terminated):
        return NODE_INTERRUPTION
    return pod.disruption if pod.disruption in REASONS else pod.disruption and "other"


_Text: TypeAlias = Annotated[str, Meta(max_length=KEY)]


class Disruption(NamedTuple):
    """One disrupted pod, at ``at`` (Unix seconds). ``queue``: its queue at that time, "" if it had none.
    ``gpus``: whether it had any."""

    at: float
    uid: _Text
    job: _Text
    queue: _Text
    reason: _Text
    gpus: bool = True

    @property
    def whose(self) -> tuple[str, bool]:
        return self.job.partition("/")[0], self.gpus


class DisruptionLog:
    """The latest disruptions of all jobs, each pod once. Times in Unix seconds, by the clock ``now``. If
    there are too many, the oldest of the namespace with the most is dropped, so that no namespace can
    displace the disruptions of others, nor pods without GPUs those of pods with GPUs.

    ``pods`` counts disrupted pods by (queue, reason, kind of owner), ``gpu_seconds`` the work that they lost
    by (queue, reason), both since the log was created. ``changes`` counts additions.
    """

    def __init__(self, shield_seconds: float = 600.0, now: Callable[[], float] = time.time) -> None:
        self.pods: Counter[tuple[str, str, str]] = Counter()
        self.gpu_seconds: Counter[tuple[str, str]] = Counter()
        self._shield, self._now = shield_seconds, now
        self._began = math.floor(now())  # Kubernetes has whole seconds
        self.moves: list[tuple[float, float]] = []
        """Moves of pods for others within the last hour: the time, and the GPU-seconds lost."""
        self.changes = 0
        self._refused: BoundedMap[str, tuple[float, float]] = BoundedMap(
            DISRUPTIONS
        )  # by UID: until when, for how long
        self._log: list[Disruption] = []  # by time
        self._uids: set[str] = set()
        self._by_job: dict[str, list[Disruption]] = {}  # by time
        self._preemptions: dict[str, list[float]] = {}  # times, by queue
        self._by_whose: dict[tuple[str, bool], list[Disruption]] = {}  # by time
        self._forgotten: dict[tuple[str, bool], float] = {}  # the time of the latest dropped one

    def record_loss(
        self, pod: Pod, queue: str, reason: str, gpus: float, lost: Callable[[float], float]
    ) -> None:
        """Record a disrupted pod of this queue. Known disruptions and those that are too old are ignored.

        ``reason``: one of ``REASONS``. ``gpus``: number of GPUs that it had. ``lost``: seconds of work lost
        if it ends at a given time.
        """
        now = self._now()
        at = min(pod.disrupted or now, now)
        loss = Disruption(at, pod.uid, job_of(pod), queue, reason, gpus > 0)
        if not self._add(loss) or at < self._began:
            return
        kind = pod.owner.kind if pod.owner else "none"
        self.pods[queue or NO_QUEUE_LABEL, reason, kind if kind in OWNERS else "other"] += 1
        self.gpu_seconds[queue or NO_QUEUE_LABEL, reason] += gpus * lost(at)  # type: ignore[assignment]

    def note_refused(self, pod: Pod, now: float) -> None:
        """Record that the API server has rejected the pod's eviction: plans exclude it for twice as long as
        the last time."""
        _, before = self._refused.get(pod.uid) or (0.0, _LEFT_OUT[0] / 2)
        seconds = min(_LEFT_OUT[1], before * 2)
        self._refused.put(pod.uid, (now + seconds, seconds), len(pod.uid) + 64)

    def was_refused(self, pod: Pod, now: float) -> bool:
        return (self._refused.get(pod.uid) or (0.0, 0.0))[0] > now

    def restarts(self, pod: Pod) -> int:
        """Number of pods that the pod's job lost before this one was created, as far as the log goes back."""
        return self._before(pod, math.inf)

    def rounds(self, pod: Pod, apart: float) -> int:
        """Number of times that the pod's job was preempted before this pod was created, see ``rounds_of``."""
        lost = self._by_job.get(job_of(pod), ())[: self.restarts(pod)]
        return rounds_of((loss.at for loss in lost if loss.reason in PREEMPTIONS), apart)

    @property
    def jobs(self) -> Collection[str]:
        """Jobs that lost a pod, as far as the log goes back, see ``job_of``."""
        return self._by_job.keys()

    def shielded_until(self, pod: Pod, seconds: float | None = None) -> float:
        """Time until which the pod is shielded because its job lost a pod before this one was created: only a
        replacement is shielded, not each pod of a large ReplicaSet. -inf without such a loss. ``seconds``:
        length of the shield after the loss, None for the usual length."""
        count, shield = self.restarts(pod), self._shield if seconds is None else seconds
        return self._by_job[job_of(pod)][count - 1].at + shield if count else -math.inf

    def replaces_interrupted(self, pod: Pod, now: float) -> bool:
        """Whether a pending pod replaces a pod of the same job that was interrupted up to an hour ago: it was
        created after that. If a job also grows, this may be true for more pods than were lost."""
        count = 0 if pod.node_name else self._before(pod, now)
        lost = self._by_job[job_of(pod)][:count] if count else ()
        lately = (disruption for disruption in lost if disruption.at > now - REPLACEMENT_SECONDS)
        return any(disruption.reason not in PREEMPTIONS for disruption in lately)

    def evictions_last_hour(self, queue_name: str, now: float) -> int:
        """Number of pods of a queue that were preempted within the hour before ``now``, by any component."""
        times = self._preemptions.get(queue_name, ())
        return bisect_right(times, now) - bisect_right(times, now - _HOUR)

    def dump(self) -> dict[str, Any]:
        """All that ``load`` needs, as JSON values: about 150 bytes for each disruption."""
        return {"disruptions": list(map(list, self._log)), "moves": list(map(list, self.moves))}

    def load(self, dumped: object) -> None:
        """Add the disruptions and moves of a dump. Invalid ones are ignored; counters do not change."""
        now = self._now()
        for loss in _entries(dumped, "disruptions", Disruption):
            if 0 < loss.at <= now and loss.reason in REASONS:
                self._add(loss)
        for at, lost in _entries(dumped, "moves", tuple[float, float]):
            if now - _HOUR < at <= now and 0 <= lost < _MOST_LOST and (at, lost) not in self.moves:
                self.moves.append((at, lost))

    def _before(self, pod: Pod, now: float) -> int:
        """Number of disruptions of the pod's job until ``now`` and before the pod's creation."""
        created = math.floor(pod.created + _CLOCK_SKEW) + 1.0  # Kubernetes has whole seconds
        of_job = self._by_job.get(job_of(pod), [])
        return min(bisect_left(of_job, created, key=_time), bisect_right(of_job, now, key=_time))

    def _add(self, loss: Disruption) -> bool:
        """Add a disruption. Returns whether it is new. Drops the oldest one beyond the limit."""
        forgotten = self._forgotten.get(loss.whose, -math.inf)
        if not loss.uid or loss.uid in self._uids or loss.at <= forgotten:
            return False
        self.changes += 1
        insort(self._log, loss)
        insort(self._by_job.setdefault(loss.job, []), loss)
        insort(self._by_whose.setdefault(loss.whose, []), loss)
        if loss.reason in PREEMPTIONS:
            insort(self._preemptions.setdefault(loss.queue, []), loss.at)
        self._uids.add(loss.uid)
        if len(self._log) > DISRUPTIONS:
            self._drop(max(self._by_whose.values(), key=len)[0])
        return True

    def _drop(self, oldest: Disruption) -> None:
        self._forgotten[oldest.whose] = oldest.at
        self._log.remove(oldest)
        _remove(self._by_whose, oldest.whose, oldest)
        if oldest.whose not in self._by_whose:  # there are thousands
            del self._forgotten[oldest.whose]
        self._uids.remove(oldest.uid)
        _remove(self._by_job, oldest.job, oldest)
        if oldest.reason in PREEMPTIONS:
            _remove(self._preemptions, oldest.queue, oldest.at)


def _time(loss: Disruption) -> float:
    return loss.at


def _remove(lists: dict[_K, list[_T]], key: _K, value: _T) -> None:
    lists[key].remove(value)
    if not lists[key]:
        del lists[key]


def _entries(dumped: object, name: str, kind: type[_T]) -> Iterator[_T]:
    """The last entries of this kind in a dump. Others are ignored."""
    entries = dumped.get(name) if isinstance(dumped, Mapping) else None
    for entry in entries[-DISRUPTIONS:] if isinstance(entries, list) else ():
        with suppress(ValidationError):
            yield convert(entry, kind)


class Progress(NamedTuple):
    """The start of a pod (Unix seconds, 0: not started), the time of its last checkpoint if not before the
    start (otherwise NaN), and the seconds between its checkpoints (0: none)."""

    started: float
    saved: float
    interval: float


def progress_of(pod: Pod, queue: Queue) -> Progress:
    """The pod's progress, by its annotations and its queue."""
    saved_at, every = pod.annotations.get(CHECKPOINTED_AT), pod.annotations.get(CHECKPOINT_INTERVAL)
    saved = _timestamp(saved_at) if saved_at else None
    if saved is None or saved < pod.started:
        saved = math.nan
    interval = (_interval(every) if every else None) or queue.checkpoint_interval
    return Progress(pod.started, saved, interval or 0.0)


def lost_by_each(started: Doubles, saved: Doubles, interval: Doubles, now: float) -> Doubles:
    """``lost_seconds`` of many pods: arrays of the fields of ``Progress``."""
    ran = now - started
    since = np.where(interval > 0, np.mod(ran, np.where(interval > 0, interval, 1.0)), ran)
    known = saved <= now + _NODE_CLOCK_SKEW  # not for NaN
    lost = np.where(known, np.maximum(now - np.where(known, saved, now), 0.0), since)
    return np.where((started != 0) & (ran > 0), lost, 0.0)


def lost_seconds(pod: Pod, queue: Queue, now: float) -> float:
    """Seconds of work that the pod loses if it ends at ``now`` (Unix seconds): between 0 and the time since
    its start; 0 if it has not started.

    Its last checkpoint is the time in ``stowage.dev/checkpointed-at``. A time before the pod's start was
    copied from another pod, and one in the future is wrong: they do not count. Otherwise the pod is assumed
    to save its work at each multiple of its interval after its start: that of
    ``stowage.dev/checkpoint-interval``, otherwise ``queue.checkpoint_interval``. Without any of these, all
    work is lost.
    """
    started, saved, interval = (np.array([field]) for field in progress_of(pod, queue))
    return float(lost_by_each(started, saved, interval, now)[0])


def _timestamp(text: str) -> float | None:
    """Unix seconds of a time in RFC 3339, None for anything else."""
    try:
        at = datetime.fromisoformat(text) if len(text) <= _LONGEST_TIME else None
        return at.timestamp() if at and at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _interval(text: str) -> float | None:
    """Seconds of a duration in Go's notation, or of a plain number; None if malformed or not positive."""
    if _SECONDS.fullmatch(text):
        return float(text) or None
    try:
        interval = seconds(text) if len(text) <= _LONGEST_TIME else 0.0
    except DurationError:
        return None
    return interval if interval > 0 else None


def note_disruptions(
    event: Event,
    log: DisruptionLog,
    queues: Queues,
    pods: Mapping[str, Pod],
    nodes: Mapping[str, Node],
    gpus_of: Callable[[Pod], float],
) -> None:
    """Record in ``log`` the pods that the event shows as disrupted, and the work that they lost. ``gpus_of``:
    the number of GPUs of a bound pod."""
    for pod, reason in disrupted_pods(event, pods, nodes):
        lost = partial(lost_seconds, pod, queues.queue_of(pod))
        log.record_loss(pod, queues.name_of(pod), reason, gpus_of(pod), lost)


def disrupted_pods(event: Event, pods: Mapping[str, Pod], nodes: Mapping[str, Node]) -> list[tuple[Pod, str]]:
    """Bound pods that end with this event because of a disruption, and the reason. ``pods``: the pods before
    the event.

    A pod counts once it is being deleted, has ended or is gone: until then the disruption may not take place
    (Kubernetes resets such a condition after two minutes, pkg/controller/disruption/disruption.go, v1.36).
    """
    disrupted = []
    for pod in _ending(event, pods):
        if not pod.node_name:
            continue
        node = nodes.get(pod.node_name)
        if reason := disruption_reason(pod, node_interrupted=node is not None and is_leaving(node)):
            disrupted.append((pod, reason))
    return disrupted


def _ending(event: Event, pods: Mapping[str, Pod]) -> Iterable[Pod]:
    match event:
        case Upserted(Pod() as pod):
            ending = [pod] if pod.deleting or pod.terminated else []
            before = pods.get(pod.key)
            return [before, *ending] if before is not None and before.uid != pod.uid else ending
        case Deleted("Pod", key) if (gone := pods.get(key)) is not None:
            return (gone,)
        case Listed("Pod", keys):
            return [pod for key, pod in pods.items() if key not in keys]
    return ()


# PodDisruptionBudgets: the evictions that the eviction API rejects.

_Bucket: TypeAlias = tuple[str, str | None, str]
"""A namespace, and a label with its value that all pods of a budget have (None: no such label)."""
Selecting: TypeAlias = list[PodDisruptionBudget] | None
"""The budgets that select a pod; None if uncertain."""
_NEVER_HELD = ("Pending", "Succeeded", "Failed")


class DisruptionBudgets:
    """The budgets by key. Each is indexed by one label of its selector, the one with the fewest budgets.

    ``changes`` counts changes of their selectors.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._budgets: dict[str, PodDisruptionBudget] = {}
        self._bucket_of: dict[str, _Bucket] = {}
        self._buckets: dict[_Bucket, dict[str, PodDisruptionBudget]] = {}

    def apply(self, event: Event) -> None:
        """Apply an event of a PodDisruptionBudget."""
        match event:
            case Upserted(PodDisruptionBudget() as budget):
                self._put(budget)
            case Deleted(_, key):
                self._remove(key)
            case Listed(_, keys):
                for key in self._budgets.keys() - keys:
                    self._remove(key)

    def records(self) -> list[PodDisruptionBudget]:
        return list(self._budgets.values())

    def _put(self, budget: PodDisruptionBudget) -> None:
        known = self._budgets.get(budget.key)
        if known is None or (known.selector, known.problem) != (budget.selector, budget.problem):
            self._remove(budget.key)
            self.changes += 1
            exact = (r for r in budget.selector or () if r.operator == "In" and len(r.values) == 1)
            buckets: list[_Bucket] = [(budget.namespace, r.key, r.values[0]) for r in exact]
            buckets = buckets or [(budget.namespace, None, "")]
            self._bucket_of[budget.key] = min(buckets, key=lambda b: len(self._buckets.get(b, ())))
        self._budgets[budget.key] = budget
        self._buckets.setdefault(self._bucket_of[budget.key], {})[budget.key] = budget

    def _remove(self, key: str) -> None:
        if self._budgets.pop(key, None):
            self.changes += 1
            bucket = self._bucket_of.pop(key)
            del self._buckets[bucket][key]
            if not self._buckets[bucket]:
                del self._buckets[bucket]

    def may_select(self, pod: Pod) -> bool:
        """Whether the eviction of the pod can violate a budget."""
        return self._selecting(pod) != []

    def violations(
        self, pods: Sequence[Pod], selecting: MutableMapping[str, Selecting] | None = None
    ) -> tuple[bool, ...]:
        """For each pod, in this order, whether its eviction after the preceding ones violates a budget.
        ``selecting``: a cache by the key of the pod, for callers that repeat the question immediately.

        Follows the eviction API (kubernetes, ``pkg/registry/core/pod/storage/eviction.go``): no budget
        protects a pod that is Pending or terminating, and no budget with ``frees_unready`` a pod that is not
        ready; a pod with two budgets is never evicted. Every budget is charged, unless its ``disruptedPods``
        already contain the pod. An unreadable budget, or too many that may select the pod, also count as a
        violation.
        """
        charged: dict[str, int] = {}
        found, selecting = [], {} if selecting is None else selecting
        for pod in pods:
            if pod.key not in selecting:
                selecting[pod.key] = self._selecting(pod)
            budgets = selecting[pod.key]
            if pod.deleting or pod.phase in _NEVER_HELD:
                budgets = []
            violated = budgets is None or len(budgets) > 1
            for budget in budgets or ():
                if pod.name in budget.disrupted or (budget.frees_unready and not pod.ready):
                    continue
                charged[budget.key] = charged.get(budget.key, 0) + 1
                violated |= charged[budget.key] > budget.allowed
            found.append(violated)
        return tuple(found)

    def _selecting(self, pod: Pod) -> Selecting:
        """The budgets that select the pod; None if one is unreadable, or if more than ``BUDGETS_PER_POD``
        must be compared."""
        namespace, buckets = pod.namespace, self._buckets
        if not buckets:
            return []
        filed = [buckets.get((namespace, None, ""))]
        filed += [buckets.get((namespace, *label)) for label in pod.labels.items()]
        found = [bucket for bucket in filed if bucket]
        if sum(map(len, found)) > BUDGETS_PER_POD:
            return None
        selecting = [budget for bucket in found for budget in bucket.values() if budget.selects(pod.labels)]
        return None if any(budget.problem for budget in selecting) else selecting
