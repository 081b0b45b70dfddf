"""Timelines with queues: hand-computed evictions, and invariants on random ones."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.eviction_rules import (
    ONE_QUEUE,
    CheapestVictims,
    KubeScheduler,
    QueueRules,
    RunningPod,
    could_make_room,
)
from bench.packing.filling import build_fleet, gpus_of
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import FirstFit
from bench.packing.queued_timeline import QueuedPod, QueuedTimeline, SpotRows
from bench.packing.timeline import Ended
from packing.fleet.feasibility import reasons_for
from packing.model.request import Request, whole_gpus
from tests.bench.test_filling import nodes, share
from tests.examples import examples

BACKFILL = QueueRules("backfill", 0, max_duration=1000, restartable=True)
BATCH = QueueRules("batch", 1, frozenset({"backfill"}), min_runtime=100, restartable=True)
INTERACTIVE = QueueRules("interactive", 2, frozenset({"backfill", "batch"}))
ONE, TWO = Request(shares=whole_gpus(1)), Request(shares=whole_gpus(2))


def placer(count=1, gpus=1):
    return Placer(build_fleet(nodes(count, gpus)), FirstFit(), NodePicker(np.arange(count)))


def queues(pods, place=None, spot=None):
    """(Pod, start, end, how it ended, seconds lost) of every run under the rules of the queues."""
    return told(QueuedTimeline(place or placer(), pods, CheapestVictims([0, 1, 2]), spot))


def stock(pods, place=None):
    return told(QueuedTimeline(place or placer(), pods, KubeScheduler()))


def told(timeline):
    return [(run.pod, run.started, run.ended, run.how, run.lost) for run in timeline.replay()]


def test_an_interactive_pod_evicts_a_backfill_at_once_which_starts_again_from_nothing():
    pods = [QueuedPod(ONE, 0, 100, BACKFILL), QueuedPod(ONE, 30, 50, INTERACTIVE)]
    assert queues(pods) == [
        (0, 0, 30, Ended.EVICTED, 30),
        (1, 30, 80, Ended.FINISHED, 0),
        (0, 80, 180, Ended.FINISHED, 0),
    ]


def test_work_before_the_last_checkpoint_is_kept():
    saving = QueueRules("backfill", 0, checkpoint_interval=20)
    pods = [QueuedPod(ONE, 0, 100, saving), QueuedPod(ONE, 50, 10, INTERACTIVE)]
    assert queues(pods) == [
        (0, 0, 50, Ended.EVICTED, 10),
        (1, 50, 60, Ended.FINISHED, 0),
        (0, 60, 120, Ended.FINISHED, 0),
    ]


def test_a_batch_pod_keeps_its_gpu_for_the_minimum_runtime():
    pods = [QueuedPod(ONE, 0, 500, BATCH), QueuedPod(ONE, 30, 50, INTERACTIVE)]
    assert queues(pods) == [
        (0, 0, 100, Ended.EVICTED, 100),
        (1, 100, 150, Ended.FINISHED, 0),
        (0, 150, 650, Ended.FINISHED, 0),
    ]
    assert stock(pods)[0] == (0, 0, 30, Ended.EVICTED, 30)  # kube-scheduler knows no minimum runtime


def test_a_batch_pod_that_ends_before_its_minimum_runtime_is_never_evicted():
    pods = [QueuedPod(ONE, 0, 90, BATCH), QueuedPod(ONE, 30, 50, INTERACTIVE)]
    assert queues(pods) == [(0, 0, 90, Ended.FINISHED, 0), (1, 90, 140, Ended.FINISHED, 0)]


def test_an_equal_takes_over_after_the_maximum_duration_which_doubles_with_each_eviction():
    pods = [QueuedPod(ONE, 0, 5000, BACKFILL), QueuedPod(ONE, 10, 3000, BACKFILL)]
    assert queues(pods) == [
        (0, 0, 1000, Ended.EVICTED, 1000),
        (1, 1000, 2000, Ended.EVICTED, 1000),
        (0, 2000, 4000, Ended.EVICTED, 2000),
        (1, 4000, 6000, Ended.EVICTED, 2000),
        (0, 6000, 10000, Ended.EVICTED, 4000),
        (1, 10000, 13000, Ended.FINISHED, 0),
        (0, 13000, 18000, Ended.FINISHED, 0),
    ]
    assert stock(pods) == [(0, 0, 5000, Ended.FINISHED, 0), (1, 5000, 8000, Ended.FINISHED, 0)]


def test_equals_of_another_queue_take_over_only_with_the_right():
    """Both queues rank alike, because each evicts only the one below."""
    other = QueueRules("other", 0)
    trusted = QueueRules("trusted", 0, frozenset({"backfill"}))
    for queue, ended in ((other, 5000), (trusted, 1000)):
        pods = [QueuedPod(ONE, 0, 5000, BACKFILL), QueuedPod(ONE, 10, 50, queue)]
        assert queues(pods)[0][2] == ended


def test_an_evicted_pod_is_shielded():
    """Backfill 0 is evicted at 10 and starts again at 20. The pod of second 30 has to wait until 10 + 600,
    or as long as the backfill runs."""
    first, second = QueuedPod(ONE, 10, 10, INTERACTIVE), QueuedPod(ONE, 30, 50, INTERACTIVE)
    for duration, starts in ((5000, 610), (200, 220)):
        runs = queues([QueuedPod(ONE, 0, duration, BACKFILL), first, second])
        assert [started for pod, started, *_ in runs if pod == 2] == [starts]
    assert (0, 20, 30, Ended.EVICTED, 10) in stock([QueuedPod(ONE, 0, 200, BACKFILL), first, second])


@pytest.mark.parametrize(("ran", "victim"), [(200, 0), (400, 1)])
def test_a_restart_counts_as_300_seconds_of_work(ran, victim):
    """Pod 0 was never restarted and has run for so long; pod 1 has run for a second, but was restarted."""
    place = placer(1, 2)
    held = [place.place(ONE), place.place(ONE)]
    candidates = [
        RunningPod(0, BACKFILL, 1.0, 1000.0 - ran, held[0]),
        RunningPod(1, BACKFILL, 1.0, 999.0, held[1], restarts=1),
    ]
    found = CheapestVictims([0, 1, 2]).victims(place.fleet, 0, ONE, candidates, 1000.0)
    assert [pod.pod for pod in found[1]] == [victim]


def test_nobody_evicts_upwards_or_without_the_right():
    alone = QueueRules("alone", 5)
    for low, high in ((INTERACTIVE, BATCH), (BATCH, alone)):
        pods = [QueuedPod(ONE, 0, 5000, low), QueuedPod(ONE, 10, 50, high)]
        assert queues(pods) == [(0, 0, 5000, Ended.FINISHED, 0), (1, 5000, 5050, Ended.FINISHED, 0)]


def test_the_waiting_pods_start_by_priority_and_then_by_time():
    pods = [
        QueuedPod(ONE, 0, 10, INTERACTIVE),
        *(QueuedPod(ONE, created, 10, queue) for created, queue in ((1, BACKFILL), (2, BATCH), (3, BATCH))),
    ]
    assert [pod for pod, *_ in queues(pods)] == [0, 2, 3, 1]


def test_kube_scheduler_counts_pods_not_work():
    """One node runs two short backfills on a GPU each, another one backfill of two GPUs since long ago. For
    two GPUs kube-scheduler evicts the single pod; the queues evict the pods that lose less."""
    pods = [
        QueuedPod(TWO, 0, 9000, BACKFILL),
        QueuedPod(ONE, 900, 5000, BACKFILL),
        QueuedPod(ONE, 900, 5000, BACKFILL),
        QueuedPod(TWO, 950, 10, INTERACTIVE),
    ]
    assert [pod for pod, *_, how, _ in stock(pods, placer(2, 2)) if how is Ended.EVICTED] == [0]
    assert [pod for pod, *_, how, _ in queues(pods, placer(2, 2)) if how is Ended.EVICTED] == [1, 2]


def test_an_evicted_pod_moves_to_another_node_at_once():
    """The interactive pod fits only on the larger node, where the backfill is."""
    specs = [*nodes(1, gpus=2), nodes(2, gpus=1)[1]]
    pods = [QueuedPod(ONE, 0, 100, BACKFILL), QueuedPod(TWO, 10, 60, INTERACTIVE)]
    runs = queues(pods, Placer(build_fleet(specs), FirstFit(), NodePicker(np.arange(2))))
    assert runs == [
        (0, 0, 10, Ended.EVICTED, 10),
        (1, 10, 70, Ended.FINISHED, 0),
        (0, 10, 110, Ended.FINISHED, 0),
    ]


def test_an_interrupted_spot_node_loses_its_pods_and_comes_back():
    spot = SpotRows(np.array([True]), [(40.0, 0)], outage=15)
    pods = [QueuedPod(ONE, 0, 100, BACKFILL), QueuedPod(ONE, 0, 10, INTERACTIVE)]
    assert queues(pods, spot=spot) == [
        (0, 0, 40, Ended.INTERRUPTED, 40),
        (0, 55, 155, Ended.FINISHED, 0),
    ]  # and the interactive pod never starts


def test_restartable_pods_prefer_spot_nodes_and_others_leave_them_alone():
    spot = SpotRows(np.array([False, True]))
    pods = [QueuedPod(ONE, 0, 100, queue) for queue in (BACKFILL, INTERACTIVE, BACKFILL)]
    timeline = QueuedTimeline(placer(2), pods, CheapestVictims([0, 1, 2]), spot)
    assert [(run.pod, run.row) for run in timeline.replay()] == [(0, 1), (1, 0), (2, 1)]


def test_a_pod_without_an_end_holds_its_gpu_for_ever():
    pods = [QueuedPod(ONE, 0, math.inf, INTERACTIVE), QueuedPod(ONE, 5, 10, INTERACTIVE)]
    assert queues(pods) == [(0, 0, math.inf, Ended.FINISHED, 0)]


requests = st.sampled_from([share(300), share(500), share(700), ONE, TWO, Request(30_000), Request(50_000)])
timed = st.builds(
    QueuedPod,
    requests,
    st.integers(0, 60).map(float),
    st.integers(0, 80).map(float),
    st.sampled_from(
        [
            QueueRules("backfill", 0, max_duration=20, checkpoint_interval=7, restartable=True),
            QueueRules("batch", 1, frozenset({"backfill"}), min_runtime=10, restartable=True),
            QueueRules("interactive", 2, frozenset({"backfill", "batch"})),
        ]
    ),
)
rules = st.sampled_from([None, KubeScheduler(), CheapestVictims([0, 1, 2])])
spots = st.none() | st.lists(st.integers(1, 100).map(float), max_size=3, unique=True).map(
    lambda times: SpotRows(np.array([True, False]), [(time * 20, 0) for time in times], outage=9)
)


@settings(max_examples=examples(200))
@given(st.lists(requests, max_size=6), requests, st.data())
def test_only_nodes_that_could_not_make_room_are_left_out(placed, request_, data):
    place = placer(1, 2)
    pods = [
        RunningPod(pod, BACKFILL, gpus_of(request), 0.0, held)
        for pod, request in enumerate(placed)
        if (held := place.place(request))
    ]
    candidates = [pod for pod in pods if data.draw(st.booleans())]
    with place.fleet.without([pod.held for pod in candidates]):
        fits = reasons_for(place.fleet, request_)[0] == 0
    could = could_make_room(place.fleet, 0, request_, candidates)
    assert could or not fits
    assert could == fits  # memory of the GPUs never decides here, as in the trace


class Checked(QueuedTimeline):
    """Compares the fleet with the pods that run after every start and every stop."""

    def start(self, *args):
        super().start(*args)
        self.check()

    def stop(self, *args):
        super().stop(*args)
        self.check()

    def check(self):
        fleet = build_fleet(nodes(2, 2))
        for running in self.running.values():
            fleet.take(running.held)
        for name in ("free_cpu", "free_memory", "compute", "memory", "overcommitted"):
            assert np.array_equal(getattr(fleet.arrays, name), getattr(self.fleet.arrays, name)), name
        assert not fleet.arrays.overcommitted.any()
        assert (fleet.arrays.compute >= 0).all()
        assert (fleet.arrays.free_cpu >= 0).all()


@settings(max_examples=examples(150))
@given(st.lists(timed, max_size=14), rules, spots)
def test_no_gpu_is_given_twice_and_all_work_is_done(pods, rule, spot):
    runs = Checked(placer(2, 2), pods, rule, spot).replay()
    for index, pod in enumerate(pods):
        own = sorted((run for run in runs if run.pod == index), key=lambda run: run.ended)
        done = sum(run.ended - run.started - run.lost for run in own)
        assert own, "the nodes can host every request alone, so every pod starts"
        assert done == pytest.approx(pod.duration)
        assert [run.how is Ended.FINISHED for run in own] == [False] * (len(own) - 1) + [True]
        assert own[0].queued == pod.created
        assert all(before.ended == after.queued <= after.started for before, after in pairwise(own))
        for run in own:
            check_eviction(run, pod.queue, rule)
            assert pod.queue.restartable or spot is None or run.row != 0


def check_eviction(run, queue, rule):
    """Nobody leaves before its time."""
    if run.how is not Ended.EVICTED:
        return
    assert rule is not None
    assert queue.name != "interactive"
    assert 0 <= run.lost <= run.ended - run.started
    if isinstance(rule, CheapestVictims):
        assert run.ended - run.started >= queue.min_runtime


@settings(max_examples=examples(150))
@given(st.lists(timed, max_size=14))
def test_without_a_rule_it_is_first_in_first_out_with_skipping(pods):
    pods = [replace(pod, queue=ONE_QUEUE) for pod in pods]
    runs = QueuedTimeline(placer(2, 2), pods).replay()
    assert {run.pod: run.started for run in runs} == by_oracle(pods)


def by_oracle(pods):
    """When each pod starts, told moment by moment: those that end leave, those that wait are tried in order,
    then those that arrive."""
    place, running, waiting, started = placer(2, 2), {}, [], {}
    order = sorted(range(len(pods)), key=lambda index: pods[index].created)
    while order or running:
        ends = {pod: started[pod] + pods[pod].duration for pod in running}
        now = min([*ends.values(), *(pods[pod].created for pod in order[:1])])
        ended = [pod for pod, end in ends.items() if end == now]
        for pod in ended:
            place.fleet.give_back(running.pop(pod))
        tried = waiting if ended else [order.pop(0)]
        for pod in list(tried):
            if held := place.place(pods[pod].request):
                running[pod], started[pod] = held, now
                waiting = [other for other in waiting if other != pod]
            elif pod not in waiting:
                waiting.append(pod)
    return started
