"""The labels of a node's GPUs vanish while the agent that writes them restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from extender.cluster.state import State
from extender.explain.problems import Surroundings, problems_of
from extender.k8s.objects import Node, Upserted
from extender.settings import Settings

from .answers import cluster, filtered

SETTINGS = Settings(shortlist=0)
KEPT = ("kubernetes.io/", "nvidia.com/gpu.present", "nvidia.com/mig.config")
"""Labels of kubelet, the GPU Operator and the MIG manager."""
FITS_ONLY_ON_WHOLE_GPUS = "team/whole"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by this many seconds."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def case(name: str) -> tuple[State, Node]:
    state = cluster(Path(__file__).parent / name / "cluster.json", SETTINGS)
    return state, state.nodes["ts"]


def unlabeled(node: Node, **labels: str) -> Node:
    kept = {key: text for key, text in node.labels.items() if key.startswith(KEPT)}
    return replace(node, labels=kept | labels)


def fits(state: State, pod: str) -> bool:
    return list(filtered(state, state.pods[pod], SETTINGS).names) == ["ts"]


@pytest.mark.parametrize("name", ["gfd-restarts", "gfd-restarts-mig-single"])
def test_the_last_known_labels_count(name: str, clock: Callable[[float], None]):
    state, node = case(name)
    before = state.fleet.spec_of("ts")
    state.apply([Upserted(unlabeled(node))])
    clock(60)
    state.apply([Upserted(unlabeled(node))])  # a heartbeat
    assert state.fleet.spec_of("ts") == before
    assert fits(state, "team/one")
    assert not fits(state, FITS_ONLY_ON_WHOLE_GPUS)
    shown = problems_of(state, SETTINGS, Surroundings({}, {}, ""), 100).problems
    assert any(
        "labels missing since" in one.text and "the last known ones count" in one.text for one in shown
    )


def test_they_count_for_a_bounded_time(clock: Callable[[float], None]):
    state, node = case("gfd-restarts")
    state.apply([Upserted(unlabeled(node))])
    clock(3600)
    state.apply([Upserted(unlabeled(node))])
    assert "labels missing" not in state.problems.get("ts", "")
    clock(60)
    state.apply([Upserted(unlabeled(node))])
    assert "labels missing" not in state.problems.get("ts", "")


def test_labels_that_are_written_again_count_at_once(clock: Callable[[float], None]):
    state, node = case("gfd-restarts")
    state.apply([Upserted(unlabeled(node))])
    clock(60)
    state.apply(
        [Upserted(replace(node, labels=node.labels | {"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}))]
    )
    spec = state.fleet.spec_of("ts")
    assert spec is not None
    assert spec.product == "NVIDIA-L4"
    assert "labels missing" not in state.problems.get("ts", "")


@pytest.mark.parametrize(
    "changed",
    [
        {"nvidia.com/mig.config": "all-3g.40gb"},
        {"nvidia.com/mig.config.state": "pending"},
        {"nvidia.com/mig.config.state": "rebooting"},
    ],
    ids=lambda labels: next(iter(labels.values())),
)
def test_a_changing_mig_layout_ends_it(changed: dict[str, str]):
    state, node = case("gfd-restarts-mig-single")
    state.apply([Upserted(unlabeled(node))])
    state.apply([Upserted(unlabeled(node, **changed))])
    assert "labels missing" not in state.problems.get("ts", "")
    done = changed | {"nvidia.com/mig.config.state": "success"}
    state.apply([Upserted(unlabeled(node, **done))])
    assert "labels missing" not in state.problems.get("ts", "")


def test_another_node_of_the_same_name_has_its_own_labels():
    state, node = case("gfd-restarts")
    state.apply([Upserted(replace(unlabeled(node), uid="another"))])
    assert "labels missing" not in state.problems.get("ts", "")


def test_amd_and_intel_label_their_nodes_again_too():
    for product, others in (
        ("amd.com/gpu.product-name", {"amd.com/gpu.vram": "192G"}),
        ("gpu.intel.com/device.count", {"gpu.intel.com/family": "Max_Series"}),
    ):
        state, node = case("gfd-restarts")
        bare = unlabeled(node)
        state.apply([Upserted(replace(bare, uid="n", labels=bare.labels | {product: "2"} | others))])
        state.apply([Upserted(replace(bare, uid="n"))])
        assert "labels missing since" in state.problems.get("ts", "")
