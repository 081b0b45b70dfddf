"""Waiting and running GPUs by queue, against counting all pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from extender.cluster.census import CensusTaker, Waiting
from extender.cluster.state import State
from extender.explain import job_runs
from extender.explain.job_runs import Team, TeamUse, gpus_by_team
from extender.k8s.objects import Deleted, Pod, Upserted
from tests.extender.builders import NOW, make_node, make_pod, make_state

QUEUE = "stowage.dev/queue"


def in_queue(name: str, queue: str, gpus: int = 1, **more) -> Pod:
    return make_pod(name, gpus, labels={QUEUE: queue} if queue else {}, created=NOW - 100, **more)


pods = st.builds(
    in_queue,
    st.sampled_from("abcd"),
    st.sampled_from(["batch", "backfill", "", "unheard-of"]),
    st.integers(0, 3),
    node_name=st.sampled_from(["", "", "n"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded"]),
    gates=st.sampled_from([(), (), ("example.com/gate",)]),
    deleting=st.booleans(),
    uid=st.sampled_from(["", "another"]),
)


def waiting_in(state: State, queue: str = "") -> Waiting:
    return asyncio.run(CensusTaker(state).take()).waiting[queue]


def test_a_request_that_cannot_be_read_waits_for_nobody_knows_how_much() -> None:
    assert waiting_in(make_state(make_node("n"), make_pod("odd", -1))) == Waiting(1, 0.0, 0.0)


def test_many_namespaces_do_not_make_as_many_series() -> None:
    pods = [
        replace(in_queue("a", "", node_name="gone"), namespace=f"ns-{n}", uid=str(n)) for n in range(1200)
    ]
    found = asyncio.run(gpus_by_team(make_state(*pods)))
    assert len(found) == 1001
    assert found[Team("", "", "unknown")] == 200


async def test_teams_keep_the_hours_of_pods_that_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    # Not time.monotonic itself: a service of other tests may run in this process, and its timers would wait.
    monkeypatch.setattr(job_runs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    runs = in_queue("a", "batch", 2, node_name="n")
    state = make_state(make_node("n"), runs, replace(runs, namespace="ml", name="b"))
    teams = TeamUse(state)
    await teams.count()
    clock[0] = 3600.0
    await teams.count()
    state.apply([Deleted("Pod", runs.key)])
    for clock[0] in (3600.0, 9999.0):
        await teams.count()
    hours = teams.hours()
    value = state.fleet.values.of(next(iter(teams.gpu_seconds)).model, "")
    assert hours["namespace"]["default"] == pytest.approx((2, 2 * value))
    assert hours["namespace"]["ml"][0] > 2
    assert hours["queue"]["batch"][0] == sum(one[0] for one in hours["namespace"].values())
    clock[0] += 86_400
    await teams.count()
    assert {team.namespace for team in teams.gpu_seconds} == {"ml"}  # nothing runs in the other


async def test_namespaces_beyond_a_number_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.explain.job_runs.TEAMS", 10)
    state = make_state(make_node("n", 8))
    teams = TeamUse(state)
    for day in range(5):
        pods_here = [make_pod(f"p{n}", 1, node_name="n") for n in range(6)]
        here = [replace(pod, namespace=f"ns{day}-{pod.name}") for pod in pods_here]
        state.apply([*map(Upserted, here)])
        await teams.count()
        await teams.count()
        state.apply([Deleted("Pod", pod.key) for pod in here])
    assert len(teams.gpu_seconds) <= 11
    assert any(not team.namespace and seconds > 0 for team, seconds in teams.gpu_seconds.items())
