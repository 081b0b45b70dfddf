"""Pods that end together: learned from the watch, and what it changes in an answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extender.cluster.end_costs import EndCosts, kind_of
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Listed, Owner, Pod, Upserted
from packing.model.lifetimes import calibration_error
from tests.extender.builders import make_node, make_pod, make_settings

HOUR = 3600.0


class Cluster:
    """Three nodes, and jobs that came and went: sleepers ran for 10 hours, naps for one."""

    def __init__(self, *, lifetimes: bool = True) -> None:
        self.now = 1e9
        self.state: State = state_of(make_settings(lifetimes=lifetimes))
        self.state.end_costs = EndCosts(self.state.fleet, self.state.allocations, clock=lambda: self.now)
        self.state.end_costs.enabled = lifetimes
        nodes = [make_node(name, 8) for name in ("a", "b", "c")]
        self.state.apply([*map(Upserted, nodes), Listed("Node", frozenset("abc"))])
        self.state.apply([Listed("Pod", frozenset())])
        for number in range(6):
            for job, hours in (("sleeper", 10), ("nap", 1)):
                pod = self.runs(f"{job}-{number}", "a", job)
                self.now += hours * HOUR
                self.state.apply([Upserted(replace(pod, phase="Succeeded"))])
                self.state.apply([Deleted("Pod", pod.key)])

    def runs(self, name: str, node: str, job: str) -> Pod:
        pod = replace(self.waits(name, job), node_name=node, phase="Running", started=self.now)
        self.state.apply([Upserted(pod)])
        return pod

    def waits(self, name: str, job: str) -> Pod:
        return replace(make_pod(name, 2), owner=Owner("Job", f"{job}-{abs(hash(name)) % 97}"))

    def order(self, pod: Pod) -> list[str]:
        """The nodes, the best first."""
        self.state.apply([Upserted(pod)])
        for _ in range(300):
            self.state.end_costs.update()
        best = [option.node for option in explain(self.state, pod).best]
        self.state.apply([Deleted("Pod", pod.key)])
        return best


def test_a_pod_goes_where_others_end_as_late() -> None:
    cluster = Cluster()
    cluster.runs("x", "a", "sleeper")
    cluster.runs("y", "b", "nap")
    assert cluster.order(cluster.waits("p", "sleeper"))[0] == "a"
    cluster.now += 9.5 * HOUR
    cluster.state.apply([Deleted("Pod", "default/y")])
    cluster.runs("z", "b", "sleeper")
    assert cluster.order(cluster.waits("p", "sleeper"))[0] == "b"


def test_without_the_setting_or_an_owner_nothing_changes() -> None:
    off, on = Cluster(lifetimes=False), Cluster()
    for cluster in (off, on):
        cluster.runs("x", "a", "sleeper")
    assert off.state.end_costs(off.waits("p", "sleeper")) is None
    assert on.state.end_costs(make_pod("nobodys", 2)) is None
    assert on.state.end_costs(on.waits("p", "never seen")) is None


def test_what_is_gone_at_a_list_runs_no_longer_and_pods_without_gpus_do_not_count() -> None:
    cluster = Cluster()
    cluster.runs("x", "a", "sleeper")
    cluster.state.apply([Upserted(replace(make_pod("cpu", 0), node_name="b", started=1.0))])
    assert set(cluster.state.end_costs.ends.running) == {"default/x"}
    cluster.state.apply([Listed("Pod", frozenset())])
    assert not cluster.state.end_costs.ends.running


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("train-llm-28391", "train-llm"), ("web-5d8f7c9b44", "web"), ("etl-2026-11-27", "etl"), ("llm", "llm")],
)
def test_runs_of_one_job_are_of_one_kind(owner: str, kind: str) -> None:
    pod = replace(make_pod("p"), owner=Owner("Job", owner))
    assert kind_of(pod) == ("default", "Job", kind)


def test_a_node_that_is_kept_busy_for_a_mean_run_time_longer_costs_a_gpu_more() -> None:
    cluster = Cluster()
    cluster.runs("x", "a", "nap")
    pod = cluster.waits("p", "sleeper")
    for _ in range(300):
        cluster.state.end_costs.update()
    costs, ends, rows = cluster.state.end_costs(pod), cluster.state.end_costs.ends, cluster.state.fleet.rows
    prolonged = ends.prolonged(kind_of(pod))
    assert costs is not None
    assert prolonged is not None
    assert costs[rows["a"]] == pytest.approx(1.0 * prolonged[0][ends.places["a"]])
    assert costs[rows["c"]] == pytest.approx(1.0 * prolonged[1])
    assert costs[rows["c"]] > costs[rows["a"]] > 0.5


@pytest.mark.parametrize("lifetimes", [True, False])
def test_nodes_that_are_gone_are_forgotten(lifetimes):
    cluster = Cluster(lifetimes=lifetimes)
    for number in range(50):
        name = f"spot-{number}"
        cluster.state.apply([Upserted(make_node(name, 8))])
        pod = cluster.runs(f"on-{number}", name, "nap")
        cluster.state.apply([Deleted("Pod", pod.key), Deleted("Node", name)])
        cluster.state.end_costs.update()
    assert len(cluster.state.end_costs.ends.places) < 10


def run(cluster: Cluster, pod: Pod, seconds: float, **ends: object) -> None:
    """The pod runs from now on, and leaves after these seconds."""
    running = replace(pod, node_name="a", phase="Running", started=cluster.now)
    cluster.state.apply([Upserted(running)])
    cluster.now += seconds
    cluster.state.apply([Upserted(replace(running, **ends))] if ends else [])
    cluster.state.apply([Deleted("Pod", pod.key)])


def test_pods_that_use_a_part_of_their_limits_are_expected_to_do_so_again() -> None:
    """Their run times differ by a factor of 30: only the limit says how long the next one runs."""
    cluster = Cluster()
    for number in range(20):
        hours = 0.1 * 1.2**number
        pod = replace(cluster.waits(f"p{number}", "sweep"), deadline=3 * hours * HOUR)
        run(cluster, pod, hours * HOUR, phase="Succeeded")
    pod = replace(cluster.waits("next", "sweep"), deadline=30 * HOUR)
    half = float(cluster.state.end_costs.remaining(pod, np.array([0.5]))[0])
    assert half == pytest.approx(10 * HOUR, rel=0.05)


def test_the_calibration_error_is_the_mean_distance_from_the_probability() -> None:
    half = {(0.5, "held"): 6, (0.5, "missed"): 4}
    assert calibration_error({}) is None
    assert calibration_error(half) == pytest.approx(0.1)
    assert calibration_error({**half, (0.9, "held"): 7, (0.9, "missed"): 3}) == pytest.approx(0.15)
