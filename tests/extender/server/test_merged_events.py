"""Updates of an object that wait together are applied as one, and the state becomes the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.reservations import FAILED, Reserved
from extender.cluster.state import State
from extender.k8s.objects import Deleted, Event, Listed, Node, Owner, Pod, Upserted
from extender.server.between_answers import EventQueue
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.builders import NOW, make_node, make_pod

NAMES, NODES = ("a", "b", "c"), ("n1", "n2")
PREEMPTED = "PreemptionByScheduler"
names, nodes = st.sampled_from(NAMES), st.sampled_from(NODES)
STEPS = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 8)),
    st.tuples(st.sampled_from(["bind", "nominate"]), names, nodes),
    st.tuples(
        st.sampled_from(
            ["fail", "clear", "start", "terminate", "preempt", "finish", "delete", "recreate", "change"]
        ),
        names,
        st.none(),
    ),
    st.tuples(st.sampled_from(["change node", "remove node"]), nodes, st.integers(0, 8)),
    st.tuples(st.sampled_from(["relist", "relist without events"]), st.none(), st.none()),
)


class Truth:
    """What an API server has, and the events that tell of it."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {name: make_node(name) for name in NODES}
        self.uids = 0
        self.events: list[Event] = self.lists()

    def lists(self) -> list[Event]:
        known = [*map(Upserted, self.nodes.values()), Listed("Node", frozenset(self.nodes))]
        return [*known, *map(Upserted, self.pods.values()), Listed("Pod", frozenset(self.pods))]

    def put(self, pod: Pod) -> None:
        self.pods[pod.key] = pod
        self.events.append(Upserted(pod))

    def step(self, what: str, name: str | None, value: object) -> None:
        pod = self.pods.get(f"default/{name}")
        match what:
            case "relist":
                self.events += self.lists()
            case "relist without events":  # the watch broke, and some events were lost
                del self.events[-3:]
                self.events += self.lists()
            case "change node":
                self.nodes[str(name)] = make_node(str(name), int(str(value)))
                self.events.append(Upserted(self.nodes[str(name)]))
            case "remove node" if self.nodes.pop(str(name), None):
                self.events.append(Deleted("Node", str(name)))
            case "create" if pod is None:
                self.uids += 1
                owner, labels = Owner("Job", f"j-{name}", "u"), {"stowage.dev/gang": "g"}
                gpus, uid = int(str(value)), f"u{self.uids}"
                self.put(make_pod(str(name), gpus, uid=uid, owner=owner, labels=labels, created=NOW))
            case "delete" | "recreate" if pod is not None:
                del self.pods[pod.key]
                self.events.append(Deleted("Pod", pod.key))
                if what == "recreate":
                    self.step("create", name, 1)
            case _ if pod is not None and not pod.terminated:
                self.put(replace(pod, **_changes(what, pod, value)))


def _changes(what: str, pod: Pod, value: object) -> dict[str, object]:
    match what:
        case "bind" if not pod.node_name:
            return {"node_name": value, "nominated_node": "", "unscheduled": ""}
        case "nominate" if not pod.node_name:
            return {"nominated_node": value}
        case "fail" if not pod.node_name:
            return {"nominated_node": "", "unscheduled": FAILED}
        case "clear" if not pod.node_name:
            return {"nominated_node": "", "unscheduled": ""}
        case "start" if pod.node_name:
            return {"phase": "Running", "started": pod.started or NOW, "ready": not pod.ready}
        case "terminate":
            return {"deleting": True, "deleted": NOW}
        case "preempt":
            return {"disruption": "" if pod.disruption else PREEMPTED, "disrupted": NOW}
        case "finish" if pod.node_name:
            return {"phase": "Succeeded", "finished": NOW}
        case "change":
            return {"annotations": {"changed": str(len(pod.annotations.get("changed", "")) + 1)}}
    return {}


