"""Running pods whose request cannot be read count with the most that they can have been assigned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.dialects.pod_request import bound_request, request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Deleted, Upserted
from tests.extender.builders import make_node, make_pod, make_state
from tests.extender.cluster.test_running_pods import COMPUTE, with_
from tests.extender.dialects.test_dialect_manifests import cases, node, pod, used

UNREADABLE = [
    {"stowage.dev/nvlink": "yes"},
    {"stowage.dev/min-cuda": "latest"},
    {"gpu-fraction": "0.5"},
    {"gpu-fraction": "0.5", "gpu-memory": "1000"},
    {"nvidia.com/vgpu-mode": "mps"},
    {"nvidia.com/numa-bind": "true"},
    {"nvidia.com/use-gpuuuid": "GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-1"},
    {COMPUTE: "a lot"},
    {COMPUTE: "300m"},
]


@pytest.mark.parametrize("said", UNREADABLE, ids=lambda said: "+".join(said))
def test_no_annotation_frees_the_counted_gpus_of_a_running_pod(said):
    state = make_state(make_node("n"), make_pod("train", 6, node_name="n"))
    before = (
        state.fleet.arrays.free_devices.copy(),
        state.fleet.arrays.cpu.copy(),
        state.fleet.arrays.compute.copy(),
    )
    edited = make_pod("train", 6, node_name="n", annotations=said)
    for fresh in (state, make_state(make_node("n"))):  # the second: after a restart
        fresh.apply([Upserted(edited)])
        after = fresh.fleet.arrays.free_devices, fresh.fleet.arrays.cpu, fresh.fleet.arrays.compute
        assert all((one == other).all() for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("name", "on", "held"),
    [
        ("hami-both-memories", "hami", [[0, 1000, 40536], [1, 1000, 40536]]),
        ("hami-too-many-cores", "hami", [[0, 1000, 40536], [1, 1000, 40536]]),
        ("hami-mps-mode", "hami", [[0, 0, 8000], [1, 0, 8000]]),
        ("hami-numa-bind", "hami", [[0, 0, 8000], [1, 0, 8000]]),
        ("hami-uuid-both", "hami", [[0, 1000, 40536], [1, 1000, 40536]]),
        ("stowage-beside-hami", "hami", [[0, 0, 3000], [1, 0, 3000]]),
        ("kai-beside-whole", "hami", [[0, 1000, 40536], [1, 1000, 40536]]),
        ("stowage-bad-cuda", "hami", [[0, 1000, 40536], [1, 1000, 40536]]),
        ("volcano-mig", "volcano", [[0, 0, 3000], [1, 0, 3000]]),
        ("koordinator-core-alone", "koordinator", [[0, 1000, 15360], [1, 1000, 15360]]),
        ("koordinator-beside-nvidia", "koordinator", [[0, 1000, 15360], [1, 1000, 15360]]),
        ("gpushare-odd-parts", "gpushare", [[0, 1000, 15], [1, 1000, 15]]),
        # Nobody there can have given these a GPU.
        ("hami-no-count", "hami", []),
        ("vgpu-manager-no-number", "vgpu-manager", []),
        ("koordinator-core-alone", "hami", []),
        ("volcano-mig", "hami", []),
        ("kai-both", "stowage", []),
        ("kai-whole-fraction", "stowage", []),
        ("stowage-too-much", "stowage", []),
        ("stowage-no-number", "stowage", []),
        ("stowage-beside-hami", "volcano", []),
        ("stowage-too-much", "koordinator", []),
    ],
)
def test_an_unreadable_pod_counts_with_what_its_spec_can_have_been_given_there(name, on, held):
    running = pod(name, on)
    state = make_state(node(on), running)
    assert used(state, on) == held
    assert "request cannot be read" in state.problems[running.key]
    state.apply([Deleted("Pod", running.key)])
    assert (used(state, on), state.problems) == ([], {})


@pytest.mark.parametrize("name", cases("error"))
def test_every_unreadable_pod_can_be_counted(name):
    held = bound_request(pod(name))
    assert held.problem
    assert all(share.count >= 1 for share in held.possible_shares)


def test_an_annotation_that_is_too_long_counts_as_unreadable():
    running = pod("hami-running", "hami")
    allocated = "hami.io/vgpu-devices-allocated"
    cut = replace(with_(running, {allocated: None}), unreadable=(allocated,))
    state = make_state(node("hami"), cut)
    assert used(state, "hami") == [[0, 300, 3000], [1, 300, 3000]]
    assert "too long" in state.problems[running.key]
    cut = make_pod("train", 6, node_name="n", unreadable=("stowage.dev/gpu-models",))
    with pytest.raises(RequestError, match=r"stowage.dev/gpu-models: more than 16384 characters"):
        request_of(cut)
    assert int(make_state(make_node("n"), cut).fleet.arrays.free_devices[0, 0]) == 2
    with pytest.raises(RequestError, match="300 containers"):
        request_of(make_pod("a", problem="300 containers are too many"))
    request_of(make_pod("a", unreadable=("nvidia.com/other", "ALIYUN_COM_GPU_MEM_IDX")))  # asks for nothing
