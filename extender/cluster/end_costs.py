"""Run times of pods, learned from those that have ended, and the costs of nodes that follow from them.

The kind of a pod is its controller, without the parts of the name that change from run to run:
``train-llm-28391`` and ``train-llm-28402`` have similar run times. Pods of an unknown kind are expected to
run as long as pods of their queue that request the same number of GPUs.

Pods that end together free whole nodes. So, if enabled, a node costs more if the pod would run longer than
all pods there. A pod without a controller, or of a kind of which too few pods have ended, costs the same
everywhere.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import product

import numpy as np

from extender.cluster.allocations import Allocations
from extender.cluster.demand import gpus_of, size_of
from extender.dialects.pod_request import request_or_none
from extender.k8s.objects import Deleted, Event, Job, Listed, Pod, Upserted, take_in
from extender.k8s.pod_manifest import KUEUE_LONGEST
from extender.untrusted.bounded_cache import BoundedMap
from packing.fleet.arrays import Doubles, Floats
from packing.fleet.fleet import Fleet
from packing.model.lifetimes import PARTS, RESULTS, LastEnds, Running

PROLONGED = 1.0
"""Cost in GPUs of prolonging the time until a node is empty by the mean run time of all pods
(bench/packing/worlds.py). It decides between nodes whose slots cost about the same."""
_RUN = re.compile(r"(-[a-z0-9]*[0-9][a-z0-9]*)+$")
"""Parts of a controller's name that change with each run: dates, numbers and hashes."""
EVERY = "every pod"
"""The kind of all pods except those of services."""
BASES = ("declared", "learned", "unknown")
"""What the forecast of an end rests on: a limit, the pods of its kind, or those of its queue and size."""
_JUST = 60.0
"""Seconds since the start of a pod within which a forecast of its end is judged."""
_MOST = np.array([0.8])
"""The fraction of the pods of a kind that "most" are."""
_TURN = 300
"""Number of updates, one every 0.1 s, that refresh the ages of the pods of all nodes."""
_FINISHED = 10_000
"""Maximum number of finished pods that are remembered, so that each is learned from only once."""


def kind_of(pod: Pod) -> tuple[str, str, str] | None:
    """The kind of a pod, shared by pods that may have similar run times; None without a controller."""
    owner = pod.owner
    return (pod.namespace, owner.kind, _RUN.sub("", owner.name)) if owner else None


