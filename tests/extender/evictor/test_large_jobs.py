"""Reservations for large jobs, with replicas that share a ConfigMap on a real HTTP server."""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.evictor.book import Schedulers
from extender.evictor.large_jobs import LargeJobReserver
from extender.evictor.shield import ShieldKeeper
from extender.explain.overview import node_lines
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.settings import Settings
from extender.source.evictor_api import EvictorApi
from packing.model.reasons import Reason
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.builders import NOW, make_node, make_pod, make_state, why
from tests.extender.evictor.replica import UNHURRIED

REQUIRES_A_RACK = {"kai.scheduler/topology-required-placement": "rack"}
SETTINGS = {"reserve_after_seconds": 600, "reserve_seconds": 3600}


def gang(count: int) -> dict[str, str]:
    """Annotations of a gang of so many pods."""
    words = "gang.scheduling.koordinator.sh"
    return {f"{words}/name": "g", f"{words}/min-available": str(count)}


def large(name: str, gpus: int = 8, **more) -> Pod:
    pending = {"unscheduled": "Unschedulable", "created": NOW - 700, "scheduler_name": "stowage"}
    return make_pod(name, gpus, **pending | more)


def running(name: str, node: str, gpus: int, left: float) -> Pod:
    """A pod that ends after this many seconds by its limit."""
    return make_pod(name, gpus, node_name=node, started=NOW - 100, deadline=100 + left)


class Replica:
    """A replica of Stowage with its own state, and the reservations that it reads or writes."""

    def __init__(self, api: ApiServer, directory: Path, *objects: Pod, leads: bool = True) -> None:
        self.is_leader, self.now = leads, NOW
        self.state: State = make_state(*[make_node(name) for name in "abcd"], *objects)
        self.state.large_jobs.mode = "limits"
        self.state.end_costs.clock = lambda: self.now
        rest = EvictorApi(source_of(api, directory, timeouts=UNHURRIED).rest, lambda: math.inf)
        self.keeper = ShieldKeeper([self.state.large_jobs], rest, self, "gpu", "shield", follows=True)
        settings = Settings.model_construct(**SETTINGS)
        self.reserver = LargeJobReserver(
            self.state, self.keeper, settings, Schedulers(["stowage"]), lambda: self.now
        )

    def hold_during_write(self) -> AbstractContextManager[None]:
        return nullcontext()

    def rounds(self, seconds: float = 0.0) -> dict[str, list[str]]:
        """Read or write, and choose if it leads. Returns the reserved nodes by key."""
        self.now += seconds

        async def both() -> None:
            await self.keeper.step()
            await self.reserver.round()
            await self.keeper.step()

        asyncio.run(both())
        return {one.key: list(one.nodes) for one in self.state.large_jobs.table.current}


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    api.evictions.config_maps.put({"metadata": {"namespace": "gpu", "name": "shield"}})
    return api


BUSY = (
    running("p1", "a", 8, 900), running("p2", "b", 4, 300), running("p3", "b", 4, 500),
    running("p4", "c", 4, 8000), running("p5", "d", 1, 9000),
)  # fmt: skip


def test_the_node_where_the_job_starts_soonest_is_reserved_until_it_starts(api, tmp_path):
    replica = Replica(api, tmp_path, *BUSY, large("train"))
    assert replica.rounds() == {"uid-train": ["b"]}
    (one,) = replica.state.large_jobs.table.current
    assert one.at == NOW + 500
    assert why(replica.state, large("small", 1), "b") == Reason.RESERVED
    replica.state.apply([Upserted(running("train", "b", 8, 5000))])
    assert replica.rounds(10) == {}
    assert replica.state.large_jobs.table.rests == {}


@pytest.mark.parametrize(
    "pods",
    [
        (large("young", created=NOW - 599),),
        (large("small", 3),),
        (large("gated", gates=("queue",)),),
        (large("elsewhere", scheduler_name="default-scheduler"),),
        (large("too-large", 16),),
        (large("g0", 1, annotations=gang(9)),),
    ],
)
def test_no_node_is_reserved_for_a_job_that_has_not_waited_or_could_not_start(api, tmp_path, pods):
    assert Replica(api, tmp_path, *BUSY, *pods).rounds() == {}


def test_a_gang_gets_as_many_nodes_as_it_needs(api, tmp_path):
    members = [large(f"g{n}", annotations=gang(2)) for n in range(2)]
    (nodes,) = Replica(api, tmp_path, *BUSY, *members).rounds().values()
    assert nodes == ["a", "b"]


def test_a_gang_that_requires_one_rack_gets_nodes_of_one(api, tmp_path):
    """Without that it gets the first node of each."""
    ends = {"a": 50, "b": 4000, "c": 600, "d": 700}
    busy = [running(f"p-{node}", node, 8, left) for node, left in ends.items()]
    for words, reserved in ({}, ["a", "c"]), (REQUIRES_A_RACK, ["c", "d"]):
        members = [large(f"g{n}", annotations=gang(2) | words) for n in range(2)]
        replica = Replica(api, tmp_path, *busy, *members)
        for node in ends:
            replica.state.apply([Upserted(make_node(node, labels={"rack": "1" if node in "ab" else "2"}))])
        (nodes,) = replica.rounds().values()
        assert nodes == reserved
        api.evictions.config_maps.put({"metadata": {"namespace": "gpu", "name": "shield"}})


def test_a_replica_that_starts_keeps_the_reservation(api, tmp_path):
    chosen = Replica(api, tmp_path, *BUSY, large("train")).rounds()
    other = [running("p6", "b", 4, 4000), *BUSY]  # a new choice would be another one
    assert Replica(api, tmp_path, *other, large("train")).rounds(5) == chosen


def test_explain_and_top_show_the_reservation(api, tmp_path):
    replica = Replica(api, tmp_path, *BUSY, large("train"), large("small", 1))
    replica.rounds()
    replica.state.apply([Deleted("Pod", "default/p2")])
    replica.rounds(45)
    state = replica.state
    texts = {pod: " ".join(explain(state, state.pods[f"default/{pod}"]).hints) for pod in ("train", "small")}
    assert "1 node is reserved for it: it is expected to start there by about 08:08 UTC" in texts["train"]
    assert "1 node is reserved for default/train until about 08:08 UTC" in texts["small"]
    assert "With activeDeadlineSeconds: 455 or less it could use it." in texts["small"]
    census = CensusTaker(state)
    asyncio.run(census.take())
    notes = {line.node: line.note for line in node_lines(state, census, "ab")}
    until = "until about 08:08 UTC (since 08:00 UTC, 0.05 GPU-hours idle on 1 node)"
    assert notes == {"a": "", "b": f"reserved for default/train {until}"}


def test_a_team_whose_large_jobs_never_start_leaves_most_gpus_to_others(api, tmp_path):
    """It files ten jobs of a node each, which never start although their nodes are free."""
    replica = Replica(api, tmp_path, *(large(f"j{n}", created=NOW - 1e5) for n in range(10)))
    replica.state.apply([Upserted(pod) for pod in (running("a1", "a", 1, 60), running("b1", "b", 1, 60))])
    held, rounds = 0, 200
    for _ in range(rounds):
        nodes = [node for nodes in replica.rounds(120).values() for node in nodes]
        assert len(nodes) <= 2  # half of the four nodes
        held += len(nodes)
    assert 0 < held <= rounds + 10
