"""Pods with a whole GPU that would fit a slice: by what is measured or declared, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

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


def labels(product: str, memory: int, **more: str) -> dict[str, str]:
    more = {f"nvidia.com/gpu.{key}": value for key, value in more.items()}
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)} | more


SHARING = {"stowage.dev/gpu-sharing": "true"}
HAMI = "GPU-{0},10,46068,100,NVIDIA-L40S,0,true:"
OTHERS = {
    "a smaller GPU": (node("other", 1, labels=labels("NVIDIA-L4", 23034)), "L4", "other"),
    "a time slice": (
        node("other", 1, devices={GPU: "4"}, labels=labels("NVIDIA-A10G-SHARED", 23028, replicas="4")),
        "1/4 of A10G",
        "other",
    ),
    "a share by Stowage": (
        node("other", devices={}, labels=labels("NVIDIA-L40S", 46068, count="1") | SHARING),
        "share of L40S",
        "other",
    ),
    "a GPU that cannot be compared": (node("other", 1, labels=labels("ACME-9", 90_000)), "none", ""),
    "a GPU as good": (node("other", 1), "none", ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_part_of_a_gpu_counts_and_any_smaller_one(name):
    other, text, target = OTHERS[name]
    source, measured = source_of(node("whole", 4), other, pod("x", "whole")), {"ml/x": Use(3000, 0.012)}
    plan = plan_slices(source.trial(), measured, 1.2)
    [candidate] = plan.candidates
    assert (candidate.slice.text if candidate.slice else "none", candidate.target) == (text, target)
    report = slices_report(source, source.trial(), measured, 1.2, quiet)
    assert report.agrees
    assert report.gains[1].replayed == (1 if target else 0)


def test_pods_share_a_gpu_of_hami_until_its_memory_is_used_up():
    register = {"hami.io/node-nvidia-register": HAMI.format(0)}
    hami = node("hami", 0, devices={GPU: "10"}, labels=labels("NVIDIA-L40S", 46068))
    hami["metadata"]["annotations"] = register
    source = source_of(node("whole", 4), hami, *(pod(name, "whole") for name in "xyzw"))
    measured = {f"ml/{name}": Use(12_000, 0.01) for name in "xyzw"}
    report = slices_report(source, source.trial(), measured, 1.2, quiet)
    assert [(gain.promised, gain.replayed) for gain in report.gains] == [(3, 3), (3, 3)]
    assert report.agrees


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
