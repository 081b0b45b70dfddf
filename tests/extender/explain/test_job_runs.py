from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from extender.explain import job_runs
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


def history_of(directory: Path, name: str = "a", size: int = 64 << 20) -> History:
    return History(directory, size, name)


async def restored(history: History) -> list[Run]:
    return [*await history.last(RUN, b'"ended":', 10**6), *await history.last(RUN, b'"run":', 10**6)]


async def test_no_more_are_written_at_once_than_the_queue_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runs, "HISTORY_QUEUED", 20)
    history = history_of(tmp_path)
    history._queued = deque(maxlen=20)
    jobs = JobRuns(
        make_state(make_node("n"), *[make_pod(f"p{n}", node_name="n") for n in range(50)]), history
    )
    for _ in range(6):
        history.add("sample", {}, 0.0)
        await jobs.look(60.0, 1000.0)
        history._write()
    assert len({run.uid for run in await restored(history)}) == 50


async def test_what_goes_on_outlives_the_files_that_are_removed(tmp_path: Path) -> None:
    """Pods come and go until the files with the beginnings of the first are removed; then nobody looks while
    these end, and the other of two replicas reads the files."""
    long = [make_pod(f"long{number}", node_name="n", started=5.0) for number in range(20)]
    state, history = make_state(make_node("n"), *long), history_of(tmp_path, size=60_000)
    jobs, other = JobRuns(state, history), JobRuns(state, history_of(tmp_path, "b", 60_000))
    begun = 0
    while history.files_begun < 6:
        short = make_pod(f"short{begun}", node_name="n", started=6.0)
        for event in (Upserted(short), Deleted("Pod", short.key)):
            state.apply([event])
            await jobs.look(100.0 + begun, 1e6)
            history._write()
        begun += 1
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 60_000
    assert begun > 100  # the beginnings of the long ones were written again less often than this
    other.restore(await restored(history_of(tmp_path, "b", 60_000)))
    assert {run.end for pod in long for run in other.of_job(pod.key, None)} == {None}
    assert all(other.of_job(pod.key, None) for pod in long)
    state.apply([Deleted("Pod", pod.key) for pod in long])
    await other.look(9e5, 1e6)
    assert {run.end for pod in long for run in other.of_job(pod.key, None)} == {9e5}


async def test_the_runs_of_a_large_job_are_bounded() -> None:
    pods = [make_pod(f"p{number}", 1, node_name="n", owner=TRAIN) for number in range(JOB_RUNS + 5)]
    jobs = JobRuns(make_state(make_node("n"), *pods))
    await jobs.look(1.0, 10.0)
    assert len(jobs.of_job("default/p0", pods[0])) == JOB_RUNS
