"""A running pod keeps its GPUs, whatever its owner writes into its annotations afterwards."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, Pod, PodSpec, Upserted
from extender.verbs.bind import assign
from tests.extender.builders import GPU, make_node, make_pod, make_state
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


def test_a_pod_created_again_under_its_name_has_no_history():
    state = make_state(node("stowage"), own_pod("a", "0", **{COMPUTE: "900m"}))
    anew = replace(own_pod("a", "1", **{COMPUTE: "100m"}), uid="other")
    state.apply([Upserted(anew)])
    assert (used(state, "stowage"), state.problems) == ([[1, 100, 4606]], {})


def test_an_unreadable_pod_is_counted_as_it_is_once_it_can_be_read():
    bad = own_pod("a", "0", **{COMPUTE: "much"})
    state = make_state(node("stowage"), bad)
    assert used(state, "stowage") == [[0, 1000, L40S]]
    state.apply([Upserted(with_(bad, {COMPUTE: "300m"}))])
    assert (used(state, "stowage"), state.problems) == ([[0, 300, 13820]], {})


def test_claims_may_come_after_the_binding():
    running = pod("hami-running", "hami")
    unsaid = replace(running, annotations={})
    state = make_state(node("hami"), unsaid)
    assert len(used(state, "hami")) == 2
    state.apply([Upserted(running)])
    assert (used(state, "hami"), state.problems) == ([[1, 300, 3000]], {})
    state.apply([Upserted(unsaid)])
    assert used(state, "hami") == [[1, 300, 3000]]
    assert running.key in state.problems


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


def test_a_mig_instance_does_not_move():
    name, on = "hami-mig-running", "hami-mig-on-demand"
    running = pod(name, on)
    state = make_state(node(on), running)
    state.apply([Upserted(with_(running, {"hami.io/vgpu-mig-allocations": "[]"}))])
    assert used(state, on) == PODS[name]["holds"][on]


def test_a_label_that_divides_a_share_changes_nothing():
    running = pod("gpushare-running", "gpushare")
    even = PodSpec((Container("a", (("aliyun.com/gpu-mem", "4"),)),))
    running = replace(with_(running, {"ALIYUN_COM_GPU_MEM_POD": "4"}), spec=even)
    state = make_state(node("gpushare"), running)
    state.apply([Upserted(replace(running, labels={"aliyun.com/gpu-count": "2"}))])
    assert used(state, "gpushare") == [[1, 0, 4]]


def test_the_assumed_claims_come_first():
    """Its owner edits the pod between the binding and the event that tells of it."""
    waiting = replace(own_pod("a", "", **{COMPUTE: "300m"}), node_name="")
    state = make_state(node("stowage"), waiting)
    one = state.assume(waiting, "stowage", {INDICES: "2"}, 0.0)
    state.binding_succeeded(one.pod, 1.0)
    state.apply([Upserted(with_(one.pod, {INDICES: "0", COMPUTE: "1m"}))])
    assert used(state, "stowage") == [[2, 300, 13820]]
    assert one.pod.key in state.problems


def test_devices_that_kubelet_has_reported_stay():
    running = make_pod("a", 1, node_name="n")
    more = replace(running, devices=tuple((GPU, f"GPU-{i}") for i in range(3)))
    state = make_state(make_node("n"), more)
    state.apply([Upserted(running)])
    assert int(state.fleet.arrays.free_devices[0, 0]) == 5
    assert "kubelet reports 3 nvidia.com/gpu" in state.problems[running.key]


def test_cpu_and_memory_may_be_resized():
    state = make_state(make_node("n"), make_pod("a", 1, cpu="8", node_name="n"))
    state.apply([Upserted(make_pod("a", 1, cpu="2", node_name="n"))])
    assert state.fleet.arrays.cpu_capacity[0] == 64_000
    assert state.fleet.arrays.cpu[0] == 62_000  # free, in thousandths of a core


def test_a_node_that_comes_later_or_again_makes_no_difference():
    running = own_pod("a", "0", **{COMPUTE: "300m"})
    state = make_state(running)
    state.apply([Upserted(node("stowage")), Upserted(with_(running, {INDICES: "1", COMPUTE: "1m"}))])
    state.apply([Deleted("Node", "stowage"), Upserted(node("stowage"))])
    assert used(state, "stowage") == [[0, 300, 13820]]


def test_a_change_that_is_taken_back_while_the_node_is_away_is_no_problem_any_more():
    running = own_pod("a", "0", **{COMPUTE: "300m"})
    state = make_state(node("stowage"), running)
    state.apply([Upserted(with_(running, {INDICES: "1"})), Deleted("Node", "stowage"), Upserted(running)])
    assert state.problems == {}
    state.apply([Upserted(node("stowage"))])
    assert (used(state, "stowage"), state.problems) == ([[0, 300, 13820]], {})


def test_the_status_of_a_bound_pod_changes_its_record_and_nothing_else():
    bound = make_pod("a", 2, node_name="n", labels={"team": "x"})
    state = make_state(make_node("n"), bound)
    generation = state.fleet.arrays.generation.copy()
    before = state.fleet.changes, state.allocations.changes
    running = replace(bound, phase="Running", started=5.0)
    state.apply([Upserted(running)])
    assert state.pods[bound.key] is running
    assert [*state.pods.on_node("n")] == [running]
    assert (state.fleet.changes, state.allocations.changes) == before
    assert (state.fleet.arrays.generation == generation).all()
    state.apply([Upserted(replace(running, phase="Succeeded"))])
    assert bound.key not in state.pods


def test_a_bound_pod_that_is_shown_is_assumed_nowhere_whatever_has_changed():
    bound = make_pod("a", 2, node_name="n")
    state = make_state(make_node("n"), make_node("m"), bound)
    state.assume(replace(bound, node_name=""), "m", {}, 0.0)
    assert state.pods.assumed.of_pod(bound.uid)
    state.apply([Upserted(replace(bound, phase="Running"))])
    assert not state.pods.assumed.of_pod(bound.uid)
    assert state.pods.node_of(bound) == "n"
    assert [*state.pods.on_node("m")] == []
