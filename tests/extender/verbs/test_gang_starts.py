"""Which gangs wait for which, and how long: kube-scheduler asks about the pods of several gangs in turn."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Listed, Node, Owner, Pod, PodGroup, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import GANG_PLACED, GANG_STARTS
from extender.verbs.filter import filter_nodes
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from tests.examples import examples
from tests.extender.builders import NOW, make_node, make_pod, make_settings, make_state


def gang(name: str, count: int, *, minimum: int = 0, namespace: str = "ml", **fields: Any) -> list[Pod]:
    labels = {"stowage.dev/gang": name, "stowage.dev/gang-min": str(minimum or count)}
    pods = (
        make_pod(f"{name}-{i}", labels=labels, uid=f"{namespace}-{name}-{i}", **fields) for i in range(count)
    )
    return [replace(pod, namespace=namespace) for pod in pods]


class Cluster:
    """A state with a clock of the test."""

    def __init__(self, *nodes: Node) -> None:
        self.state, self.now = make_state(*nodes), 1000.0
        self.state.gang_check, self.state.reservations.clock = True, lambda: self.now

    def create(self, pods: Sequence[Pod]) -> None:
        self.state.apply([Upserted(pod) for pod in pods])

    def ask(self, pod: Pod, *, after: float = 0.0) -> str:
        """Why the pod must wait, "" if there are nodes for it."""
        self.now += after
        answer, _ = filter_nodes(
            self.state, FilterArgs(pod, NodeNames.of(sorted(self.state.nodes))), make_settings()
        )
        assert answer.error or answer.names
        return answer.error


def started(first: list[Pod], *others: list[Pod]) -> Cluster:
    """There is room for all. kube-scheduler has asked about a member of the ``first`` gang."""
    nodes = [make_node(name, labels={"pool": name}) for name in "abc"]
    cluster = Cluster(*nodes)
    for pods in (first, *others):
        cluster.create(pods)
    assert cluster.ask(first[0]) == ""
    return cluster


FIRST, SECOND = gang("first", 2), gang("second", 2, namespace="web")


def elastic(roles: str) -> list[Pod]:
    """Pods of a PyTorchJob of which two must run: a master for each m, a worker for each w."""
    job = Owner("PyTorchJob", "el", "uid-el")
    names = {"m": "master", "w": "worker"}
    return [
        make_pod(
            f"el-{names[role]}-{i}",
            owner=job,
            labels={
                "training.kubeflow.org/job-name": "el",
                "training.kubeflow.org/replica-type": names[role],
            },
        )
        for i, role in enumerate(roles)
    ]


def test_the_last_place_of_the_minimum_is_for_the_member_that_the_others_need() -> None:
    cluster, (first, second, master) = Cluster(make_node("a")), elastic("wwm")
    cluster.state.apply([Upserted(PodGroup("PyTorchJob", "default", "el", 2))])
    cluster.create([first, second, master])
    assert cluster.ask(first) == ""
    cluster.create([replace(first, node_name="a", phase="Running")])
    assert cluster.ask(second) == "waits for default/el-master-2, without which its job is useless"
    assert cluster.ask(master) == ""
    cluster.create([replace(master, node_name="a", phase="Running")])
    assert cluster.ask(second) == ""


@pytest.mark.parametrize(
    ("change", "group", "says"),
    [
        ({}, {}, ""),
        ({}, None, "does not see its PodGroup"),
        ({"priority": 5}, {"priority": 5}, ""),
        ({"priority": 5}, {"priority": 7}, "its priority is 5, and that of its PodGroup 7"),
        ({"priority": 5}, {"priority": None}, ""),
        ({"scheduler_name": "other"}, {}, "has another schedulerName"),
    ],
)
def test_kube_scheduler_never_tries_a_group_that_does_not_match_its_members(
    change: dict[str, Any], group: dict[str, Any] | None, says: str
) -> None:
    cluster = Cluster(make_node("a"))
    pods = [make_pod(name, pod_group="g", **change) for name in ("g-0", "g-1")]
    if "scheduler_name" in change:
        pods[0] = make_pod("g-0", pod_group="g")
    cluster.state.apply([Listed("PodGroup", frozenset())])
    if group is not None:
        cluster.state.apply([Upserted(PodGroup("PodGroup", "default", "g", 2, **group))])
    cluster.create(pods)
    said = cluster.ask(pods[0])
    assert says in said
    assert bool(said) == bool(says)
    assert says in explain(cluster.state, pods[0]).held


@pytest.mark.parametrize(
    "change",
    [
        {"scheduler_name": "nobody"},
        {"gates": ("example.com/admission",)},
        {"deleting": True},
    ],
)
def test_nobody_waits_for_a_gang_with_a_member_that_does_not_start(change: dict[str, Any]) -> None:
    cluster = started(FIRST, SECOND)
    cluster.create([replace(FIRST[1], **change, created=1.0), replace(FIRST[0], created=1.0)])
    assert cluster.ask(SECOND[0]) == ""


@pytest.mark.parametrize(("seconds_ago", "waits"), [(1, True), (30, False)])
def test_a_gang_waits_for_another_whose_members_are_still_being_created(
    seconds_ago: int, waits: bool
) -> None:
    half = [replace(pod, created=time.time() - seconds_ago) for pod in gang("half", 2, minimum=3)]
    assert bool(started(half, SECOND).ask(SECOND[0])) == waits


def test_a_gang_is_held_back_by_one_namespace_for_twenty_seconds_whatever_the_names() -> None:
    cluster, waits = Cluster(make_node("a", 64)), []
    cluster.create(SECOND)
    for number in range(120):
        pods = gang(f"g{number}", 1, minimum=2)  # each is half created
        cluster.create(pods)
        cluster.ask(pods[0], after=0.25)
        waits.append(bool(cluster.ask(SECOND[0])))
    assert waits[0]
    assert not any(waits[80:])


def test_others_wait_for_a_limited_number_of_gangs_of_one_namespace() -> None:
    cluster = Cluster(make_node("a", 64), make_node("b", 64, labels={"pool": "b"}))
    many = [gang(f"g{number}", 2) for number in range(3 * GANG_STARTS)]
    for pods in many:
        cluster.create(pods)
        cluster.ask(pods[0])
    assert len(cluster.state.reservations.starts.before("another", 0)) == 1
    cluster.now += 11
    assert len(cluster.state.reservations.starts.before("another", 0)) == GANG_STARTS - 1


def test_members_of_a_gang_that_all_differ_are_placed_once_for_each_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(*(make_node(f"n{number}", 1) for number in range(300)))
    policy, costs = cluster.state.policy, list[Request]()
    cost = policy.cost

    def counted(fleet: Fleet, request: Request) -> Floats:
        costs.append(request)
        return cost(fleet, request)

    monkeypatch.setattr(policy, "cost", counted)
    monkeypatch.setattr("time.time", lambda: NOW)  # the answer is kept for 10 s
    pods = gang("unlike", 256)
    pods = [replace(pod, spec=make_pod("x", cpu=f"{i + 1}m").spec) for i, pod in enumerate(pods)]
    cluster.create(pods)
    for pod in pods:
        assert cluster.ask(pod) == ""
    assert len(costs) <= len(pods) + GANG_PLACED


QUOTA, ROOM, NODE = 4, 16, 4
"""GPUs that the other namespace may request at the same time, of all nodes, and of one node."""
BOUND = 40.0
"""Seconds: 20 of waiting, 10 until the next attempt, and the time in which pods are created and bound."""


@dataclass
class KubeScheduler:
    """One queue with backoff; it counts GPUs itself. The watch shows bindings some attempts later."""

    cluster: Cluster
    draw: random.Random
    free: Counter[str] = field(default_factory=Counter)
    pending: dict[str, tuple[float, float, Pod]] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    unseen: list[tuple[float, Pod]] = field(default_factory=list)

    def create(self, pods: Sequence[Pod]) -> None:
        self.cluster.create(pods)
        self.pending |= {pod.uid: (self.cluster.now, 1.0, pod) for pod in pods}

    def delete(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            self.pending.pop(pod.uid, None)
            if node := self.bound.pop(pod.uid, ""):
                self.free[node] += 1
            self.unseen = [(at, other) for at, other in self.unseen if other.uid != pod.uid]
            self.cluster.state.apply([Deleted("Pod", pod.key)])

    def step(self) -> None:
        """An attempt, if a pod is due, and what the watch shows until its end."""
        now = self.cluster.now = self.cluster.now + 0.05
        due = [(at, delay, pod) for at, delay, pod in self.pending.values() if at <= now]
        if due:
            self.attempt(*min(due, key=lambda entry: (-entry[2].priority, entry[0])))
        self.cluster.state.apply([Upserted(pod) for at, pod in self.unseen if at <= now])
        self.unseen = [(at, pod) for at, pod in self.unseen if at > now]
        assert not self.cluster.state.overcommitted

    def attempt(self, at: float, delay: float, pod: Pod) -> None:
        self.pending[pod.uid] = self.cluster.now + delay, min(2 * delay, 10.0), pod
        names = NodeNames.of([name for name, free in sorted(self.free.items()) if free])
        if pod.scheduler_name == "nobody" or not names:
            return
        answer, _ = filter_nodes(self.cluster.state, FilterArgs(pod, names), make_settings())
        if answer.names and not pod.labels.get("unbindable"):
            node = self.draw.choice(list(answer.names))
            self.free[node] -= 1
            del self.pending[pod.uid]
            self.bound[pod.uid] = node
            seen = replace(pod, node_name=node, phase="Running")
            self.unseen.append((self.cluster.now + self.draw.uniform(0, 0.4), seen))


def intruder(draw: random.Random, number: int) -> list[Pod]:
    """A gang of another namespace that starts, or never does for one of several reasons."""
    pods = gang(f"x{number}", 2, minimum=draw.choice([2, 2, 3]), namespace="x")
    change = draw.choice(
        [{}, {"scheduler_name": "nobody"}, {"gates": ("g",)}, {"labels": {"unbindable": "y"}}]
    )
    labels = pods[1].labels | change.pop("labels", {})
    return [pods[0], replace(pods[1], labels=labels, **change)][: draw.choice([1, 2, 2])]


@given(seed=st.integers(0, 2**32), pause=st.sampled_from([0.1, 0.25, 1.0]), hold=st.sampled_from([0.0, 60.0]))
@settings(max_examples=examples(20, least=2))
def test_of_two_gangs_one_starts_whole_and_in_time_whatever_another_namespace_does(
    seed: int, pause: float, hold: float
) -> None:
    """There is room for either beside all that the other namespace may have."""
    draw = random.Random(seed)
    cluster = Cluster(*(make_node(f"n{number}", NODE) for number in range(ROOM // NODE)))
    cluster.state.gang_holds.seconds = hold
    kube = KubeScheduler(cluster, draw, Counter(dict.fromkeys(cluster.state.nodes, NODE)))
    honest = [gang(name, draw.randint(9, ROOM - QUOTA), namespace=name) for name in "ab"]
    to_create = [list(pods) for pods in honest]
    began, intruders, number, next_at = cluster.now + 5, list[list[Pod]](), 0, 0.0
    while cluster.now < began + BOUND + 30:
        if cluster.now >= next_at:
            next_at, number = cluster.now + pause, number + 1
            intruders.append(intruder(draw, number))
            while sum(map(len, intruders)) > QUOTA:
                kube.delete(intruders.pop(0))
            kube.create(intruders[-1])
        if cluster.now >= began:
            pods = draw.choice(to_create)
            kube.create([pods.pop() for _ in range(min(len(pods), draw.choice([0, 0, 1, 2])))])
        kube.step()
        started = [sum(pod.uid in kube.bound for pod in pods) for pods in honest]
        if cluster.now >= began + BOUND:
            assert any(count == len(pods) for count, pods in zip(started, honest, strict=True)), started
    assert 0 in started, started
