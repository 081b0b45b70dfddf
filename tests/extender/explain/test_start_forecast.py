"""When waiting pods start: by what has ended before, by limits, in the queue's order; judged by what came."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.end_costs import EndCosts
from extender.cluster.factory import state_of
from extender.explain.answers import StartForecast
from extender.explain.start_forecast import INTERVAL, StartForecasts, forecast_at
from extender.k8s.job_kinds import JobManifest
from extender.k8s.objects import Deleted, Listed, Owner, Pod, Upserted
from extender.source.watched_kinds import WATCHED_KINDS
from packing.plan.backfill import Reservation, Reservations
from tests.examples import examples
from tests.extender.builders import make_node, make_pod, make_settings

HOUR = 3600.0


class Cluster:
    """One node of 8 GPUs on which jobs named ``train`` ran for an hour, more or less."""

    def __init__(self, *, history: int = 20) -> None:
        self.now = 1e9
        self.state = state_of(make_settings())
        asked = self.state.rights.queue_name, self.state.gangs.longest_run
        costs = EndCosts(self.state.fleet, self.state.allocations, *asked, self.clock)
        self.state.end_costs = costs
        self.starts = StartForecasts(self.state, self.clock)
        self.state.pods.on_bound = self.starts.bound
        self.state.apply([Upserted(make_node("a", 8)), Listed("Node", frozenset("a"))])
        self.state.apply([Listed("Pod", frozenset())])
        for number in range(history):
            ran = HOUR * (0.8 + 0.02 * number)
            self.state.apply([Upserted(self.finished(f"train-{number}", ran))])

    def clock(self) -> float:
        return self.now

    def finished(self, name: str, seconds: float) -> Pod:
        pod = replace(make_pod(name, 8), node_name="a", phase="Succeeded", owner=Owner("Job", name))
        return replace(pod, started=self.now - 2 * HOUR, finished=self.now - 2 * HOUR + seconds)

    def runs(self, name: str, gpus: int = 8, **more: object) -> Pod:
        running = {"node_name": "a", "phase": "Running", "started": self.now, "owner": Owner("Job", name)}
        pod = replace(make_pod(name, gpus), **running | more)
        self.state.apply([Upserted(pod)])
        return pod

    def waits(self, name: str, gpus: int = 8, **more: object) -> Pod:
        pod = replace(make_pod(name, gpus), owner=Owner("Job", name), unscheduled="Unschedulable", **more)
        self.state.apply([Upserted(pod)])
        return pod

    def forecast(self, pod: Pod) -> StartForecast:
        asyncio.run(self.starts.refresh())
        found = self.starts.of(pod)
        assert found is not None
        return found


def test_a_pod_starts_when_others_of_the_kind_that_runs_have_ended():
    cluster = Cluster()
    running = cluster.runs("train-77")
    found = cluster.forecast(cluster.waits("next"))
    assert found.half == pytest.approx(cluster.now + HOUR, rel=0, abs=0.2 * HOUR)
    assert found.most is not None
    assert found.half < found.most < cluster.now + 3 * HOUR
    assert (found.node, found.needs, found.ends) == ("a", (running.key,), 1)


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(1, 5), st.integers(0, 50))
def test_a_reservation_narrows_the_forecast_of_its_job_and_moves_it_forward(others, minutes):
    """Otherwise the other pods like it may start first; they start after it then."""
    cluster = Cluster()
    cluster.runs("train-77")
    cluster.now += 60 * minutes
    job, *rest = [cluster.waits(f"train-{number}") for number in range(78, 79 + others)]
    usual, behind = cluster.forecast(job), [cluster.forecast(pod) for pod in rest]
    at = cluster.now + HOUR
    held = Reservation(job.uid, "default", 0, ("a",), 8.0, cluster.now, at, at + HOUR, cluster.now)
    cluster.state.large_jobs.update(Reservations((held,)))
    reserved = cluster.forecast(job)
    assert reserved.half < usual.half
    assert reserved.most - reserved.half < usual.most - usual.half
    assert all(cluster.forecast(pod).half >= before.half for pod, before in zip(rest, behind, strict=True))


def test_what_waits_with_a_higher_priority_starts_before_a_pod_of_a_file():
    cluster = Cluster(history=0)
    cluster.runs("batch", deadline=600.0)
    cluster.waits("urgent", priority=9, deadline=300.0)
    found = forecast_at(cluster.state, make_pod("next", 8, uid=""), cluster.now)
    assert found is not None
    assert found.needs == ("default/batch", "default/urgent")


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("Workload", {"maximumExecutionTimeSeconds": 600}, {"annotations": {"kueue.x-k8s.io/workload": "w"}}),
        (
            "PyTorchJob",
            {"runPolicy": {"activeDeadlineSeconds": 600}},
            {"labels": {"training.kubeflow.org/job-name": "w"}, "owner": Owner("PyTorchJob", "w")},
        ),
    ],
)
def test_the_limit_of_a_job_bounds_what_is_not_known(kind, spec, words):
    cluster = Cluster(history=0)
    metadata = {"name": "w", "namespace": "default"}
    manifest = JobManifest.from_value({"kind": kind, "metadata": metadata, "spec": spec})
    cluster.state.apply([Upserted(manifest.record("KueueWorkload" if kind == "Workload" else None))])
    cluster.state.apply([Upserted(replace(cluster.runs("batch"), **words))])
    found = cluster.forecast(cluster.waits("next"))
    assert (found.most, found.limits) == (cluster.now + 600.0, (*spec.get("runPolicy", spec),))


def of_job(pod: Pod, spec: dict[str, object], *, started: float = 0.0, uid: str = "u", **metadata: object):
    """The event of the Job ``train-7``, and its pod."""
    at = datetime.fromtimestamp(started, UTC).isoformat() if started else None
    named = {"name": "train-7", "namespace": "default", "uid": "u", **metadata}
    manifest = {"metadata": named, "spec": spec, "status": {"startTime": at}}
    event = Upserted(WATCHED_KINDS["Job"].read(manifest)[0])
    return event, replace(pod, owner=Owner("Job", "train-7", uid))


def test_a_job_without_a_limit_of_its_own_is_not_kept():
    cluster = Cluster(history=0)
    bounded, pod = of_job(cluster.runs("train-7-x"), {"activeDeadlineSeconds": 600})
    cluster.state.apply([bounded, Upserted(pod)])
    assert cluster.state.end_costs.declared_end(pod)[0] == cluster.now + 600
    cluster.state.apply([of_job(pod, {})[0]])
    assert cluster.state.end_costs.declared_end(pod) == (math.inf, "")
    assert not [record for record in cluster.state.records() if record.kind == "Job"]


@pytest.mark.parametrize(
    ("what", "spec", "uid", "left"),
    [
        ("a pending pod ends with its Job", {"activeDeadlineSeconds": 600}, "u", 200.0),
        (
            "the clock of a suspended Job starts anew",
            {"activeDeadlineSeconds": 600, "suspend": True},
            "u",
            600.0,
        ),
        ("another Job had the name before", {"activeDeadlineSeconds": 600}, "v", math.inf),
        ("a limit that the API server rejects", {"activeDeadlineSeconds": 10**400}, "u", math.inf),
    ],
)
def test_when_a_pod_of_a_job_has_ended_at_the_latest(what, spec, uid, left):
    cluster = Cluster(history=0)
    event, pod = of_job(cluster.waits("train-7-x"), spec, started=cluster.now - 400, uid=uid)
    cluster.state.apply([event])
    assert cluster.state.end_costs.declared_end(pod)[0] == cluster.now + left, what


def test_the_limit_of_a_deleted_job_is_forgotten():
    cluster = Cluster(history=0)
    event, pod = of_job(cluster.runs("train-7-x"), {"activeDeadlineSeconds": 600})
    for gone in (Deleted("Job", "default/train-7"), Listed("Job", frozenset())):
        cluster.state.apply([event])
        assert cluster.state.end_costs.declared_end(pod)[1]
        cluster.state.apply([gone])
        assert not cluster.state.end_costs.declared_end(pod)[1]


def test_pods_that_still_run_tell_that_their_kind_runs_longer():
    alone, beside = Cluster(), Cluster()
    beside.state.apply([Upserted(replace(make_node("closed", 96), unschedulable=True))])
    for number in range(12):
        beside.runs(f"train-{100 + number}", node_name="closed", started=beside.now - 3 * HOUR)
    for cluster in (alone, beside):
        cluster.runs("train-77")
    first, second = (cluster.forecast(cluster.waits("next")) for cluster in (alone, beside))
    assert first.most is not None
    assert second.most is not None
    assert second.most - beside.now > first.most - alone.now


@pytest.mark.parametrize("service", [True, False])
def test_services_end_by_nobodys_forecast(service):
    cluster = Cluster()
    cluster.runs("api", is_service=service)
    found = cluster.forecast(cluster.waits("next"))
    assert (found.half is None) is service
    assert ("No start can be predicted" in found.text(cluster.now)) is service


def test_a_pod_that_fits_starts_now():
    cluster = Cluster()
    found = cluster.forecast(cluster.waits("next", 4))
    assert (found.half, found.most) == (cluster.now, cluster.now)
    assert "less than 1 min" in found.text(cluster.now)


def test_first_forecasts_are_judged_by_what_came():
    cluster = Cluster()
    cluster.runs("train-77")
    pod = cluster.waits("train-78")
    found = cluster.forecast(pod)
    cluster.state.apply([Deleted("Pod", "default/train-77")])
    assert found.half is not None
    cluster.now = found.half + 2 * INTERVAL
    asyncio.run(cluster.starts.refresh())
    cluster.state.apply([Upserted(replace(pod, node_name="a", phase="Running", started=cluster.now))])
    asyncio.run(cluster.starts.refresh())
    assert +cluster.starts.results == {("", 0.5, "missed"): 1, ("", 0.9, "held"): 1}


def test_a_pod_that_has_ended_before_the_next_forecast_started_in_time():
    cluster = Cluster()
    cluster.runs("train-77")
    pod = cluster.waits("train-78")
    found = cluster.forecast(pod)
    cluster.state.apply([Deleted("Pod", "default/train-77")])
    bound = replace(pod, node_name="a", phase="Running", started=cluster.now)
    cluster.state.apply([Upserted(bound), Upserted(replace(bound, phase="Succeeded"))])
    assert found.most is not None
    cluster.now = found.most + INTERVAL
    asyncio.run(cluster.starts.refresh())
    assert +cluster.starts.results == {("", 0.5, "held"): 1, ("", 0.9, "held"): 1}


def test_forecasts_that_are_missed_stretch_the_next():
    cluster = Cluster()
    cluster.runs("train-77")
    before = cluster.forecast(cluster.waits("train-78"))
    assert before.half is not None
    assert before.most is not None
    cluster.now = before.most + 2 * INTERVAL
    asyncio.run(cluster.starts.refresh())
    cluster.runs("train-99")
    fresh = Cluster()
    fresh.runs("train-99")
    for one in (cluster, fresh):
        one.state.apply([Deleted("Pod", "default/train-77"), Deleted("Pod", "default/train-78")])
    after, without = (one.forecast(one.waits("train-80")) for one in (cluster, fresh))
    assert after.half is not None
    assert without.half is not None
    assert after.half - cluster.now > 1.04 * (without.half - fresh.now)


def test_pods_that_keep_coming_may_start_before_those_that_wait():
    """Of two clusters with four pods in the queue, in one another comes every ten minutes."""
    quiet, busy = Cluster(), Cluster()
    made = []
    for cluster, apart in ((quiet, 0.0), (busy, 600.0)):
        cluster.runs("train-77")
        pods = [cluster.waits(f"train-{n}", created=cluster.now - n * apart) for n in range(4)]
        made.append([cluster.forecast(pod).most for pod in pods])
    assert max(made[1]) > max(made[0]) + HOUR


def test_jobs_as_short_as_the_backoff_are_overtaken_by_those_that_come_while_they_are_in_it():
    """In run times, pods wait longer where runs take 10 s than where they take a day."""
    waits = []
    for seconds in (10.0, 86_400.0):
        cluster = Cluster(history=0)
        cluster.runs("train-77", deadline=seconds)
        created = [cluster.now - number * seconds for number in range(4)]
        pods = [cluster.waits(f"train-{n}", created=at, deadline=seconds) for n, at in enumerate(created)]
        times = [cluster.forecast(pod).most for pod in pods]
        waits.append((max(times) - cluster.now) / seconds)
    assert waits[0] > 1.2 * waits[1]
