"""50 jobs end by themselves on 8 nodes, and those that wait are told when they start: all come at once, or
most come later. kube-scheduler waits up to 10 s before it tries a pod again, a third of a run here, so those
that come later often go first.

Nine of ten starts should come within the 90 % time; the test asks for three of four.
"""

from __future__ import annotations

import random
import time
from datetime import datetime

import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .workload import job, node, pod

NODES, JOBS = 8, 50
ENOUGH = 0.75


@pytest.mark.parametrize("at_once", [JOBS, 12])
def test_jobs_start_when_it_was_forecast(
    cluster: ControlPlane, api: Api, new_stowage: Stowage, at_once: int
) -> None:
    rng = random.Random(7)
    for number in range(NODES):
        api.create(node(f"n{number}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    with (
        cluster.controller_manager(["job-controller"]),
        cluster.scheduler(scheduler_configuration(new_stowage.url)),
    ):
        for number in range(JOBS):
            if number >= at_once:
                time.sleep(rng.expovariate(NODES / 32))  # as many as end
            seconds = round(30 * rng.lognormvariate(0, 0.4))
            api.create(job(f"train-{number}", pod("", {GPU: 8}, runs_for=f"{seconds}s")))
        eventually(lambda: _started(api) == JOBS, within_s=600, what="all jobs start", every_s=1)
        eventually(lambda: _are_judged(new_stowage), within_s=60, what="forecasts are judged", every_s=1)
    held, missed = _judged(new_stowage, "0.9")
    print(f"90 %: {held:g} held, {missed:g} missed")
    assert held >= ENOUGH * (held + missed), (held, missed)


def test_the_limit_of_a_job_counts_from_the_job_s_own_start(
    cluster: ControlPlane, api: Api, new_stowage: Stowage
) -> None:
    """Also for a pod that replaces another one, and anew once the Job was suspended."""
    api.create(node("n1", {GPU: 8}))
    train = job("train", pod("", {GPU: 8}))
    train["spec"]["activeDeadlineSeconds"] = 600
    with (
        cluster.controller_manager(["job-controller"]),
        cluster.scheduler(scheduler_configuration(new_stowage.url)),
    ):
        api.create(train)
        first = _running(api, "")
        time.sleep(2)  # times of the API server are whole seconds
        api.delete("Pod", first["metadata"]["name"])
        second = _running(api, first["metadata"]["uid"])
        began = _seconds(api.get("Job", "train")["status"]["startTime"])
        assert _seconds(second["status"]["startTime"]) > began
        eventually(lambda: _until(new_stowage) == began + 601, within_s=10, what="Stowage knows the end")
        api.patch("Job", "train", {"spec": {"suspend": True}})
        eventually(lambda: not api.list("Pod")["items"], within_s=30, what="the Job is suspended")
        api.patch("Job", "train", {"spec": {"suspend": False}})
        _running(api, second["metadata"]["uid"])
        again = _seconds(api.get("Job", "train")["status"]["startTime"])
        assert again > began
        eventually(lambda: _until(new_stowage) == again + 601, within_s=10, what="the clock starts anew")


def _running(api: Api, after: str) -> Object:
    """The only pod, once it runs and is not the one with the UID ``after``."""

    def running() -> list[Object]:
        pods = api.list("Pod")["items"]
        return [
            one for one in pods if one["status"]["phase"] == "Running" and one["metadata"]["uid"] != after
        ]

    eventually(lambda: bool(running()), within_s=60, what="a pod runs")
    return running()[0]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _until(stowage: Stowage) -> float | None:
    """When the only pod with GPUs ends at the latest, and a grace period of a second is over."""
    ends = [holder["until"] for holder in stowage.json("/debug/pods")["holders"]]
    return ends[0] if ends else None


def _started(api: Api) -> int:
    return sum(bool(one["spec"].get("nodeName")) for one in api.list("Pod")["items"])


def _are_judged(stowage: Stowage) -> bool:
    """Whether a quarter of the jobs had a forecast: nothing is known when the first come, and some never
    wait."""
    return sum(_judged(stowage, "0.9")) >= JOBS / 4


def _judged(stowage: Stowage, quantile: str) -> tuple[float, float]:
    """How many forecasts held, and how many were missed."""
    name = "stowage_start_forecasts_total"
    labels = f'quantile="{quantile}",queue="none"'
    held, missed = (stowage.metric(f'{name}{{{labels},result="{result}"}}') for result in ("held", "missed"))
    return held, missed
