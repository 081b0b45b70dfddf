"""A trace as a source: the pods at its peak, packed, and the same plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.plan.drain import plan_drain
from extender.plan.moves import plan_moves
from extender.plan.trace import TraceSource
from extender.replay.steps import Step, carry_out
from extender.settings import Settings
from tests.extender.plan.test_property import quiet

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{i},64000,262144,2,G2\n" for i in range(3))
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"


@pytest.fixture
def trace(tmp_path: Path):
    def source(*pods: str) -> TraceSource:
        (tmp_path / "nodes.csv").write_text(NODES)
        (tmp_path / "pods.csv").write_text(HEAD + "\n".join(pods) + "\n")
        return TraceSource(tmp_path / "nodes.csv", tmp_path / "pods.csv", Settings())

    return source


def test_the_pods_of_the_peak_count(trace):
    source = trace(
        "early,1000,1024,1,1000,0,10",
        "a,1000,1024,1,1000,10,50",
        "b,1000,1024,2,1000,20,40",
        "c,1,1,1,500,50,",
    )
    work = source.simulation()
    assert sorted(work.movable) == ["a", "b"]
    assert (work.figures().whole, work.waiting) == (3, [])


def test_the_same_work_each_time_and_pods_that_wait(trace):
    source = trace(*(f"p{n},1000,1024,2,1000,," for n in range(4)))
    first, second = source.simulation(), source.simulation()
    assert {key: held.row for key, held in first.held.items()} == {
        key: held.row for key, held in second.held.items()
    }
    assert [item.key for item in second.waiting] == ["p3"]


def test_nodes_can_go(trace):
    source = trace("a,1000,1024,1,500,,", "b,1000,1024,1,500,,")
    plan = plan_drain(source.simulation(), quiet)
    outcome = carry_out(source.simulation(), plan.steps())
    assert (plan.kept, plan.at_least, outcome.problems) == (1, 1, ())
    assert set(outcome.removed) == set(plan.goes)


def test_moves_on_a_trace(trace):
    work = trace("a,1000,1024,1,500,,", "b,1000,1024,1,700,,", "c,1000,1024,1,300,,").simulation()
    said, gain, bound = plan_moves(work, 3, "gpus")
    assert gain <= bound
    assert len(said) <= 3


def test_what_does_not_work_is_a_problem(trace):
    source = trace("a,1000,1024,2,1000,,")
    home = source.simulation().node_of("a")
    steps = [Step("cordon", node=name) for name in ("n0", "n1", "n2")] + [
        Step("evict", "a"),
        Step("place", "a"),
    ]
    assert carry_out(source.simulation(), steps).problems == (
        "a finds no place",
        "a was evicted and has no node",
    )
    assert carry_out(source.simulation(), [Step("remove", node=home)]).problems == (f"a is still on {home}",)
