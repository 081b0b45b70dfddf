"""Waiting and running GPUs by queue, against counting all pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.census import CensusTaker, Waiting
from extender.cluster.state import State
from extender.explain.job_runs import Team, TeamUse, gpus_by_team
from extender.k8s.admission_objects import PriorityClass
from extender.k8s.objects import Deleted, Listed, Pod, Upserted
from tests.extender.builders import NOW, make_node, make_pod, make_state

QUEUE = "stowage.dev/queue"
MIG = "nvidia.com/mig-1g.10gb"


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
events = st.one_of(
    pods.map(Upserted),
    st.sampled_from("abcd").map(lambda name: Deleted("Pod", f"default/{name}")),
    st.sets(st.sampled_from("abcd")).map(
        lambda names: Listed("Pod", frozenset(f"default/{n}" for n in names))
    ),
)


def counted(state: State) -> tuple[dict[str, Waiting], dict[str, float]]:
    """Who waits and what the others have, by queue, by going through all pods."""
    waiting, used = {}, {}
    for queue in (*state.rights.queues.by_name, ""):
        mine = [pod for pod in state.pods.values() if state.rights.queues.name_of(pod) == queue]
        gpus = {pod.key: int(dict(pod.spec.containers[0].requests).get("nvidia.com/gpu", 0)) for pod in mine}
        waits = [
            pod for pod in mine
            if not (pod.node_name or pod.deleting or pod.gates) and gpus[pod.key]
        ]  # fmt: skip
        oldest = min((pod.created for pod in waits), default=None)
        waiting[queue] = Waiting(len(waits), sum(gpus[pod.key] for pod in waits), oldest)
        used[queue] = sum(gpus[pod.key] for pod in mine if pod.node_name)
    return waiting, used


def used_in(state: State) -> dict[str, float]:
    used = dict.fromkeys((*state.rights.queues.by_name, ""), 0.0)
    for team, gpus in asyncio.run(gpus_by_team(state)).items():
        used[team.queue] += gpus
    return used


def waiting_in(state: State, queue: str = "") -> Waiting:
    return asyncio.run(CensusTaker(state).take()).waiting[queue]


@settings(deadline=None)
@given(st.lists(events, max_size=12))
def test_every_pod_counts_once_in_its_queue(happened) -> None:
    state = make_state(make_node("n"))
    state.apply(happened)
    waiting = asyncio.run(CensusTaker(state).take()).waiting
    assert (waiting, used_in(state)) == counted(state)


def test_a_pod_that_gets_a_node_has_waited() -> None:
    state, waits = make_state(make_node("n")), []
    state.pods.on_bound = waits.append
    pod = in_queue("a", "batch")
    bound = replace(pod, node_name="n")
    state.apply([Upserted(pod), Upserted(bound), Upserted(bound)])
    assert waits == [bound]
    state.apply(
        [Upserted(in_queue("seen-bound", "", node_name="n")), Upserted(in_queue("late", "", uid="1"))]
    )
    state.apply([Upserted(in_queue("late", "", uid="2", node_name="n"))])  # another pod of that name
    assert waits == [bound]


def test_a_mig_instance_is_a_part_of_a_gpu_even_if_its_pod_came_before_the_node() -> None:
    state = make_state(make_pod("a", 2, resource=MIG), make_pod("b", 2, resource=MIG, node_name="mig"))
    assert (waiting_in(state).gpus, used_in(state)[""]) == (2, 2)
    state.apply([Upserted(make_node("mig", 0, **{MIG: "7"}))])
    part = pytest.approx(2 * (0.142 + 0.125) / 2, abs=0.01)
    assert (waiting_in(state).gpus, used_in(state)[""]) == (part, part)


def test_a_priority_class_may_move_pods_to_another_queue() -> None:
    pods = (
        make_pod("a", 1, priority_class="nightly"),
        make_pod("b", 1, node_name="n", priority_class="nightly"),
    )
    state = make_state(make_node("n"), *pods)
    assert (waiting_in(state).pods, used_in(state)[""]) == (1, 1)
    state.apply([Upserted(PriorityClass("nightly", queue="batch"))])
    assert (waiting_in(state, "batch").pods, used_in(state)["batch"]) == (1, 1)
    assert (waiting_in(state).pods, used_in(state)[""]) == (0, 0)


def test_a_request_that_cannot_be_read_waits_for_nobody_knows_how_much() -> None:
    assert waiting_in(make_state(make_node("n"), make_pod("odd", -1))) == Waiting(1, 0.0, 0.0)


def test_gpus_count_by_namespace_queue_and_model() -> None:
    pods = [in_queue("a", "batch", 2, node_name="n"), in_queue("b", "batch", 1, node_name="n")]
    pods += [replace(pods[1], namespace="ml"), in_queue("elsewhere", "", 1, node_name="gone")]
    state = make_state(make_node("n"), *pods)
    (model,) = {kind.model for kind in state.fleet.names.kinds if kind.model}
    assert asyncio.run(gpus_by_team(state)) == {
        Team("default", "batch", model): 3,
        Team("ml", "batch", model): 1,
        Team("default", "", "unknown"): 1,
    }


def test_many_namespaces_do_not_make_as_many_series() -> None:
    pods = [
        replace(in_queue("a", "", node_name="gone"), namespace=f"ns-{n}", uid=str(n)) for n in range(1200)
    ]
    found = asyncio.run(gpus_by_team(make_state(*pods)))
    assert len(found) == 1001
    assert found[Team("", "", "unknown")] == 200


async def test_teams_keep_the_hours_of_pods_that_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
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
