"""The few moves that free the most, against what is there."""

from __future__ import annotations

from extender.plan.moves import moves_report, plan_moves, units_of
from tests.extender.plan.clusters import node, pod, share, shared_node, source_of
from tests.extender.plan.test_property import quiet


def test_a_share_alone_on_its_gpu_moves_to_one_that_is_used():
    items = shared_node("a", 2), shared_node("b", 2), share("x", "a", "30%"), share("y", "b", "40%")
    source = source_of(*items, bind=True)
    said, gain, bound = plan_moves(source.simulation(), 1, "gpus")
    assert (len(said), gain, bound) == (1, 1, 1)
    report = moves_report(source, source.simulation(), 1, "gpus", quiet)
    assert [(gain.today, gain.promised, gain.replayed) for gain in report.gains] == [(2, 3, 3), (0, 1, 1)]
    assert report.sentences == ["1 move would free 1 GPU. No choice of at most 1 move frees more."]


def test_the_cheapest_gpus_are_freed_first():
    shares = [share(f"many-{n}", "a", "20%", 0) for n in range(3)]
    items = [
        shared_node("a", 2),
        shared_node("b", 1),
        *shares,
        share("one", "a", "20%", 1),
        share("z", "b", "20%"),
    ]
    work = source_of(*items, bind=True).simulation()
    said, gain, _ = plan_moves(work, 1, "gpus")
    assert gain == 1
    assert said[0].pod in ("ml/one", "ml/z")


def test_what_cannot_move_keeps_its_gpu():
    fixed = share("x", "a", "30%")
    fixed["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"
    work = source_of(
        shared_node("a", 1), shared_node("b", 1), fixed, share("y", "b", "30%"), bind=True
    ).simulation()
    assert [unit.pods for unit in units_of(work, "gpus")] == [{"ml/y"}]
    said, *_ = plan_moves(work, 3, "gpus")
    assert [(one.pod, one.target) for one in said] == [("ml/y", "a")]


def test_whole_gpus_are_brought_together_on_nodes():
    source = source_of(node("a"), node("b"), pod("x", "a", 1), pod("y", "b", 2))
    report = moves_report(source, source.simulation(), 2, "gpus", quiet)
    assert report.sentences[0].startswith("No move frees a whole GPU")
    report = moves_report(source, source.simulation(), 2, "nodes", quiet)
    assert list(report.tables[0].rows) == [(1, "ml/x", "a", "b", "b", "a")]
    assert report.agrees


def test_no_pod_goes_to_a_free_node():
    work = source_of(node("a"), node("b"), node("c", 1), pod("x", "a", 4), pod("y", "c", 1)).simulation()
    assert plan_moves(work, 5, "nodes")[1] == 0
