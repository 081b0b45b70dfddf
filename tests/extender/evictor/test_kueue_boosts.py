"""The priority boosts of Kueue's Workloads: the choice, and the writes of replicas to a real HTTP server."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extender.cluster.state import State
from extender.evictor.kueue_boosts import KueueBooster, boosts_of
from extender.k8s.admission_objects import PriorityClass
from extender.k8s.job_kinds import JobManifest
from extender.k8s.objects import Deleted, Listed, Pod, Upserted
from extender.source.evictor_api import EvictorApi
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.apistore import Manifest, Store
from tests.extender.builders import NOW, make_node, make_pod, make_state
from tests.extender.evictions import KUEUE
from tests.extender.evictor.replica import UNHURRIED

BOOST, BOOSTED_AT = "kueue.x-k8s.io/priority-boost", "stowage.dev/priority-boosted-at"
HOUR = 3600.0

prices = st.floats(100, 1e7)


@given(st.lists(st.sampled_from([300.0, 600.0, 2000.0, 9000.0]), min_size=1, max_size=12))
def test_up_to_four_prices_are_told_apart(given: list[float]) -> None:
    known = sorted(set(given))
    assert boosts_of(given, [None] * len(given), 0, [0]) == [known.index(price) for price in given]


@given(st.lists(st.floats(1000, 1499), min_size=1, max_size=12))
def test_similar_prices_have_no_boost(given: list[float]) -> None:
    assert not any(boosts_of(given, [None] * len(given), 0, [0]))


@given(st.lists(prices, min_size=4, max_size=40))
def test_no_class_is_wider_than_half_of_all_prices(given: list[float]) -> None:
    """By ratio: what leaves first loses little compared to the dearest."""
    boosts = boosts_of(given, [None] * len(given), 0, [0])
    widest = math.log(max(given) / min(given)) / 2 + 1e-9
    for boost in set(boosts):
        own = [price for price, of_it in zip(given, boosts, strict=True) if of_it == boost]
        assert math.log(max(own) / min(own)) <= max(widest, math.log(1.5))


def evicted_by_kueue(order: Sequence[int], gpus: Sequence[int], needs: int) -> set[int]:
    """kubernetes-sigs/kueue, ``classicalPreemptions`` in ``pkg/scheduler/preemption/preemption.go`` (0.19):
    takes Workloads in this order until there is room, and then keeps those that it does not need."""
    room = list(accumulate(gpus[number] for number in order))
    taken = list(order[: next(at for at, free in enumerate(room, 1) if free >= needs)])
    for number in taken[-2::-1]:
        if sum(gpus[other] for other in taken) - gpus[number] >= needs:
            taken.remove(number)
    return set(taken)


def test_of_thousand_preemptions_boosts_lose_little_more_than_the_cheapest_sets() -> None:
    dice, lost = Random(1), Counter[str]()
    for _ in range(1000):
        gpus = [dice.choice([1, 2, 4, 8]) for _ in range(dice.randint(3, 8))]
        prices = [300 + dice.lognormvariate(8, 1.5) for _ in gpus]
        needs = min(dice.choice([1, 2, 4, 8, 16]), sum(gpus))
        boosts = boosts_of(prices, [None] * len(gpus), 0, [0])
        newest = range(len(gpus))
        sets = {
            "without": evicted_by_kueue(newest, gpus, needs),
            "with": evicted_by_kueue(sorted(newest, key=boosts.__getitem__), gpus, needs),
        }
        costs = {
            name: sum(gpus[number] * prices[number] for number in chosen) for name, chosen in sets.items()
        }
        costs["least"] = min(
            sum(gpus[number] * prices[number] for number in chosen)
            for size in newest
            for chosen in combinations(newest, size + 1)
            if sum(gpus[number] for number in chosen) >= needs
        )
        lost.update(costs)
    assert lost["with"] < 1.15 * lost["least"]
    assert lost["without"] > 2 * lost["least"]


def workload(name: str, **more) -> Manifest:
    """One that is admitted, if ``more`` has no other ``conditions``."""
    conditions = more.get("conditions", ["QuotaReserved", "Admitted"])
    evictions = [
        {"reason": "Preempted", "underlyingCause": "", "count": more.get("preempted", 0)},
        {"reason": "PodsReadyTimeout", "underlyingCause": "", "count": 7},
    ]
    return {
        "metadata": {"namespace": "default", "name": name, "annotations": more.get("annotations", {})},
        "spec": {"priority": more.get("priority", 10)},
        "status": {
            "admission": {"clusterQueue": more.get("queue", "team")},
            "conditions": [{"type": kind, "status": "True"} for kind in conditions],
            "schedulingStats": {"evictions": evictions},
        },
    }


def pod_of(name: str, lost: float, node: str = "a", gpus: int = 1, **more) -> Pod:
    """The pod of a Workload of this name that has run for so long without a checkpoint."""
    notes = {"kueue.x-k8s.io/workload": name}
    return make_pod(name, gpus, node_name=node, started=NOW - lost, annotations=notes, **more)


class Replica:
    """A replica of Stowage with its own state, which sees the Workloads of the API server each time."""

    def __init__(self, api: ApiServer, directory: Path, *pods: Pod, classes: Sequence[int] = ()) -> None:
        self.is_leader, self.now, self._api = True, NOW, api
        self.state: State = make_state(*[make_node(name) for name in "abcd"], *pods)
        self.state.end_costs.clock = lambda: self.now
        rest = EvictorApi(source_of(api, directory, timeouts=UNHURRIED).rest, self._deadline)
        self.registry = CollectorRegistry()
        self.booster = KueueBooster(self.state, rest, self, self.registry)
        self.workloads = api.stores[f"{KUEUE}workloads"] = Store()
        self.classes = api.stores[f"{KUEUE}workloadpriorityclasses"] = Store()
        for value in classes:
            self.classes.put({"metadata": {"name": str(value)}, "value": value})

    @contextmanager
    def hold_during_write(self) -> Iterator[None]:
        yield

    def _deadline(self) -> float:
        return math.inf if self.is_leader else 0.0

    def put(self, *manifests: Manifest) -> None:
        for manifest in manifests:
            self.workloads.put(manifest)
        self.see()

    def see(self) -> None:
        records = [
            JobManifest.from_value(one).record("KueueWorkload") for one in self.workloads.objects.values()
        ]
        self.state.apply([*map(Upserted, records), Listed("KueueWorkload", {one.key for one in records})])

    def renew(self, seconds: float = 0.0) -> dict[str, str]:
        """The boosts by name after a round, some seconds later."""
        self.now += seconds
        asyncio.run(self.booster.renew())
        return self.boosts()

    def take_away(self) -> dict[str, str]:
        asyncio.run(self.booster.take_away())
        return self.boosts()

    def boosts(self) -> dict[str, str]:
        self.see()
        notes = {
            one["metadata"]["name"]: one["metadata"]["annotations"] for one in self.workloads.objects.values()
        }
        return {name: of_it[BOOST] for name, of_it in notes.items() if BOOST in of_it}

    def written(self, result: str) -> float | None:
        return self.registry.get_sample_value("stowage_kueue_boosts_total", {"result": result})


PODS = pod_of("cheap", 60), pod_of("dear", 10 * HOUR), pod_of("middle", HOUR)
THREE = workload("cheap"), workload("dear"), workload("middle")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API is told the time of the tests."""
    monkeypatch.setattr("extender.source.evictor_api.micro_time", lambda: "2027-01-15T08:00:00.000000Z")


