"""The few moves that free the most, against what is there."""

from __future__ import annotations

import pytest

from extender.plan.moves import moves_report, plan_moves
from extender.source.snapshot import moment_of
from extender.trial.room_by_moves import moves_off
from packing.plan.move_rule import MoveRule
from tests.extender.plan.clusters import KEEPING, budget, node, pod, share, shared_node, source_of
from tests.extender.plan.test_property import quiet


def test_a_share_alone_on_its_gpu_moves_to_one_that_is_used():
    items = shared_node("a", 2), shared_node("b", 2), share("x", "a", "30%"), share("y", "b", "40%")
    source = source_of(*items, bind=True)
    [(_, moves)] = plan_moves(source.trial(), 1, "gpus")
    assert len(moves) == 1
    report = moves_report("test", source.trial(), 1, "gpus", quiet)
    assert [(gain.today, gain.promised, gain.replayed) for gain in report.gains] == [(2, 3, 3), (0, 1, 1)]
    assert report.sentences == ["1 move would free 1 GPU."]


def test_whole_gpus_are_brought_together_on_nodes():
    source = source_of(node("a"), node("b"), pod("x", "a", 1), pod("y", "b", 2))
    report = moves_report("test", source.trial(), 2, "gpus", quiet)
    assert report.sentences[0].startswith("No move frees a whole GPU")
    assert report.sentences[1] == "With --free nodes, 1 move would free 1 node."
    report = moves_report("test", source.trial(), 2, "nodes", quiet)
    assert list(report.tables[0].rows) == [(1, "ml/x", "a", "b", "b", "a")]
    assert report.agrees


def test_a_part_of_a_gpu_moves_to_another_gpu_of_its_node():
    """As KAI does (its test is in tests/peers/kai.yaml)."""
    items = shared_node("n", 2), share("first", "n", "50%", 0), share("second", "n", "50%", 1)
    source = source_of(*items, bind=True)
    report = moves_report("test", source.trial(), 1, "gpus", quiet)
    assert [(row[2:5], report.agrees) for row in report.tables[0].rows] == [(("n", "n", "n"), True)]
    assert [(gain.today, gain.promised, gain.replayed) for gain in report.gains] == [(0, 1, 1), (0, 1, 1)]


@pytest.mark.parametrize("free", ["gpus", "nodes"])
@pytest.mark.parametrize("word", KEEPING)
def test_no_pod_leaves_a_node_that_its_owner_keeps(free, word):
    """It may get pods of others."""
    kept = shared_node("a", 2)
    kept["metadata"]["annotations"] = {word: "true"}
    items = kept, shared_node("b", 2), share("x", "a", "30%"), share("y", "b", "40%")
    [(_, moves)] = plan_moves(source_of(*items, bind=True).trial(), 4, free)
    assert [(item.key, target) for item, target in moves] == [("ml/y", "a")]


@pytest.mark.parametrize(("allowed", "moved"), [(0, None), (1, None), (2, {"ml/x", "ml/y"})])
def test_pods_of_a_budget_leave_a_node_together_only_if_it_allows_all(allowed, moved):
    """kubectl drain would wait until the first has been replaced (kubernetes.io/docs, Disruptions)."""
    may_move = {"labels": {"app": "a"}, "annotations": {"stowage.dev/restartable": "true"}}
    pods = pod("x", "a", 1, **may_move), pod("y", "a", 1, **may_move)
    state = source_of(node("a"), node("b"), *pods, budget(allowed, app="a")).state()
    room = moves_off(state, "a", moment_of(state.pods.values()) + 3600, MoveRule())
    assert (room and {move.pod.key for move in room.moves}) == moved
