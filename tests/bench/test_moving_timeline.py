"""Timelines in which pods move: hand-computed cases."""

import math

import numpy as np
import pytest

from bench.packing.consolidation import generated
from bench.packing.filling import build_fleet
from bench.packing.moving_timeline import GRACE, LOOK, MovingTimeline, Ways
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import FirstFit
from bench.packing.timeline import Ended, TimedPod
from packing.model.request import Request, whole_gpus
from packing.plan.move_rule import MoveRule
from packing.victims.rights import RESTART
from tests.bench.test_filling import nodes

ONE, THREE, FOUR = (Request(shares=whole_gpus(gpus)) for gpus in (1, 3, 4))
RULE = MoveRule(gpus=4, after=300, age=600)


def replayed(pods, **ways):
    """On two nodes of 4 GPUs."""
    placer = Placer(build_fleet(nodes(2)), FirstFit(), NodePicker(np.arange(2)))
    timeline = MovingTimeline(placer, pods, Ways(RULE, **ways))
    return timeline, timeline.replay()


def pieces(small: float = 10_000.0) -> list[TimedPod]:
    """Pods 0 and 2 stay, with a GPU free on one node and three on the other, and pod 3 waits for four."""
    return [
        TimedPod(THREE, 0, 20_000),
        TimedPod(ONE, 0, 2000),
        TimedPod(ONE, 0, small),
        TimedPod(FOUR, 3000, 500),
    ]


def test_a_small_pod_moves_when_the_large_one_has_waited_for_long_enough():
    timeline, runs = replayed(pieces(), move=True, checkpoint=60)
    (moved,) = (run for run in runs if run.how is Ended.EVICTED)
    assert (moved.pod, moved.row, moved.lost) == (2, 1, RESTART + moved.ended % 60)
    assert moved.ended == 3000 + RULE.after + LOOK  # the clock starts at the first look
    (large,) = (run for run in runs if run.pod == 3)
    assert (large.row, large.queued, large.started) == (1, 3000, moved.ended + GRACE)
    (again,) = (run for run in runs if run.pod == 2 and run.how is Ended.FINISHED)
    assert (again.row, again.started, again.ended) == (0, moved.ended, 10_000 + moved.lost)
    assert timeline.blocked == moved.ended - 3000


@pytest.mark.parametrize(("checkpoint", "minutes"), [(math.inf, 19), (60, 5)])
def test_a_pod_that_saves_nothing_moves_when_more_was_waited(checkpoint, minutes):
    """1 GPU x (what it has run + 300 s) against 4 GPUs x what was waited."""
    _, runs = replayed(pieces(), move=True, checkpoint=checkpoint)
    (moved,) = (run for run in runs if run.how is Ended.EVICTED)
    assert moved.ended == 3000 + LOOK + minutes * 60


def test_nobody_moves_without_moves_and_a_reservation_waits_for_the_node():
    later = TimedPod(THREE, 9500, 3000)
    for reserve, starts in ((False, 12_500), (True, 10_000)):
        timeline, runs = replayed([*pieces(), later], reserve=reserve)
        assert not [run for run in runs if run.how is Ended.EVICTED]
        assert [run.started for run in runs if run.pod == 3] == [starts]
    assert timeline.blocked > 0


def test_a_generated_trace_asks_for_the_load():
    jobs = generated(10, 3, 0.9, 1)
    asked = sum(job.request.gpus * job.duration for job in jobs)
    assert asked == pytest.approx(0.9 * 10 * 8 * 3 * 86_400)
    assert generated(10, 3, 0.9, 1) == jobs != generated(10, 3, 0.9, 2)
