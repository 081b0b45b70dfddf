"""What the evictor decides, on a real state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from extender.cluster.state import State
from extender.evictor.book import SETTLE, Hold, Schedulers
from extender.evictor.decision import (
    best_plan,
    candidates,
    needs_no_plan,
    nodes_for,
    why_evicted,
)
from extender.k8s.affinity import Taint
from extender.k8s.objects import Container, Node, Pod, PodSpec, Upserted
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import Queue
from extender.untrusted.limits import SCHEDULERS
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from packing.policies.registry import POLICIES
from tests.extender.builders import GPU, make_node, make_pod, make_state
from tests.extender.evictor.waiting import settled, victim, waiter


def test_schedulers_are_bounded() -> None:
    """A caller writes any names into filter requests."""
    known = Schedulers(["stowage"])
    for number in range(10 * SCHEDULERS):
        known.note(f"s{number}")
    assert "stowage" in known
    assert "s0" in known
    assert len(known._names) == SCHEDULERS


def test_who_gets_no_room_and_why() -> None:
    pods = {
        "gated": waiter("gated", gates=("example.com/gate",)),
        "nominated": waiter("nominated"),
        "settling": waiter("settling"),
        "backing_off": waiter("later"),
    }
    book = settled(*(pod for reason, pod in pods.items() if reason != "settling"))
    book.see({pod.uid for pod in pods.values()}, 0.0)
    book.holds["uid-nominated"] = Hold("n1", frozenset(), 1e9, ours=True)
    book.delay("uid-later", 0.0)
    skipped: Counter[str] = Counter()
    assert candidates(book, pods.values(), 1.0, skipped) == []
    assert skipped == dict.fromkeys(pods, 1)
    assert [pod.name for pod in candidates(book, pods.values(), SETTLE, skipped)] == ["later", "settling"]
    book.holds["uid-nominated"].partial = True  # not all of its victims could be evicted: it needs a new plan
    assert pods["nominated"] in candidates(book, pods.values(), 1.0, skipped)


def test_nodes_are_those_that_kube_scheduler_would_accept() -> None:
    tainted = replace(make_node("n2"), taints=(Taint("a", "b", "NoSchedule"),))
    state = make_state(make_node("n1"), tainted, replace(make_node("n3"), unschedulable=True))
    assert nodes_for(state, waiter(), asked=["n2"]) == ["n1"]
    with_volume = waiter(has_other_constraints=True)
    assert nodes_for(state, with_volume, asked=["n1", "gone"]) == ["n1"]
    assert nodes_for(state, with_volume, asked=[]) == []


def test_resources_that_stowage_does_not_count_are_left_to_kube_scheduler() -> None:
    """Else anybody could have pods evicted for one that fits nowhere."""

    def nodes(resource: str, amount: str) -> list[str]:
        requests = (("cpu", "1"), (GPU, "1"), (resource, amount))
        return nodes_for(state, waiter(spec=PodSpec((Container("main", requests),))), asked=["n2"])

    storage = {"ephemeral-storage": "100Gi"}
    first, second = make_node("n1"), make_node("n2")
    first = replace(first, allocatable={**first.allocatable, **storage})
    state = make_state(first, second)
    assert nodes("nvidia.com/gpu", "1") == ["n1", "n2"]
    assert nodes("rdma/hca", "1") == nodes("hugepages-2Mi", "2Mi") == ["n2"]
    assert nodes("ephemeral-storage", "10Gi") == ["n1"]
    assert nodes("ephemeral-storage", "200Gi") == nodes("ephemeral-storage", "1E") == []


def full(*more: Node | Pod) -> State:
    return make_state(make_node("n1", gpus=1), victim(), *more)


def test_a_pod_that_fits_somewhere_needs_no_eviction() -> None:
    assert needs_no_plan(full(make_node("n2")), waiter(), ["n1", "n2"]) == "fits"
    assert needs_no_plan(full(make_node("n2")), waiter(), ["n1"]) == ""
    assert needs_no_plan(full(), make_pod("p", 0), ["n1"]) == "no_gpu"
    unreadable = waiter(annotations={"stowage.dev/gpu-compute": "lots"})
    assert needs_no_plan(full(), unreadable, ["n1"]) == "unreadable"
    assert needs_no_plan(full(), waiter(), []) == ""


def test_the_cheapest_plan_that_violates_no_budget() -> None:
    plans = [
        EvictionPlan("n1", (victim(),), (0.0, 1.0), pdb_violations=1),
        EvictionPlan("n3", (victim(),), (1.0, 0.0)),
        EvictionPlan("n2", (victim(),), (0.0, 9.0)),
    ]
    plan, reason = best_plan(plans)
    assert plan is not None
    assert (plan.node, reason) == ("n2", "")
    assert best_plan(plans[:1]) == (None, "budget")
    assert best_plan([]) == (None, "no_plan")


def test_a_queue_limits_its_evictions_in_an_hour() -> None:
    """Of two in an hour one is left. Pods that terminate already do not count."""
    queues = Queues({"batch": Queue(evictions_per_hour=2, priority_classes=frozenset({"low"}))})
    state = State(POLICIES["best-fit"](), Rights(queues))
    low = {"priority_class": "low", "node": "n1"}
    pods = [victim(f"v{number}", **low) for number in range(2)] + [victim("w", deleting=True, **low)]
    state.apply([Upserted(make_node("n1", gpus=3)), *map(Upserted, pods)])
    state.disruptions.load({"disruptions": [[1000.0, "gone", "j", "batch", "EvictionByEvictionAPI"]]})

    def chosen(gpus: int, now: float) -> int | None:
        plan, _ = best_plan(plan_evictions(state, waiter(gpus=gpus), ["n1"], now))
        return plan and len(plan.to_evict)

    assert [chosen(gpus, 2000.0) for gpus in (1, 2, 3)] == [0, 1, None]
    assert chosen(3, 1000.0 + 3601.0) == 2


def test_why_a_victim_goes() -> None:
    state = full()
    state.rights.queues = Queues({"batch": Queue(max_duration=60, priority_classes=frozenset({"low"}))})
    lower, equal, member = (
        victim("a", priority=7),
        victim("b", priority=100, priority_class="low"),
        victim("c"),
    )
    plan = EvictionPlan("n1", (lower, equal), (1.0,), other_nodes=(member,))
    assert why_evicted(state, plan, lower, waiter()) == "its priority 7 is lower than 100"
    assert "maximum duration of queue batch" in why_evicted(state, plan, equal, waiter())
    assert why_evicted(state, plan, member, waiter()) == "its gang is evicted as a whole"
