"""A running pod keeps its GPUs, whatever its owner writes into its annotations afterwards."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, Pod, PodSpec, Upserted
from extender.verbs.bind import assign
from tests.extender.builders import make_state
from tests.extender.dialects.test_dialect_manifests import PODS, node, pod, used

INDICES = "stowage.dev/gpu-indices"
COMPUTE, MEMORY, SHARE = "stowage.dev/gpu-compute", "stowage.dev/gpu-memory", "stowage.dev/gpu-share"
L40S = 46068


def with_(one: Pod, more: dict[str, str | None]) -> Pod:
    """The pod after ``kubectl annotate``; None takes an annotation away."""
    merged = {**one.annotations, **more}
    return replace(one, annotations={key: text for key, text in merged.items() if text is not None})


def own_pod(name: str, indices: str = "0", *, on: str = "stowage", **annotations: str) -> Pod:
    said = annotations | ({INDICES: indices} if indices else {})
    spec = PodSpec((Container("a", (("cpu", "1"),)),))
    return Pod("d", name, f"uid-{name}", spec, node_name=on, annotations=said)


CHANGES = {
    "less": {COMPUTE: "1m"},
    "less memory": {COMPUTE: "300m", MEMORY: "1%"},
    "a fraction beside": {"gpu-fraction": "0.01"},
    "all removed": {COMPUTE: None, INDICES: None},
    "no indices": {INDICES: None},
    "no share": {COMPUTE: None},
    "other gpus": {INDICES: "2,3"},
    "unknown gpus": {INDICES: "77"},
    "unreadable gpus": {INDICES: "zero"},
    "unreadable share": {COMPUTE: "a lot"},
    "unreadable": {"stowage.dev/nvlink": "yes", INDICES: None},
    "claims of others": {"hami.io/vgpu-devices-allocated": ";", "volcano.sh/vgpu-ids-new": ""},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_share_neither_shrinks_nor_moves_while_the_pod_runs(change, caplog):
    running = own_pod("a", "0", **{COMPUTE: "300m"})
    state = make_state(node("stowage"), running)
    before = used(state, "stowage")
    edited = with_(running, CHANGES[change])
    with caplog.at_level(logging.WARNING):
        state.apply([Upserted(edited), Upserted(replace(edited, phase="Running")), Upserted(edited)])
        state.apply([Upserted(replace(node("stowage"), labels={**node("stowage").labels, "more": "1"}))])
    assert used(state, "stowage") == before == [[0, 300, 13820]]
    assert running.key in state.problems
    assert sum("d/a" in record.message for record in caplog.records) <= 2  # of the request and the claims
    state.apply([Upserted(running)])
    assert (used(state, "stowage"), state.problems) == (before, {})
    state.apply([Upserted(edited), Deleted("Pod", running.key)])
    assert (used(state, "stowage"), state.problems) == ([], {})


@pytest.mark.parametrize("said", [{COMPUTE: "900m"}, {"gpu-fraction": "0.9"}, {MEMORY: "30Gi"}])
@pytest.mark.parametrize(
    "less",
    [
        {COMPUTE: "100m", MEMORY: None, "gpu-fraction": None},
        {COMPUTE: None, MEMORY: None, "gpu-fraction": "0.1"},
        {COMPUTE: None, MEMORY: None, "gpu-fraction": None},
        {SHARE: "9m"},
    ],
)
def test_what_bind_has_written_counts_after_a_restart(said, less):
    """The owner may edit what the pod requests, and nobody has seen what it was."""
    waiting = replace(own_pod("a", "", **said), node_name="")
    state = make_state(node("stowage"), waiting, binds=True)
    assignment = assign(state, waiting, "stowage")
    assert assignment[INDICES] == "0"
    running = with_(replace(waiting, node_name="stowage"), assignment)
    state.apply([Upserted(running)])
    held = used(state, "stowage")
    assert state.problems == {}
    edited = with_(running, less)
    after = make_state(node("stowage"), edited, binds=True)
    assert all(now >= before for now, before in zip(used(after, "stowage")[0], held[0], strict=True))
    assert edited.key in after.problems
    after.apply([Deleted("Pod", edited.key)])
    assert (used(after, "stowage"), after.problems) == ([], {})


@pytest.mark.parametrize("memory", ["8Gi", "20%"])
def test_the_largest_share_counts(memory):
    running = own_pod("a", "1", **{MEMORY: memory})
    state = make_state(node("stowage"), running)
    ((_, _, before),) = used(state, "stowage")
    for text, larger in [("10Gi", 10240), ("50%", L40S // 2), ("1Mi", L40S // 2), ("1%", L40S // 2)]:
        state.apply([Upserted(with_(running, {MEMORY: text}))])
        assert used(state, "stowage") == [[1, 0, max(before, larger)]]
        assert running.key in state.problems


def test_endless_changes_take_bounded_memory():
    running = own_pod("a", "1", **{COMPUTE: "500m"})
    state = make_state(node("stowage"), running)
    for step in range(50):
        share = {COMPUTE: f"{500 - step}m", MEMORY: f"{1000 + step}Mi"}
        state.apply([Upserted(with_(running, share))])
    history = state.allocations.history_of(running.key)
    assert len(history.shares) <= 4
    ((gpu, compute, memory),) = used(state, "stowage")
    assert (gpu, compute) == (1, 500)
    assert memory >= 23034


@pytest.mark.parametrize(
    ("name", "on", "change"),
    [
        ("hami-running", "hami", {"hami.io/vgpu-devices-allocated": "GPU-aaaa,NVIDIA,3000,30:;"}),
        ("hami-running", "hami", {"hami.io/vgpu-node": "elsewhere"}),
        ("volcano-running", "volcano", {"volcano.sh/vgpu-ids-new": "GPU-vvvv,NVIDIA,3000,50:"}),
        ("gpushare-running", "gpushare", {"ALIYUN_COM_GPU_MEM_IDX": "0"}),
        ("koordinator-running", "koordinator", {"scheduling.koordinator.sh/device-allocated": "{}"}),
        ("vgpu-manager-running", "vgpu-manager", {"nvidia.com/real-allocated": "side[0_GPU-49aa2e6a_1_1]"}),
    ],
)
def test_claims_of_others_do_not_move_either(name, on, change):
    running = pod(name, on)
    state = make_state(node(on), running)
    state.apply([Upserted(with_(running, change))])
    assert used(state, on) == PODS[name]["holds"][on]
    assert "have changed since it was bound" in state.problems[running.key]


def test_a_label_that_divides_a_share_changes_nothing():
    running = pod("gpushare-running", "gpushare")
    even = PodSpec((Container("a", (("aliyun.com/gpu-mem", "4"),)),))
    running = replace(with_(running, {"ALIYUN_COM_GPU_MEM_POD": "4"}), spec=even)
    state = make_state(node("gpushare"), running)
    state.apply([Upserted(replace(running, labels={"aliyun.com/gpu-count": "2"}))])
    assert used(state, "gpushare") == [[1, 0, 4]]
