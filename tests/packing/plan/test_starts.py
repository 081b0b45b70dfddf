"""When a request starts: beside a fleet from which the pods are taken one after the other, and in a queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.placement import allocation_of
from packing.model.lifetimes import PARTS
from packing.model.request import Request
from packing.plan.starts import Running, Start, StartQueue, Stretch
from tests.examples import examples

from ..fleet.builders import GPU, counted_node, fleet_of
from ..victims.random_nodes import Case, fits_without, random_case

FUTURES = 3
INF = float("inf")


def first_time(case: Case, ends: np.ndarray) -> float:
    """When enough have ended, one moment after the other."""
    for moment in sorted({0.0, *ends[np.isfinite(ends)]}):
        if fits_without(case, np.flatnonzero(ends <= moment).tolist()):
            return moment
    return INF


@settings(max_examples=examples(150))
@given(st.integers(0, 100_000))
def test_a_request_starts_when_enough_pods_have_ended(seed):
    case = random_case(seed)
    rng = np.random.default_rng(seed)
    ends = rng.integers(1, 6, (len(case.victims), FUTURES)).astype(float)
    ends[rng.random(ends.shape) < 0.2] = INF
    running = [Running(str(n), one.held, ends[n]) for n, one in enumerate(case.victims)]
    queue = StartQueue(case.fleet, lambda row: running, FUTURES)
    start = queue.start(case.request, queue.candidates(case.request, np.ones(1, bool), np.zeros(1), 8))
    assert start.times.tolist() == [first_time(case, ends[:, future]) for future in range(FUTURES)]


class Nodes:
    """Nodes of 8 GPUs, full of pods: GPUs and seconds until they end, the same in all futures."""

    def __init__(self, *nodes: list[tuple[int, float]]) -> None:
        self.fleet = fleet_of(*(counted_node(f"n{number}", 8) for number in range(len(nodes))))
        self.on = list[list[Running]]()
        for row, pods in enumerate(nodes):
            self.on.append([])
            for number, (gpus, ends) in enumerate(pods):
                held = allocation_of(self.fleet, row, asks(gpus))
                self.fleet.take(held)
                self.on[row].append(Running(f"{row}-{number}", (held,), np.array([ends])))
        self.queue = StartQueue(self.fleet, lambda row: self.on[row], 1)

    def start(self, gpus: int, lasts: float = INF) -> tuple[float, int, set[str]]:
        """Of the next in the queue: seconds, node, and who must end first."""
        soon = np.zeros(self.fleet.arrays.capacity)
        allowed = np.ones(soon.size, bool)
        start = self.queue.start(asks(gpus), self.queue.candidates(asks(gpus), allowed, soon, 8))
        self.queue.take("pod", asks(gpus), start, np.array([lasts]))
        return float(start.times[0]), start.row, {*start.needs}


def asks(gpus: int) -> Request:
    return Request(devices=((GPU, gpus),))


def test_the_node_that_is_free_first_is_taken():
    nodes = Nodes([(4, 50.0), (4, 90.0)], [(8, 60.0)])
    assert nodes.start(8) == (60.0, 1, {"1-0"})
    assert nodes.start(8) == (90.0, 0, {"0-0", "0-1"})
    assert nodes.start(8)[:2] == (INF, -1)


def test_only_those_end_first_without_whom_it_would_not_fit():
    assert Nodes([(4, 50.0), (3, 20.0), (1, 90.0)]).start(4) == (50.0, 0, {"0-0"})


def test_who_waits_behind_another_gets_what_is_left_or_starts_after_it():
    nodes = Nodes([(4, 50.0), (4, INF)])
    assert nodes.start(2, lasts=100.0)[0] == 50.0
    assert nodes.start(2, lasts=100.0)[0] == 50.0
    assert nodes.start(2, lasts=100.0)[0] == 150.0


def test_free_room_is_there_at_once_and_is_given_once():
    nodes = Nodes([(6, 30.0)])
    assert nodes.start(2) == (0.0, 0, set())
    assert nodes.start(2)[0] == 30.0


@pytest.mark.parametrize("most", [1, 2])
def test_the_rows_that_are_free_soonest_are_looked_at(most):
    nodes = Nodes([(8, 60.0)], [(8, 50.0)], [(8, 40.0)])
    soon = np.zeros(nodes.fleet.arrays.capacity)
    soon[:3] = 1.0, 3.0, 2.0
    rows = nodes.queue.candidates(asks(8), np.ones(soon.size, bool), soon, most)
    assert rows == [1, 2][:most]


def test_each_of_many_gets_room_that_becomes_free_once_in_each_future():
    """As many start by a time as pods have ended by then, on whichever node each of them ran."""
    fleet = fleet_of(*(counted_node(f"n{number}", 1) for number in range(4)))
    rng = np.random.default_rng(1)
    request, waiting = Request(devices=((GPU, 1),)), 8
    ends = {fleet.rows[f"n{number}"]: rng.uniform(1, 2, FUTURES) for number in range(4)}
    held = {row: allocation_of(fleet, row, request, (0,)) for row in ends}
    for allocation in held.values():
        fleet.take(allocation)
    queue = StartQueue(fleet, lambda row: [Running(str(row), (held[row],), ends[row])], FUTURES)
    made = []
    for number in range(waiting):
        start = queue.start(request, [*ends])
        queue.take(str(number), request, start, np.full(FUTURES, 10.0))
        made.append(start.times)
    first = np.sort([*ends.values()], axis=0)
    assert np.sort(made, axis=0) == pytest.approx(np.concatenate([first, first + 10]))


NOMINAL = Start(np.linspace(0, 100, 64), 0, ())


def test_what_starts_early_counts_no_sooner_than_what_starts_late():
    stretch = Stretch()
    before = stretch.times(NOMINAL, 0.0)
    for _ in range(50):
        stretch.learn(0.9, 100.0, in_time=True)
    assert stretch.times(NOMINAL, 99.0) == before
    assert stretch.times(NOMINAL, 100.0)[1] < before[1]


@settings(max_examples=examples(20))
@given(st.floats(0.1, 10), st.integers(0, 99))
def test_as_many_start_in_time_as_was_said_however_wrong_the_futures_are(factor, seed):
    stretch, rng, held, waiting = Stretch(), np.random.default_rng(seed), [0, 0], []
    for now in range(0, 20_000, 10):
        times = stretch.times(NOMINAL, now)
        starts = now + factor * rng.choice(NOMINAL.times)
        for place, part in enumerate(PARTS):
            waiting.append((starts, part, now + times[place]))
            held[place] += starts <= now + times[place]
        for start, part, by in waiting:
            if start <= now or by < now:
                stretch.learn(part, by, in_time=start <= by)
        waiting = [one for one in waiting if one[0] > now and one[2] >= now]
    assert [count / 2000 for count in held] == pytest.approx(PARTS, abs=0.06)
