"""MIG layouts: a bad one is replaced, what runs keeps its instances, and the engine confirms it."""

from __future__ import annotations

from typing import Any

from extender.plan.mig import mig_report
from extender.plan.report import Report
from tests.extender.plan.clusters import GPU, bad_mig_layout, node, pod, source_of
from tests.extender.plan.test_property import quiet

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def report_of(*items: Any, most: int = 3, growth: float = 1.0, **settings: Any) -> Report:
    source = source_of(*items, **settings)
    return mig_report(source, source.trial(), most, growth, 90.0, quiet)


def gains(report: Report) -> dict[str, tuple[float, float | None, float]]:
    return {gain.what: (gain.today, gain.promised, gain.replayed) for gain in report.gains}


def test_a_bad_layout_is_replaced_and_gains_what_it_promised():
    report = report_of(*bad_mig_layout())
    assert gains(report) == {"1g.10gb in use": (8, 8, 8), "3g.40gb in use": (0, 10, 10)}
    assert report.agrees
    assert report.sentences[0] == "Change 3 nodes (H100 SXM5 80GB) to 2x 3g.40gb on each GPU."
    assert report.sentences[1].startswith(
        "Cost: 6 pods restart; 4.5 minutes to re-partition 3 nodes in sequence; 0.22 GPU-hours lost."
    )


def test_growth_plans_for_more_and_promises_what_is_asked_for_now():
    report = report_of(*bad_mig_layout(), growth=1.2)
    rows = {row[0]: dict(zip(report.tables[1].head, row, strict=True)) for row in report.tables[1].rows}
    assert (rows["3g.40gb"]["planned for"], rows["3g.40gb"]["served"]) == (12, 12)
    assert gains(report)["3g.40gb in use"] == (0, 10, 10)


def test_a_node_whose_pods_cannot_move_keeps_its_layout():
    items = bad_mig_layout()
    for item in items:
        if item["metadata"]["name"] in ("small-0", "small-1", "small-2"):
            item["metadata"]["ownerReferences"] = []
    report = report_of(*items)
    stuck = {row[0]: row[4] for row in report.tables[0].rows if row[4]}
    assert stuck == {f"mig-{n}": f"ml/small-{n - 1}: no controller would recreate it" for n in (1, 2, 3)}
    assert gains(report)["3g.40gb in use"] == (0, 4, 4)
    assert report.agrees


def test_a_node_keeps_its_layout_if_its_pods_would_find_no_place():
    """Any node may change by its instances, but only c has the CPU that x needs."""
    nodes = [
        node(name, 1, devices={GPU: "0", SMALL: "7"}, cpu=cpu) for name, cpu in (("a", "8"), ("c", "64"))
    ]
    running = pod("y", "a", resource=SMALL), pod("x", "c", resource=SMALL, cpu="40")
    running[0]["status"]["startTime"] = "2025-01-01T00:00:00Z"  # its work is worth more
    report = report_of(*nodes, *running, *(pod(f"w{n}", resource=LARGE) for n in range(2)))
    rows = {row[0]: row[2:] for row in report.tables[0].rows}
    why = "no node allowed by its rules is large enough for it, even without other pods"
    assert rows["c"] == ("unchanged", 0, f"ml/x: {why}")
    assert rows["a"][0] == "2x 3g.40gb"
    assert gains(report) == {"1g.10gb in use": (2, 2, 2), "3g.40gb in use": (0, 2, 2)}


CAPABLE = {"nvidia.com/mig.capable": "true"}


def layouts_then(report: Report) -> dict[str, object]:
    """The nodes that change."""
    return {str(row[0]): row[2] for row in report.tables[0].rows if row[2] != "unchanged"}


def test_a_pod_of_eight_waits_while_every_node_has_a_pod_that_cannot_move():
    nodes = [node(f"mig-{n}", 8, devices={GPU: "0", SMALL: "56"}) for n in range(2)]
    running = [pod(f"small-{n}", f"mig-{n}", resource=SMALL, owner="") for n in range(2)]
    report = report_of(*nodes, *running, pod("large", gpus=8))
    assert not layouts_then(report)
    assert {row[4] for row in report.tables[0].rows} == {
        f"ml/small-{n}: no controller would recreate it" for n in range(2)
    }


def test_with_the_strategy_single_no_node_is_divided_for_pods_that_ask_for_gpus():
    labels = CAPABLE | {"nvidia.com/mig.strategy": "single", "nvidia.com/mig.config": "all-disabled"}
    report = report_of(node("n0", 8, labels=labels), *(pod(f"w{n}", gpus=8) for n in range(2)))
    assert not layouts_then(report)
