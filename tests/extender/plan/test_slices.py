"""Pods with a whole GPU that would fit a slice: by what is measured or declared, and by nothing else."""

from __future__ import annotations

from typing import Any

from extender.plan.slices import PEAK_COMPUTE, PEAK_MEMORY, plan_slices, slices_report
from extender.source.prometheus import Use
from tests.extender.plan.clusters import GPU, node, pod, source_of
from tests.extender.plan.test_property import quiet

SLICES = {GPU: "0", "nvidia.com/mig-1g.10gb": "1", "nvidia.com/mig-3g.40gb": "1"}


def cluster(*pods: Any):
    return source_of(node("whole", 4), node("mig", 1, devices=SLICES), *pods)


def declared(name: str, memory: str, compute: str) -> Any:
    return pod(name, "whole", annotations={PEAK_MEMORY: memory, PEAK_COMPUTE: compute})


def test_measured_use_decides_with_a_margin():
    source = cluster(pod("x", "whole"), pod("y", "whole"), pod("z", "whole"))
    measured = {"ml/x": Use(6000, 0.1), "ml/y": Use(9000, 0.1), "ml/z": Use(60_000, 0.2)}
    plan = plan_slices(source.trial(), measured, 1.2)
    found = {one.item.key: (one.slice.resource if one.slice else None, one.target) for one in plan.candidates}
    assert found == {
        "ml/x": ("nvidia.com/mig-1g.10gb", "mig"),
        "ml/y": ("nvidia.com/mig-3g.40gb", "mig"),  # 10,800 MiB with the margin
        "ml/z": (None, ""),
    }
    report = slices_report(source, source.trial(), measured, 1.2, quiet)
    assert [(one.today, one.promised, one.replayed) for one in report.gains] == [(1, 3, 3), (0, 2, 2)]
    assert report.agrees


def test_busy_pods_need_compute():
    plan = plan_slices(cluster(pod("x", "whole")).trial(), {"ml/x": Use(100, 0.3)}, 1.0)
    assert plan.candidates[0].slice is not None
    assert plan.candidates[0].slice.resource == "nvidia.com/mig-3g.40gb"


def test_annotations_count_where_nothing_was_measured():
    source = cluster(declared("x", "4Gi", "10%"), declared("y", "4Gi", "0.1"))
    plan = plan_slices(source.trial(), {"ml/x": Use(50_000, 0.9)}, 1.0)
    assert {one.item.key: one.source for one in plan.candidates} == {"ml/x": "measured", "ml/y": "declared"}
    assert [one.item.key for one in plan.moves] == ["ml/y"]


def test_nothing_is_guessed():
    source = cluster(
        pod("x", "whole"), pod("y", "whole"), declared("z", "much", "10%"), declared("v", "1Gi", "300%")
    )
    plan = plan_slices(source.trial(), {"ml/y": Use(100, None)}, 1.0)
    assert plan.candidates == []
    assert sorted(plan.unknown) == ["ml/v", "ml/x", "ml/y", "ml/z"]
    assert sorted(plan.problems) == ["ml/v", "ml/z"]
    report = slices_report(source, source.trial(), {}, 1.0, quiet)
    assert report.agrees


def test_a_slice_is_given_once():
    source = cluster(declared("x", "1Gi", "5%"), declared("y", "1Gi", "5%"), declared("w", "1Gi", "5%"))
    plan = plan_slices(source.trial(), {}, 1.0)
    assert len(plan.moves) == 2
    assert len({one.slice for one in plan.moves}) == 2


def test_pods_of_several_gpus_and_of_slices_are_left_alone():
    source = cluster(pod("two", "whole", 2), pod("small", "mig", resource="nvidia.com/mig-1g.10gb"))
    measured = {"ml/two": Use(10, 0.1), "ml/small": Use(10, 0.1)}
    assert plan_slices(source.trial(), measured, 1.0).candidates == []