class EndCosts:
    """Run times of pods with GPUs. ``enabled``: also the additional costs of nodes. ``jobs``: those of
    Kubernetes' Jobs that have a time limit, by key."""

    def __init__(
        self,
        fleet: Fleet,
        allocations: Allocations,
        queue_of: Callable[[Pod], str] = lambda pod: "",
        longest_run: Callable[[Pod], tuple[float, str]] = lambda pod: (math.inf, ""),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``queue_of``: the name of a pod's queue. ``longest_run``: the maximum run time in seconds that its
        job allows, and the field. ``clock``: Unix seconds."""
        self.enabled = False
        self.ends, self.clock, self._queue_of = LastEnds(), clock, queue_of
        self._longest_run = longest_run
        self._fleet, self._allocations = fleet, allocations
        self._finished: BoundedMap[str, bool] = BoundedMap(_FINISHED)
        self.on_learned: Callable[[str, tuple[Hashable, ...], float], None] = lambda uid, kinds, seconds: None
        self.jobs: dict[str, Job] = {}
        self.results = Counter(dict.fromkeys(product(BASES, PARTS, RESULTS), 0))
        """Pods that have ended by themselves: by what the forecast of their start rests on, its probability,
        and whether they had ended by then."""
        self._expected: dict[str, tuple[str, tuple[float, ...]]] = {}  # Unix seconds by key

    def apply(self, event: Event) -> None:
        """Apply an event of a pod, after ``allocations`` has applied it."""
        match event:
            case Upserted(Pod() as pod) if pod.terminated and pod.key in self.ends.running:
                run = self.ends.running[pod.key]
                self._judge(pod.key)
                self._leaves(pod.key)
                self.learn(pod.uid, run.kinds, self.clock() - run.started, self._limit(pod))
            case Upserted(Pod() as pod) if pod.terminated:
                # it ran before this process observed it, and is still listed
                if 0 < pod.started < pod.finished:
                    self.learn(pod.uid, self._kinds(pod), pod.finished - pod.started, self._limit(pod))
            case Upserted(Pod() as pod):
                held = self._allocations.allocation_of(pod.key)
                if held and pod.started and held.has_gpus:
                    was = self.ends.running.get(pod.key)
                    if was is None or (was.node, was.started) != (pod.node_name, pod.started):
                        running = Running(pod.node_name, self._kinds(pod), pod.started)
                        self.ends.starts(pod.key, running)
                        self._expect(pod, running)
            case Deleted("Pod", key):
                self._leaves(key)
            case Listed("Pod", keys):
                for key in self.ends.running.keys() - keys:
                    self._leaves(key)

    def _leaves(self, key: str) -> None:
        self._expected.pop(key, None)
        self.ends.leaves(key)

    def _expect(self, pod: Pod, running: Running) -> None:
        self._expected.pop(pod.key, None)
        if self.clock() - running.started > _JUST:
            return
        end = self.declared_end(pod)[0]
        lifetime = self.ends.lifetimes.of(*running.kinds, limit=end - running.started)
        if lifetime or math.isfinite(end):
            is_learned = self.ends.lifetimes.of(kind_of(pod)) is not None
            basis = "declared" if math.isfinite(end) else "learned" if is_learned else "unknown"
            ends = (running.started + lifetime.ends_within(part) if lifetime else end for part in PARTS)
            self._expected[pod.key] = basis, tuple(min(by, end) for by in ends)

    def _judge(self, key: str) -> None:
        basis, times = self._expected.get(key, ("", ()))
        for part, by in zip(PARTS, times, strict=False):
            self.results[basis, part, "held" if self.clock() <= by else "missed"] += 1

    def apply_job(self, event: Event) -> None:
        """Apply an event of a Job or ReplicaSet. One without a limit is not kept."""
        match event:
            case Upserted(Job(kind="Job") as job) if not (math.isfinite(job.longest) or job.problem):
                event = Deleted("Job", job.key)
        if event.kind == "Job":
            take_in(event, self.jobs)

    def _limit(self, pod: Pod) -> float:
        return self.declared_end(pod)[0] - (pod.started or self.clock())

    def learn(self, uid: str, kinds: tuple[Hashable, ...], seconds: float, limit: float = math.inf) -> None:
        """Learn once from a pod that ended by itself after this time, here or before a restart; ``limit``:
        its maximum run time, if known."""
        known = self._finished.get(uid)
        self._finished.put(uid, True, len(uid))
        if kinds and not known:
            self.ends.lifetimes.ended(kinds, seconds, limit)
            self.on_learned(uid, kinds, seconds)

    def _kinds(self, pod: Pod) -> tuple[Hashable, ...]:
        """The kinds of a pod with GPUs, narrowest first; empty for other pods. A service has only its own
        kind."""
        request = request_or_none(pod)
        if request is None or not request.wants_gpu:
            return ()
        if pod.is_service:
            return tuple(filter(None, (kind_of(pod),)))
        like = self._queue_of(pod), size_of(gpus_of(self._fleet, request))
        return tuple(filter(None, (kind_of(pod), like, EVERY)))

    def remaining(self, pod: Pod, outlives: Doubles) -> Doubles:
        """(S,) seconds from now until the pod ends, or from its start for a pending pod; infinite where
        unknown. ``outlives`` (S,): the fraction (0 to 1) of the pods of its kind and age that end before it
        does."""
        now, running = self.clock(), self.ends.running.get(pod.key)
        if pod.is_about_to_go(now):
            return np.full_like(outlives, max(pod.ends - now, 0.0))
        age = max(now - running.started, 0.0) if running else 0.0
        left, kinds = self.declared_end(pod)[0] - now, running.kinds if running else self._kinds(pod)
        lifetime = self.ends.lifetimes.of(*kinds, limit=age + left)
        ends = lifetime.remaining(age, outlives) if lifetime else np.full_like(outlives, np.inf)
        return np.minimum(ends, max(left, 0.0))

    def declared_end(self, pod: Pod) -> tuple[float, str]:
        """The time by which the pod has ended at the latest, in Unix seconds, by the limits that it, its job
        or Kueue declares, with its grace period, and the field that sets this limit; infinite and "" for
        none. A pod that has not started: if it starts now. The limit of a Job counts from the Job's start,
        also for pods that start later (``pastActiveDeadline`` of k8s.io/kubernetes, pkg/controller/job)."""
        start, owner = pod.started or self.clock(), pod.owner
        by_label = pod.labels.get(KUEUE_LONGEST) == f"{pod.deadline:.0f}"
        of_job, its_field = self._longest_run(pod)
        ends = [(start + pod.deadline, KUEUE_LONGEST if by_label else "activeDeadlineSeconds")]
        ends.append((start + of_job, its_field))
        job = self.jobs.get(f"{pod.namespace}/{owner.name}") if owner and owner.kind == "Job" else None
        if job and owner and job.uid == owner.uid:
            ends.append(((job.started or start) + job.longest, job.limit))
        end, field = min(ends)
        return end + pod.grace, field if math.isfinite(end) else ""

    def usual_seconds(self, pod: Pod) -> float:
        """The seconds within which most pods of the pod's own kind have ended; infinite if unknown."""
        kind = kind_of(pod)
        lifetime = self.ends.lifetimes.of(kind) if kind else None
        return float(lifetime.remaining(0.0, _MOST)[0]) if lifetime else math.inf

    def update(self) -> None:
        """Forget removed nodes and, for the costs, refresh the ages of some pods."""
        if len(self.ends.places) > 2 * len(self._fleet.rows):
            self.ends.keep(self._fleet.rows)
        if self.enabled:
            self.ends.update(self.clock(), -(-len(self.ends.places) // _TURN))

    def __call__(self, pod: Pod) -> Floats | None:
        """Additional cost of each row, (N,) in GPUs; None if the pod's kind is unknown."""
        prolonged = self.ends.prolonged(kind_of(pod)) if self.enabled and pod.owner else None
        if prolonged is None:
            return None
        by_place, empty = prolonged
        cost = np.full(self._fleet.arrays.capacity, PROLONGED * empty, np.float32)
        rows = np.array([self._fleet.rows.get(node, -1) for node in self.ends.places], np.int64)
        cost[rows[rows >= 0]] = PROLONGED * by_place[rows >= 0]
        return cost