@pytest.mark.parametrize(
    ("classes", "boosts"),
    [
        ([10, 14], {"dear": "2", "middle": "1"}),
        ([10, 12], {"dear": "1", "middle": "1"}),
        ([10, 11], {}),
        ([9, 8], {"dear": "2", "middle": "1"}),
    ],
)
def test_no_boost_reaches_the_next_class(
    api: ApiServer, tmp_path: Path, classes: list[int], boosts: dict[str, str]
) -> None:
    replica = Replica(api, tmp_path, *PODS, classes=classes)
    replica.put(*THREE)
    assert replica.renew() == boosts


def test_a_new_priority_in_between_lowers_boosts_at_once(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    replica.renew()
    replica.put(workload("pending", priority=12, conditions=[]))
    assert replica.renew(30) == {"dear": "1", "middle": "1"}
    replica.state.apply([Upserted(PriorityClass("close", value=11))])
    assert replica.renew(30) == {}


def test_without_the_classes_nothing_is_boosted(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    del api.stores[f"{KUEUE}workloadpriorityclasses"]
    assert replica.renew() == {}


def test_a_boost_changes_at_most_once_in_ten_minutes_whoever_leads(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    replica.renew()
    replica.state.apply([Deleted("Pod", "default/cheap")])
    replica.workloads.delete("default/cheap")
    assert replica.renew(590) == {"dear": "2", "middle": "1"}
    stored = list(replica.workloads.objects.values())
    successor = Replica(api, tmp_path, *PODS)
    successor.put(*stored)
    successor.state.apply([Deleted("Pod", "default/cheap")])
    assert successor.renew(599) == {"dear": "2", "middle": "1"}
    assert successor.renew(1) == {"dear": "1"}


def test_an_evicted_workload_loses_its_boost_at_once(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    replica.renew()
    notes = replica.workloads.objects["default/dear"]["metadata"]["annotations"]
    replica.put(workload("dear", conditions=["QuotaReserved", "Admitted", "Evicted"], annotations=notes))
    assert replica.take_away() == {"middle": "1"}
    replica.put(workload("dear", annotations={BOOSTED_AT: notes[BOOSTED_AT]}))  # admitted again
    assert replica.renew(30) == {"middle": "1"}
    assert replica.renew(600) == {"dear": "2", "middle": "1"}


def test_a_workload_that_kueue_changes_meanwhile_is_not_boosted(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    replica.workloads.put(workload("dear", conditions=["QuotaReserved", "Evicted"]))  # not seen yet
    assert replica.renew() == {"middle": "1"}
    assert replica.written("failed") == 0


def test_only_the_leader_writes(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    replica.is_leader = False
    assert replica.renew() == {}


def test_workloads_without_gpus_or_pods_are_left_alone(api: ApiServer, tmp_path: Path) -> None:
    pods = pod_of("cheap", 60), pod_of("cpu", 10 * HOUR, gpus=0)
    replica = Replica(api, tmp_path, *pods)
    replica.put(
        workload("cheap"), workload("cpu"), workload("starting"), workload("done", conditions=["Finished"])
    )
    assert replica.renew() == {}


def test_refused_writes_are_counted(api: ApiServer, tmp_path: Path) -> None:
    replica = Replica(api, tmp_path, *PODS)
    replica.put(*THREE)
    api.evictions.faults["boost"].append("403")
    assert len(replica.renew()) == 1
    assert replica.written("failed") == 1
    assert replica.renew(30) == {"dear": "2", "middle": "1"}
