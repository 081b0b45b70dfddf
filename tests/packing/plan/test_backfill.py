"""Reservations for large jobs: how many, for which, where, and for how long, whatever jobs there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.placement import allocation_of
from packing.model.request import Request
from packing.plan.backfill import (
    AT_ONCE,
    MOST_JOBS,
    MOST_MISSED,
    SHARE,
    Choice,
    LargeJob,
    Question,
    Reservation,
    Reservations,
    Rules,
    is_large,
    renewal,
    renewed,
    soonest,
)
from packing.plan.starts import Running, StartQueue
from tests.examples import examples

from ..fleet.builders import GPU, counted_node, fleet_of

GPUS = 100.0
RULES = Rules(after=600.0, longest=3600.0)
EVERYWHERE = np.ones(64, np.bool_)


def asks(gpus: int) -> Request:
    return Request(devices=((GPU, gpus),))


def job(key: str, *, since: float = 0.0, priority: int = 0, owner: str = "team", count: int = 1) -> LargeJob:
    return LargeJob(key, owner, asks(8), count, priority, since, EVERYWHERE)


class Nodes:
    """Answers with the first free of many nodes of 8 GPUs, on which each job can start in ten minutes."""

    def __init__(self, seconds: float = 600.0, gpus: float = GPUS) -> None:
        self.now, self.seconds, self.gpus = 0.0, seconds, gpus

    def answer(self, question: Question) -> Choice | None:
        large, taken, _ = question
        free = [f"n{number}" for number in range(40) if f"n{number}" not in taken][: large.count]
        return Choice(tuple(free), self.now + self.seconds, 8.0 * large.count, self.gpus)

    def renew(
        self, before: Reservations, jobs: list[LargeJob], now: float, started: Collection[str] = ()
    ) -> Reservations:
        self.now = now
        return renewed(renewal(before, jobs, started, now, RULES), self.answer)


jobs = st.builds(
    job,
    st.sampled_from("abcdef"),
    since=st.integers(0, 2000).map(float),
    priority=st.integers(0, 2),
    owner=st.sampled_from(("team", "other")),
    count=st.integers(1, 12),
)
steps = st.lists(
    st.tuples(st.lists(jobs, unique_by=lambda large: large.key), st.integers(1, 900)), min_size=1, max_size=30
)


@settings(max_examples=examples(200))
@given(steps)
def test_at_most_four_jobs_and_half_of_the_gpus_but_always_one_job(history):
    nodes, table, now = Nodes(), Reservations(), 0.0
    for pending, passed in history:
        now += passed
        table = nodes.renew(table, pending, now)
        assert len(table.current) <= MOST_JOBS
        assert len(table.current) <= 1 or sum(one.gpus for one in table.current) <= SHARE * GPUS
        taken = [node for one in table.current for node in one.nodes]
        assert len(taken) == len(set(taken))
        may = [
            large
            for large in pending
            if now - large.since >= RULES.after
            and large.owner not in table.rests
            and table.missed.get(large.key, 0) < MOST_MISSED
        ]
        assert bool(may) <= bool(table.current)
        waited = {large.key: now - large.since for large in pending}
        assert all(one.key in waited for one in table.current)


@settings(max_examples=examples(100))
@given(steps)
def test_nodes_are_chosen_at_most_once_a_minute_unless_another_job_takes_them(history):
    nodes, table, now = Nodes(), Reservations(), 0.0
    for pending, passed in history:
        now += passed
        before = {one.key: one for one in table.current}
        table = nodes.renew(table, pending, now)
        for one in table.current:
            if (old := before.get(one.key)) and one.nodes != old.nodes:
                first = {node for other in table.current[: table.current.index(one)] for node in other.nodes}
                assert now - old.chosen >= RULES.chosen_for or not first.isdisjoint(old.nodes)


@settings(max_examples=examples(50))
@given(st.integers(1, 120), st.floats(60.0, 1e6))
def test_a_job_that_never_starts_holds_nodes_twice_at_most(step, seconds):
    nodes, table, held = Nodes(seconds), Reservations(), 0.0
    for now in range(0, 20_000, step):
        table = nodes.renew(table, [job("stuck")], float(now))
        held += step * bool(table.current)
    assert held <= MOST_MISSED * (RULES.longest + 2 * step)
    assert bool(held) == (seconds <= RULES.longest)  # none that would end before the job is to start


@settings(max_examples=examples(50))
@given(st.integers(10, 300), st.integers(2, 40))
def test_a_team_whose_jobs_never_start_holds_nodes_half_of_the_time_at_most(step, count):
    """It deletes a job when its reservation comes, or lets it miss, and files others."""
    nodes, table, held = Nodes(), Reservations(), defaultdict[str, float](float)
    for now in range(0, 40_000, step):
        number = now // (step * count)
        pending = [job(f"{number}-{n}", since=-1e6) for n in range(4)]
        before, table = table, nodes.renew(table, pending, float(now))
        for node in {node for one in table.current for node in one.nodes}:
            held[node] += step
        assert not (
            table.current and not before.current and "team" in before.rests and now < before.rests["team"]
        )
    assert max(held.values()) <= 0.5 * 40_000 + RULES.longest + 2 * step


@settings(max_examples=examples(50))
@given(st.integers(10, 300), st.integers(1, 4))
def test_a_team_with_an_endless_stream_of_large_jobs_keeps_gpus_idle_half_of_the_time_at_most(step, count):
    """Each starts at its time and ends at once, and its nodes are idle while they are reserved."""
    nodes, table, idle, filed = Nodes(gpus=64.0), Reservations(), 0.0, 0
    pending, end = list[LargeJob](), 40_000
    for now in range(0, end, step):
        held = [one._replace(idle=one.idle + step * one.gpus) for one in table.current]
        idle += step * sum(one.gpus for one in held)
        started = {one.key for one in held if one.at <= now}
        pending = [large for large in pending if large.key not in started]
        while len(pending) < 8:
            pending.append(job(f"j{filed}", since=-1e6, count=count))
            filed += 1
        table = nodes.renew(replace(table, current=tuple(held)), pending, float(now), started)
    most = max(SHARE * 64.0, 8.0 * count)
    assert 0 < idle <= 0.5 * most * end + most * (RULES.longest + 2 * step)


def test_the_job_of_the_highest_priority_that_has_waited_longest_comes_first():
    pending = [job("young", since=100.0), job("old"), job("urgent", since=200.0, priority=1)]
    table = Nodes().renew(Reservations(), pending, 1000.0)
    assert [one.key for one in table.current] == ["urgent", "old", "young"]
    assert Nodes().renew(Reservations(), pending, 599.0) == Reservations()


def test_a_started_job_releases_its_nodes_and_its_team_may_reserve_again():
    nodes = Nodes()
    table = nodes.renew(Reservations(), [job("first")], 1000.0)
    after = nodes.renew(table, [job("second")], 1100.0, started=["first"])
    assert [one.key for one in after.current] == ["second"]
    gone = nodes.renew(table, [job("second")], 1100.0)
    assert gone.current == ()
    assert gone.rests == {"team": 1200.0}


def test_pods_that_end_in_time_or_have_a_higher_priority_are_admitted():
    one = Reservation("key", "team", 5, ("n0",), 8.0, 0.0, at=100.0, until=200.0, chosen=0.0)
    assert one.admits(5, 100.0)
    assert not one.admits(5, 100.5)
    assert one.admits(6, float("inf"))
    assert not one.admits(4, float("inf"))


class Rack:
    """Nodes of 4 GPUs, each full of pods of one GPU that end at these times, in one future or in several."""

    def __init__(self, *ends: Sequence[float | Sequence[float]]) -> None:
        self.fleet = fleet_of(*(counted_node(f"n{number}", 4) for number in range(len(ends))))
        self.on: list[list[Running]] = []
        self.futures = 1
        for row, times in enumerate(ends):
            held = [allocation_of(self.fleet, row, asks(1)) for _ in times]
            for allocation in held:
                self.fleet.take(allocation)
            named = enumerate(zip(held, times, strict=True))
            self.on.append([Running(f"{row}-{n}", (one,), np.atleast_1d(end)) for n, (one, end) in named])
            self.futures = max([self.futures, *(pod.ends.size for pod in self.on[-1])])

    def choice(self, large: LargeJob, taken: Collection[str] = ()) -> Choice | None:
        rows = np.zeros(self.fleet.arrays.capacity, np.bool_)
        rows[: len(self.on)] = True
        domains = large.domains
        if domains is not None:
            domains = np.concatenate([domains, np.full(rows.size - domains.size, -1, np.int32)])
        queue = StartQueue(self.fleet, lambda row: self.on[row], self.futures)
        large = replace(large, rows=rows, domains=domains)
        return soonest(self.fleet, queue, Question(large, taken, ()), np.zeros(rows.size), 0.0)


times = st.lists(st.integers(1, 9).map(float), min_size=0, max_size=4)


@settings(max_examples=examples(100))
@given(st.lists(times, min_size=1, max_size=5), st.integers(2, 3), st.integers(2, 4), st.data())
def test_a_job_gets_the_nodes_of_one_domain_on_which_it_starts_soonest(ends, count, gpus, data):
    rack = Rack(*ends)
    domains = np.array(
        data.draw(st.lists(st.integers(-1, 1), min_size=len(ends), max_size=len(ends))), np.int32
    )
    large = LargeJob("k", "team", asks(gpus), count, 0, 0.0, EVERYWHERE, domains)

    def free_at(row: int, moment: float) -> int:
        return 4 - sum(end > moment for end in ends[row])

    def starts(rows: Collection[int], moment: float) -> bool:
        return sum(free_at(row, moment) // gpus for row in rows) >= count

    moments = sorted({0.0, *(end for on_node in ends for end in on_node)})
    groups = [[row for row in range(len(ends)) if domains[row] == domain] for domain in (0, 1)]
    first = next((at for at in moments if any(starts(rows, at) for rows in groups)), None)
    choice = rack.choice(large)
    assert (choice.at if choice else None) == first
    if choice:
        rows = [int(name[1:]) for name in choice.nodes]
        assert starts(rows, choice.at)
        assert len({int(domains[row]) for row in rows}) == 1
        assert not any(starts(fewer, choice.at) for fewer in combinations(rows, len(rows) - 1))
        assert (choice.gpus, choice.usable) == (gpus * count, 4.0 * len(ends))


@settings(max_examples=examples(100))
@given(st.lists(times, min_size=1, max_size=5), st.integers(1, 4))
def test_of_nodes_that_one_pod_frees_only_one_that_is_much_sooner_is_reserved_for_a_pod(ends, gpus):
    """The pod may get the others anyway."""

    def order(on_node: list[float]) -> tuple[float, float]:
        must_end = sorted(on_node)[: max(gpus - (4 - len(on_node)), 0)]
        at = max(must_end, default=0.0)
        return at * (AT_ONCE if len(must_end) == 1 else 1.0), at

    choice = Rack(*ends).choice(LargeJob("k", "team", asks(gpus), 1, 0, 0.0, EVERYWHERE))
    first = min(order(on_node)[0] for on_node in ends)
    assert choice
    assert choice.at in [at for value, at in map(order, ends) if value == first]


def test_a_rack_whose_nodes_are_rarely_free_together_is_not_the_soonest():
    """Each node of the first rack is free at 1 in most futures, but all of them only in one."""
    early, late, fair = (1.0, 1.0, 1.0, 9.0, 9.0), (9.0, 9.0, 1.0, 1.0, 1.0), (5.0,) * 5
    domains = np.array([0, 0, 0, 1, 1, 1], np.int32)
    rack = Rack(*([ends] for ends in (early, late, early, fair, fair, fair)))
    choice = rack.choice(LargeJob("k", "team", asks(4), 3, 0, 0.0, EVERYWHERE, domains))
    assert choice
    assert (choice.nodes, choice.at) == (("n3", "n4", "n5"), 5.0)


def test_a_job_that_could_not_start_on_empty_nodes_gets_none():
    assert Rack([1.0], [1.0]).choice(LargeJob("k", "t", asks(4), 3, 0, 0.0, EVERYWHERE)) is None
    assert Rack([1.0]).choice(LargeJob("k", "t", asks(5), 1, 0, 0.0, EVERYWHERE)) is None
    busy = Rack([float("inf")], [5.0])
    assert busy.choice(LargeJob("k", "t", asks(4), 2, 0, 0.0, EVERYWHERE)) is None  # no time is known
    assert busy.choice(LargeJob("k", "t", asks(4), 1, 0, 0.0, EVERYWHERE), taken=["n1"]) is None


@pytest.mark.parametrize(
    ("gpus", "count", "large"), [(1, 1, False), (3, 1, False), (4, 1, True), (1, 2, True)]
)
def test_a_gang_or_half_a_node_is_large(gpus, count, large):
    fleet = fleet_of(counted_node("a", 8), counted_node("b", 2))
    assert is_large(fleet, asks(gpus), count, EVERYWHERE) == large
