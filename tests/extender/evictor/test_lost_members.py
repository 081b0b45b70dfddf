"""A gang that has lost a member: its replacement gets room before anything else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from extender.cluster.state import State
from extender.evictor.book import Schedulers
from extender.evictor.large_jobs import LargeJobReserver
from extender.evictor.loop import Evictor
from extender.evictor.metrics import EvictorMetrics
from extender.evictor.planner import Asked
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Node, Owner, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import Settings
from extender.verbs.evaluate import evaluate
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.examples import NIGHTLY
from tests.extender.builders import NOW, make_node, make_pod, make_state, why

HOUR = 3600.0
OUTAGE = (12 if NIGHTLY else 2) * HOUR
SETTINGS = Settings(evictor="on", evictor_lease="gpu/stowage", reserve_after_seconds=900)


class Cluster:
    """A cluster in virtual time: its API server, kube-scheduler, controllers and clock. The nodes are always
    full: a queue of jobs of the gangs' priority and of backfill never ends. The watch is immediate, and so is
    the end of an evicted pod, whose controller creates another."""

    is_leader = leads = True

    def __init__(self, seed: int, nodes: int, gangs: int, size: int, *, reserves: bool) -> None:
        self.draw, self.now, self.number = random.Random(seed), 1e9, 0
        self.ends: list[tuple[float, str]] = []
        self.evicted: list[tuple[Pod, Pod | None]] = []
        self.nominated_last: Pod | None = None
        self.state = state = State(POLICIES["best-fit"](), Rights(Queues()))
        state.reservations.clock = state.end_costs.clock = state.pods.now = lambda: self.now
        state.gang_holds.seconds, state.large_jobs.evicts_equals = 60.0, True
        state.synced |= {"Node", "Pod", "ResourceClaim", "ResourceSlice", "DeviceClass"}
        state.apply([Upserted(make_node(f"n{number:02}")) for number in range(nodes)])
        schedulers = Schedulers(["stowage"])
        at: Any = {"clock": lambda: self.now, "wall": lambda: self.now}
        asked, metrics = Asked(schedulers, lambda uid: []), EvictorMetrics(CollectorRegistry())
        me: Any = self
        self.evictor = Evictor(state, me, me, me, SETTINGS, asked, metrics, **at)
        self.reserver = LargeJobReserver(state, me, SETTINGS, schedulers, lambda: self.now)
        self.reserves = reserves
        for gang in range(gangs):
            for _ in range(size):
                self.create(f"gang{gang}", 8, gang=size)
        self.schedule()

    def create(self, kind: str, gpus: int, gang: int = 0) -> None:
        self.number += 1
        words = {"stowage.dev/gang": kind, "stowage.dev/gang-min": str(gang)} if gang else {}
        low = kind == "backfill"
        pod = make_pod(
            f"{kind}-{self.number}",
            gpus,
            priority=-5 if low else 10_000,
            priority_class=f"stowage-{'backfill' if low else 'batch'}",
            labels=words,
            owner=Owner("Job", kind if gang else f"{kind}-{self.number}", f"{kind}-{self.number}"),
            created=self.now,
            unscheduled="Unschedulable",
            scheduler_name="stowage",
        )
        self.state.apply([Upserted(pod)])

    def again(self, pod: Pod) -> None:
        """The controller replaces the pod."""
        self.state.apply([Deleted("Pod", pod.key)])
        kind = pod.name.rpartition("-")[0]
        size = int(pod.labels.get("stowage.dev/gang-min", "0"))
        self.create(kind, int(dict(pod.spec.container_requests)["nvidia.com/gpu"]), size)

    def schedule(self) -> None:
        """As kube-scheduler: every pending pod, by priority and age; new jobs take what is left."""
        waiting = (self.state.pods[key] for key in list(self.state.pods.waiting))
        for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created, pod.key)):
            self.place(pod)
        for kind, gpus in (("pair", 2), ("single", 1), ("backfill", 1)):
            while not any(self.state.pods[key].name.startswith(kind) for key in self.state.pods.waiting):
                self.create(kind, gpus)
                self.place(self.state.pods[next(reversed(self.state.pods.waiting))])

    def place(self, pod: Pod) -> None:
        state, names = self.state, NodeNames.of(list(self.state.nodes))
        evaluation = evaluate(state, pod, state.request_of(pod), names)
        fits = evaluation.certain.nonzero()[0]
        if not fits.size:
            return
        node = names[int(fits[evaluation.keys[fits].argmin()])]
        state.apply([Upserted(replace(pod, node_name=node, started=self.now, phase="Running"))])
        if "stowage.dev/gang" not in pod.labels:
            lasts = self.draw.expovariate(2 / HOUR)
            heappush(self.ends, (self.now + lasts, pod.key))

    async def run(self, seconds: float, *, until_whole: bool = False) -> float:
        """Returns the seconds that have passed."""
        began, step = self.now, 60.0
        while self.now < began + seconds and not (until_whole and not self.broken()):
            self.now += step
            while self.ends and self.ends[0][0] <= self.now:
                if pod := self.state.pods.get(heappop(self.ends)[1]):
                    self.state.apply([Upserted(replace(pod, phase="Succeeded"))])
            self.schedule()
            if self.reserves:
                await self.reserver.round()
            if self.broken():
                await self.evictor.round()
                self.schedule()
        return self.now - began

    def broken(self) -> list[Pod]:
        return [pod for key in self.state.pods.waiting if (pod := self.state.pods[key]).name[:4] == "gang"]

    async def fail(self) -> float:
        """A node with a member of a gang fails; returns the seconds until the gang is whole again."""
        members = [pod for pod in self.state.pods.values() if pod.name.startswith("gang") and pod.node_name]
        node = self.draw.choice(sorted(members, key=lambda pod: pod.key)).node_name
        record, lost = self.state.nodes[node], list(self.state.pods.on_node(node))
        self.now += 2.0
        self.state.apply([Deleted("Node", node)])
        for pod in lost:
            self.again(pod)
        took = await self.run(OUTAGE, until_whole=True)
        self.state.apply([Upserted(record)])
        await self.run(HOUR)
        return took

    # What the evictor asks of its source, of the API server and of its Lease.

    hold_during_write = staticmethod(nullcontext)

    async def caught_up(self) -> bool:
        return True

    async def events_about(self, pod: Pod) -> AsyncIterator[Any] | tuple[Any, ...]:
        return ()

    async def write_event(self, event: Any) -> None:
        pass

    async def nominate(self, pod: Pod, node: str) -> None:
        self.nominated_last = pod
        self.state.apply([Upserted(replace(pod, nominated_node=node))])

    async def clear_nomination(self, pod: Pod, node: str) -> None:
        if known := self.state.pods.by_uid(pod.uid):
            self.state.apply([Upserted(replace(known, nominated_node=""))])

    async def evict(self, pod: Pod, grace: int | None, *, dry_run: bool) -> None:
        if not dry_run:
            self.evicted.append((pod, self.nominated_last))
            self.again(pod)


async def month(seed: int, failures: int, *, reserves: bool) -> tuple[float, Cluster]:
    """Mean seconds until a gang is whole again."""
    cluster = Cluster(seed, nodes=8, gangs=2, size=2, reserves=reserves)
    await cluster.run(2 * HOUR)
    assert not cluster.broken()
    return sum([await cluster.fail() for _ in range(failures)]) / failures, cluster


@pytest.mark.parametrize("seed", range(8) if NIGHTLY else [6])  # a short one
async def test_a_gang_is_whole_again_in_a_fifth_of_the_time(seed: int) -> None:
    """In a month in which nodes with its members fail, in a cluster that is always full. Without the
    reservation, other jobs of equal priority take each GPU that becomes free, until the node is back."""
    failures = 15 if NIGHTLY else 1
    before, _ = await month(seed, failures, reserves=False)
    after, cluster = await month(seed, failures, reserves=True)
    assert after <= before / 5
    assert all(victim.priority < pod.priority for victim, pod in cluster.evicted if pod)


def member(name: str, gpus: int = 8, size: int = 2, **more: Any) -> Pod:
    words = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(size)}
    return make_pod(name, gpus, labels=words, priority=100, **{"started": NOW - 500} | more)


def lost(name: str = "new", **more: Any) -> Pod:
    waits = {"created": NOW - 20, "unscheduled": "Unschedulable", "scheduler_name": "stowage", "started": 0.0}
    return member(name, **waits | more)


def other(name: str, node: str = "", gpus: int = 1, priority: int = 100, **more: Any) -> Pod:
    return make_pod(name, gpus, node_name=node, priority=priority, started=NOW - 900 if node else 0.0, **more)


class Leads:
    leads = True


def reserved(*objects: Node | Pod, evicts: bool = False, mode: Any = "off") -> State:
    """The state after a round of the leader."""
    state = make_state(*objects)
    state.end_costs.clock = lambda: NOW
    state.large_jobs.mode, state.large_jobs.evicts_equals = mode, evicts
    keeper: Any = Leads()
    reserver = LargeJobReserver(state, keeper, SETTINGS, Schedulers(["stowage"]), lambda: NOW)
    asyncio.run(reserver.round())
    return state


NODES = [make_node(name) for name in "abc"]
BUSY = [
    member("w", node_name="a"),
    *(other(f"b{n}", "b", 4, deadline=1000 + 500 * n) for n in range(2)),
    *(other(f"c{n}", "c", 4, deadline=3000) for n in range(2)),
]


def test_the_node_where_it_starts_soonest_is_closed_to_others_of_its_priority() -> None:
    state = reserved(*NODES, *BUSY, lost())
    state.apply([Deleted("Pod", "default/b0")])
    assert why(state, other("p"), "b") == Reason.RESERVED
    assert why(state, other("p", priority=101), "b") == Reason.FITS
    assert why(state, lost("new"), "b") == Reason.NO_FREE_GPUS
    assert "reserved for it" in " ".join(explain(state, state.pods["default/new"]).hints)
    state.apply([Deleted("Pod", "default/b1")])
    assert why(state, lost("new"), "b") == Reason.FITS


@pytest.mark.parametrize("waiting", [other("p", "", 8), lost(created=NOW - 600), lost(nominated_node="b")])
def test_with_the_setting_off_nothing_is_reserved_for_others(waiting: Pod) -> None:
    waiting = replace(waiting, unscheduled="Unschedulable", scheduler_name="stowage")
    assert not reserved(*NODES, *BUSY, waiting).large_jobs.table.current


def test_it_comes_before_large_jobs_that_have_waited_longer() -> None:
    jobs = [replace(lost(f"j{n}"), labels={}, created=NOW - 9000 - n) for n in range(3)]
    state = reserved(*NODES, *(make_node(f"n{n}") for n in range(9)), *BUSY, *jobs, lost(), mode="limits")
    assert state.large_jobs.table.current[0].key == "stowage default/g of priority 100"


def test_no_more_nodes_are_reserved_than_the_gang_uses() -> None:
    pods = [lost(f"new{n}", size=5) for n in range(4)]
    state = reserved(
        *NODES, *(make_node(f"n{n}") for n in range(9)), member("w", size=5, node_name="a"), *pods
    )
    (reservation,) = state.large_jobs.table.current
    assert len(reservation.nodes) == 1


def test_a_reservation_in_vain_ends_and_is_made_once_more() -> None:
    state = make_state(*NODES, *BUSY, lost())
    clock = [NOW]
    state.end_costs.clock = lambda: clock[0]
    keeper: Any = Leads()
    reserver = LargeJobReserver(state, keeper, SETTINGS, Schedulers(["stowage"]), lambda: clock[0])
    times = 0
    for _ in range(100):
        clock[0] += 3600.0
        asyncio.run(reserver.round())
        times += bool(state.large_jobs.table.current)
    assert 0 < times <= 2 * SETTINGS.reserve_seconds / 3600 + 2
