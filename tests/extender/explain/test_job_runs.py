from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from extender.explain.answers import Run
from extender.explain.history import History
from extender.explain.job_runs import RUN, JobRuns
from extender.k8s.objects import Deleted, Owner, Upserted
from extender.untrusted.limits import JOB_RUNS
from tests.extender.builders import make_node, make_pod, make_state

TRAIN = Owner("Job", "train")


async def test_a_run_begins_and_ends_and_is_forgotten() -> None:
    first = make_pod("train-a", 2, node_name="n", owner=TRAIN, started=50.0)
    state = make_state(
        make_node("n"), first, make_pod("other", 1, node_name="n"), make_pod("cpu", 0, node_name="n")
    )
    jobs = JobRuns(state)
    await jobs.look(100.0, 1000.0)
    state.apply([Upserted(make_pod("train-b", 3, node_name="n", owner=TRAIN))])
    await jobs.look(160.0, 1000.0)
    state.apply([Deleted("Pod", first.key)])
    await jobs.look(220.0, 1000.0)
    mine = [
        Run("default/train-a", "Job train", "n", 2.0, 50.0, 220.0, first.uid),
        Run("default/train-b", "Job train", "n", 3.0, 160.0, None, "uid-train-b"),
    ]
    assert [replace(run, uid="") for run in jobs.of_job("default/train-b", None)] == [
        replace(run, uid="") for run in mine
    ]
    assert jobs.of_job("default/train-a", None) == jobs.of_job("default/train-b", None)
    assert [run.pod for run in jobs.of_job("default/other", None)] == ["default/other"]
    assert jobs.of_job("elsewhere/train-a", replace(first, namespace="elsewhere")) == ()
    await jobs.look(220.0 + 1001.0, 1000.0)
    assert [run.pod for run in jobs.of_job("default/train-b", None)] == ["default/train-b"]


async def test_runs_outlive_a_restart(tmp_path: Path) -> None:
    history, pods = History(tmp_path, 1 << 20, "a"), [make_pod(name, node_name="n") for name in "ab"]
    before = JobRuns(make_state(make_node("n"), *pods), history)
    await before.look(100.0, 1000.0)
    after = JobRuns(make_state(make_node("n"), pods[0]))
    after.restore(await history.last(RUN, b'"run":', 10))
    await after.look(500.0, 1000.0)
    runs = [after.of_job(pod.key, None)[0] for pod in pods]
    assert [(run.start, run.end) for run in runs] == [(100.0, None), (100.0, 500.0)]


async def test_the_runs_of_a_large_job_are_bounded() -> None:
    pods = [make_pod(f"p{number}", 1, node_name="n", owner=TRAIN) for number in range(JOB_RUNS + 5)]
    jobs = JobRuns(make_state(make_node("n"), *pods))
    await jobs.look(1.0, 10.0)
    assert len(jobs.of_job("default/p0", pods[0])) == JOB_RUNS
