"""A job of many pods starts whole, whichever operator made it: kube-scheduler asks about its pods one after
the other, as they are created, and Stowage knows from the job's object how many there will be."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from extender.explain.pod import explain
from extender.k8s.job_kinds import JOB_KINDS, JobManifest
from extender.k8s.objects import JobKind, Kind, Listed, Owner, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.source.watched_kinds import WATCHED_KINDS
from extender.verbs.filter import filter_nodes
from tests.examples import some
from tests.extender.builders import make_node, make_settings, make_state
from tests.extender.engines import SYNCED, make_engine
from tests.job_kinds import JOBS, WORKERS, Job, Object, ray_cluster

ROOT = Path(__file__).parents[3]
LAG = 3
"""Attempts after which the watch shows a binding."""


class Scheduler:
    """A kube-scheduler with one queue, on nodes of eight GPUs. It counts GPUs itself."""

    def __init__(self, nodes: int) -> None:
        self.engine = make_engine(policy="best-fit", gang_hold_seconds=0)
        self.now = 0.0
        self.engine.state.reservations.clock = lambda: self.now
        self.nodes = [f"n{number:02}" for number in range(nodes)]
        self.engine.apply([*SYNCED, *(Upserted(make_node(name)) for name in self.nodes)])
        self.placed: dict[str, str] = {}
        self.errors: set[str] = set()
        self._full: set[str] = set()
        self._unseen: deque[Object] = deque()

    def show(self, kind: Kind, obj: Object) -> None:
        record, _ = WATCHED_KINDS[kind].read(json.dumps(obj).encode())
        self.engine.apply([Upserted(record)])

    def create(self, *jobs: Job, rounds: int = 5) -> None:
        """The jobs' pods are created one after the other, one of each job in turn. Those that fail are tried
        again a few times."""
        turns = sorted((i, one["metadata"]["name"]) for job in jobs for i, one in enumerate(job.pods))
        by_name = {one["metadata"]["name"]: one for job in jobs for one in job.pods}
        for tries in range(rounds):
            for _, name in turns:
                if not tries:
                    self.show("Pod", by_name[name])
                if name not in self.placed:
                    self._try(by_name[name])
            self._show_bindings(0)
            self.now += 5

    def _try(self, pod: Object) -> None:
        self.now += 0.01
        if node := asyncio.run(self._node_for(pod)):
            self.placed[pod["metadata"]["name"]] = node
            if wants_gpus(pod):
                self._full.add(node)
            self._unseen.append(pod | {"spec": pod["spec"] | {"nodeName": node}})
        self._show_bindings(LAG)

    def _show_bindings(self, all_but: int) -> None:
        while len(self._unseen) > all_but:
            self.show("Pod", self._unseen.popleft())

    async def _node_for(self, pod: Object) -> str:
        names = [name for name in self.nodes if not (wants_gpus(pod) and name in self._full)]
        reply = await self._ask("filter", pod, names)
        self.errors.add(reply["Error"])
        fitting = reply["NodeNames"] or []
        if len(fitting) > 1:
            scores = await self._ask("prioritize", pod, fitting)
            return max(scores, key=lambda one: one["Score"])["Host"]
        return fitting[0] if fitting else ""

    async def _ask(self, verb: str, pod: Object, names: Sequence[str]):
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        return json.loads((await self.engine.verbs[verb](body))[0])

    def started(self, job: Job) -> int:
        """How many of its pods with GPUs have a node."""
        return sum(wants_gpus(one) and one["metadata"]["name"] in self.placed for one in job.pods)


def wants_gpus(pod: Object) -> bool:
    return bool(pod["spec"]["containers"][0]["resources"]["limits"])


def show_job(scheduler: Scheduler, kind: str, job: Job) -> None:
    watched = next(one for one in JOB_KINDS if one == ("JobSet" if kind == "TrainJob" else kind))
    scheduler.show(watched, job.object)


def test_every_kind_that_is_watched_is_tested() -> None:
    assert JOB_KINDS.keys() <= JOBS.keys()


@pytest.mark.parametrize(
    ("kind", "nodes", "start"),
    some([(kind, *room) for kind in JOBS for room in ((4, 0), (WORKERS, WORKERS))], 9),
)
def test_all_pods_of_a_job_start_or_none(kind: str, nodes: int, start: int) -> None:
    scheduler, job = Scheduler(nodes), JOBS[kind]("job")
    show_job(scheduler, kind, job)
    scheduler.create(job)
    assert scheduler.started(job) == start


@pytest.mark.parametrize("kind", some(JOBS))
def test_of_two_jobs_at_once_one_starts_whole(kind: str) -> None:
    scheduler, jobs = Scheduler(WORKERS + 3), [JOBS[kind](name) for name in ("a", "b")]
    for job in jobs:
        show_job(scheduler, kind, job)
    scheduler.create(*jobs)
    assert sorted(map(scheduler.started, jobs)) == [0, WORKERS]


async def test_a_gang_that_is_answered_and_never_bound_delays_others_for_twelve_seconds() -> None:
    scheduler, jobs = Scheduler(2 * WORKERS), [JOBS["PyTorchJob"](name) for name in ("a", "b")]
    for job in jobs:
        show_job(scheduler, "PyTorchJob", job)
        for pod in job.pods:
            scheduler.show("Pod", pod)
    stuck, other = (job.pods[-1] for job in jobs)
    delayed = []
    for _ in range(60):
        await scheduler._node_for(stuck)
        delayed.append((await scheduler._ask("filter", other, scheduler.nodes))["Error"])
        scheduler.now += 1
    assert delayed[:12] == ["PyTorchJob default/a starts first"] * 12
    assert set(delayed[12:]) == {""}
    await scheduler._node_for(stuck)
    assert (await scheduler._ask("filter", other, scheduler.nodes))["Error"]


def created(job: Job, seconds_ago: float) -> Job:
    at = datetime.fromtimestamp(time.time() - seconds_ago, UTC).isoformat()
    for pod in job.pods:
        pod["metadata"]["creationTimestamp"] = at
    return job


def test_pods_that_come_before_their_job_wait_until_it_is_seen() -> None:
    scheduler, job = Scheduler(WORKERS), created(JOBS["PyTorchJob"]("job"), 1)
    scheduler.create(job)
    assert scheduler.errors == {
        "waits until Stowage sees PyTorchJob job, which declares how many pods start together"
    }
    show_job(scheduler, "PyTorchJob", job)
    scheduler.create(job)
    assert scheduler.started(job) == WORKERS


@pytest.mark.parametrize(("seconds_ago", "is_served"), [(60, True), (1, False)])
def test_pods_whose_job_is_not_to_be_seen_start_one_by_one(seconds_ago: float, is_served: bool) -> None:
    """It does not come, or Stowage may not read it, or its kind is not known to the cluster."""
    scheduler, job = Scheduler(4), created(JOBS["PyTorchJob"]("job"), seconds_ago)
    scheduler.engine.apply([Listed("PyTorchJob", frozenset(), absent=not is_served)])
    scheduler.create(job)
    assert scheduler.started(job) == 4
    waiting = scheduler.engine.state.pods["default/job-worker-14"]
    assert "they start one by one, because PyTorchJob job" in explain(scheduler.engine.state, waiting).gang


@pytest.mark.parametrize(("nodes", "start"), [(3, 0), (6, 4), (8, 8)])
def test_the_hosts_of_a_ray_worker_start_together(nodes: int, start: int) -> None:
    scheduler, job = Scheduler(nodes), ray_cluster("ray", replicas=4, hosts=4)
    show_job(scheduler, "RayCluster", job)
    scheduler.create(job)
    assert scheduler.started(job) == start


KUBEFLOW = {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}


@pytest.mark.parametrize(
    ("kind", "spec", "minimum"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": KUBEFLOW}, 8),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {}}}, 1),
        (
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": KUBEFLOW,
                "elasticPolicy": {"minReplicas": 2},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 5}},
            },
            5,
        ),
        ("TFJob", {"tfReplicaSpecs": KUBEFLOW, "runPolicy": {"schedulingPolicy": {"minAvailable": 99}}}, 8),
        (
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 4}}},
            5,
        ),
        (
            "MPIJob",
            {
                "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 4}},
                "launcherCreationPolicy": "WaitForWorkersReady",
            },
            4,
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": "a", "template": {"spec": {"parallelism": 8, "completions": 2}}},
                    {"name": "b", "replicas": 3, "template": {"spec": {"parallelism": 4}}},
                ]
            },
            14,
        ),
        ("KueueWorkload", {"podSets": [{"count": 3}, {"count": 4}]}, 7),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 10**9}}}, 2048),
        ("JobSet", {"replicatedJobs": "none"}, 0),
    ],
)
def test_the_object_says_how_many_start_together(kind: JobKind, spec: Object, minimum: int) -> None:
    manifest = JobManifest.from_value({"metadata": {"name": "job"}, "spec": spec})
    assert manifest.record(kind).minimum == minimum


@pytest.mark.parametrize(("nodes", "start"), [(1, 0), (2, 4)])
def test_the_example_of_a_job_starts_whole(nodes: int, start: int) -> None:
    """Four pods of four GPUs, two to a node. (``deploy/examples/pytorchjob.yaml``)"""
    example = yaml.safe_load((ROOT / "deploy/examples/pytorchjob.yaml").read_text())
    job = JobManifest.from_value(example).record()
    assert (job.kind, job.minimum, [template.copies for template in job.templates]) == (
        "PyTorchJob",
        4,
        [1, 3],
    )
    pods = [
        replace(
            template.pod,
            name=f"{number}-{copy}",
            uid=f"{number}-{copy}",
            labels={"training.kubeflow.org/job-name": "train"},
            owner=Owner("PyTorchJob", "train"),
        )
        for number, template in enumerate(job.templates)
        for copy in range(template.copies)
    ]
    state = make_state(*(make_node(f"n{number}", cpu="128", memory="2Ti") for number in range(nodes)))
    state.gang_check = True
    state.apply([Upserted(job)])
    for pod in pods:
        state.apply([Upserted(pod)])
        fitting = filter_nodes(state, FilterArgs(pod, NodeNames.of(sorted(state.nodes))), make_settings())[0]
        if fitting.names:
            state.apply([Upserted(replace(pod, node_name=fitting.names[0]))])
    assert sum(bool(state.pods[pod.key].node_name) for pod in pods) == start