def state() -> tuple[State, list[str]]:
    made, bound = State(POLICIES["best-fit"]()), list[str]()
    made.pods.on_bound = lambda pod: bound.append(pod.uid)
    made.disruptions._now = made.end_costs.clock = made.pods.now = lambda: NOW
    made.reservations.clock = lambda: 0.0
    return made, bound


def known_to(state: State) -> list[object]:
    """All that the state has learned from events, except for the demand, which depends on the nodes then."""
    pods, fleet = state.pods, state.fleet
    compute = {name: fleet.arrays.compute[:, row].tolist() for name, row in fleet.rows.items()}
    gangs = [(pod.key, state.gangs.running(key)) for key in ["default/g"] for pod in state.gangs.members(key)]
    return [
        dict(pods),
        dict(state.nodes),
        compute,
        {name: sorted(pod.uid for pod in pods.on_node(name)) for name in NODES},
        set(pods.waiting) | {f"leaving {key}" for key in pods.leaving},
        [state.reservations.by_reason(reason) for reason in Reserved],
        sorted(gangs),
        state.disruptions.pods,
        state.end_costs.ends.running,
        state.overcommitted,
        state.problems,
        state.synced,
    ]


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(STEPS, max_size=40), st.lists(st.integers(1, 30), max_size=8))
def test_the_state_becomes_the_same(steps: list[tuple[str, str | None, object]], portions: list[int]) -> None:
    truth = Truth()
    for step in steps:
        truth.step(*step)
    (one_by_one, bound), (merged, also_bound) = state(), state()
    for event in truth.events:
        one_by_one.apply([event])

    async def apply_in_portions() -> int:
        rest, applied = list(truth.events), 0

        def apply(events: Sequence[Event]) -> None:
            nonlocal applied
            applied += len(events)
            merged.apply(events)

        queue = EventQueue(lambda: True)
        for portion in [*portions, len(rest)]:
            queue.put(rest[:portion])
            del rest[:portion]
            if queue._apply is None:
                await queue.open(apply)
            await queue.applied()
        return applied

    assert asyncio.run(apply_in_portions()) <= len(truth.events)
    assert known_to(merged) == known_to(one_by_one)
    assert also_bound == bound


def applied(*events: Event) -> list[Event]:
    """What is applied of these, if they have all arrived before any is."""
    given: list[Event] = []

    async def run() -> None:
        queue = EventQueue(lambda: True)
        for event in events:
            queue.put([event])
        await queue.open(given.extend)

    asyncio.run(run())
    return given


PENDING, OTHER = make_pod("p"), Upserted(make_pod("other"))
BOUND = replace(PENDING, node_name="n1")
RUNS = replace(BOUND, phase="Running", ready=True)
GONE = Deleted("Pod", PENDING.key)


def test_only_the_latest_of_a_hundred_updates_is_applied_in_the_place_of_the_first() -> None:
    updates = [Upserted(replace(RUNS, annotations={"n": str(number)})) for number in range(100)]
    assert applied(updates[0], OTHER, *updates[1:]) == [updates[-1], OTHER]
    heartbeats = [Upserted(make_node("n1", gpus)) for gpus in range(5)]
    assert applied(*heartbeats) == [heartbeats[-1]]


def test_each_step_in_the_life_of_a_pod_is_applied() -> None:
    ended = replace(RUNS, phase="Failed")
    steps = [Upserted(pod) for pod in (PENDING, BOUND, replace(BOUND, deleting=True), ended)]
    assert applied(*steps, GONE) == [*steps, GONE]


def test_a_pod_under_the_same_name_is_another_one() -> None:
    other = Upserted(replace(PENDING, uid="another"))
    assert applied(Upserted(PENDING), GONE, other) == [Upserted(PENDING), GONE, other]
    assert applied(GONE, other) == [GONE, other]
    assert applied(Upserted(PENDING), other) == [Upserted(PENDING), other]  # as lists show it
