"""Worlds with arrivals and departures: what is dropped or waits, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.packing.backfilling import Way
from bench.packing.worlds import Result, World, run
from tests.extender.builders import GPU


def world(arrivals: list[list[float]], *, nodes: int = 2) -> dict[str, Any]:
    """Nodes of 4 GPUs, two in a rack, and two templates: one GPU, and a gang of two nodes."""

    def node(i: int) -> dict[str, Any]:
        labels = {"kubernetes.io/hostname": f"n{i}", "nvidia.com/gpu.clique": f"c{i // 2}"}
        amounts = {"cpu": "32", "memory": "100Gi", "pods": "110", GPU: "4"}
        return {
            "kind": "Node",
            "metadata": {"name": f"n{i}", "labels": labels},
            "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def template(gpus: int, gang: int) -> dict[str, Any]:
        requests = {"cpu": "1", GPU: str(gpus)}
        containers = [{"name": "c", "resources": {"requests": requests, "limits": requests}}]
        pod = {"kind": "Pod", "metadata": {"name": f"p{gpus}"}, "spec": {"containers": containers}}
        big = gang > 1
        return {"name": str(gpus), "pod": pod, "gpus": gpus, "gang": gang, "domain": big, "big": big}

    return {
        "world": "small", "seed": 0, "load": 1.0, "gpus": 4 * nodes, "life": 10.0, "warm": 0,
        "nodes": [node(i) for i in range(nodes)],
        "templates": [template(1, 1), template(4, 2)],
        "arrivals": arrivals,
    }  # fmt: skip


def test_what_fits_nowhere_is_dropped_or_waits_for_both_nodes_of_one_rack():
    text = world([[0, 10, 0], [1, 5, 1], [20, 5, 1]])
    dropped, waited = (run(World(text, "best-fit"), queue=queue) for queue in (False, True))
    asked = 10 + 40 + 40
    assert (dropped.placed, dropped.lost) == (pytest.approx(100 * 50 / asked), 50)
    assert (waited.placed, waited.lost) == (pytest.approx(100), 0)
    assert waited.wait == pytest.approx((9 / 10 + 0) / 2)  # until the pod of one GPU has gone
    assert waited.gpu_wait == pytest.approx(100 * 8 * 9 / asked)


def test_a_gang_does_not_start_in_two_racks():
    text = world([[0, 10, 0], [1, 10, 0], [2, 5, 1]], nodes=4)
    assert run(World(text, "first-fit"), queue=False).lost == 0  # both single pods are on one node
    spread = run(World(text, "least-allocated"), queue=False)
    assert spread.lost == (spread.placed < 100) * 100


def wait_of_gang(way: Way, longest: float = 6.0) -> Result:
    """Pods of one GPU that never leave a rack of 8 GPUs empty, one of which runs this long, and a gang that
    needs the rack at 20."""
    arrivals = [[float(at), longest if at == 19 else 6.0, 0] for at in range(60)]
    text = World(world([*arrivals[:20], [20.0, 5.0, 1], *arrivals[20:]]), "best-fit")
    text.give_limits(0, (1.0, 1.0))
    text.reserve(way)
    return run(text, queue=True)


def test_a_gang_starts_once_its_rack_is_reserved_for_it():
    assert wait_of_gang("today").wait == pytest.approx((65 - 20) / 10)  # after the last pod
    for way in ("strict", "unknown", "learned", "limits", "known"):
        reserved = wait_of_gang(way)
        assert reserved.wait < 1.5, way
        assert reserved.placed == pytest.approx(100), way


def test_pods_that_end_in_time_use_the_reserved_rack():
    """The rack is not free before 45."""
    known, unknown = wait_of_gang("known", 26.0), wait_of_gang("unknown", 26.0)
    assert known.wait == unknown.wait == pytest.approx((45 - 20) / 10)
    assert known.small < unknown.small / 2


def test_another_load_makes_pods_run_longer():
    text = world([[0, 10, 0], [11, 5, 1]])
    assert run(World(text, "best-fit"), queue=False).lost == 0
    assert run(World(text, "best-fit", 1.2), queue=False).lost == 100
