"""ResourceSlices in the form that NVIDIA's DRA driver publishes them."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.inventory.slices import pools

GPU = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "uuid": {"string": "GPU-aaaa"},
        "productName": {"string": "NVIDIA A100-PCIE-40GB"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:65"},
    },
    "capacity": {"memory": {"value": "40Gi"}},
}


def one_slice(*devices, name="s0", generation=1, count=1, **spec):
    pool = {"name": "node-a", "generation": generation, "resourceSliceCount": count}
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-a",
            "pool": pool,
            "devices": list(devices),
            **spec,
        },
    }


def mig(profile: str, profile_id: int, start: int, slices: int, sms: int) -> dict:
    """A placement of a dynamic MIG device of GPU 0."""
    counters = {"memory": {"value": "4864Mi"}, "multiprocessors": {"value": str(sms)}}
    counters |= {f"memory-slice-{n}": {"value": "1"} for n in range(start, start + slices)}
    return {
        "name": f"gpu-0-mig-{profile.replace('.', '').replace('+', '-')}-{profile_id}-{start}",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": profile},
            "parentUUID": {"string": "GPU-aaaa"},
        },
        "capacity": {"memory": {"value": "4864Mi"}},
        "consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": counters}],
    }


SHARED = [
    {
        "name": "gpu-0-counter-set",
        "counters": {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "98"}}
        | {f"memory-slice-{n}": {"value": "1"} for n in range(8)},
    }
]


def test_a_whole_gpu():
    (pool,) = pools([one_slice(GPU)])
    (gpu,) = pool.devices
    assert (pool.driver, pool.name, pool.node) == ("gpu.nvidia.com", "node-a", "node-a")
    assert (gpu.name, gpu.kind, gpu.uuid, gpu.product) == (
        "gpu-0",
        "gpu",
        "GPU-aaaa",
        "NVIDIA A100-PCIE-40GB",
    )
    assert (gpu.memory_mib, gpu.cuda, gpu.placement, gpu.tainted) == (40960, 13000, None, False)


def test_mig_placements_share_the_counters_of_their_gpu():
    devices = [mig("1g.5gb", 19, 0, 1, 14), mig("1g.5gb+me", 20, 3, 1, 14), mig("3g.20gb", 9, 4, 4, 42)]
    (pool,) = pools([one_slice(*devices, count=2), one_slice(name="s1", count=2, sharedCounters=SHARED)])
    assert [device.placement for device in pool.devices] == [(0, 0, 1), (0, 3, 1), (0, 4, 4)]
    assert pool.counters["gpu-0-counter-set", "memory-slice-7"] == 1
    assert pool.devices[2].consumes["gpu-0-counter-set", "multiprocessors"] == 42
    assert (pool.devices[0].profile, pool.devices[0].parent) == ("1g.5gb", "GPU-aaaa")


def test_only_the_newest_generation_counts_and_only_when_it_is_whole():
    old, new = one_slice(GPU, GPU, name="old"), one_slice(GPU, name="new", generation=2)
    assert len(pools([old, new])[0].devices) == 1
    half = one_slice(GPU, name="half", generation=3, count=2)
    assert pools([old, new, half]) == []


def test_slices_of_no_single_node_are_left_out():
    network = one_slice(GPU)
    del network["spec"]["nodeName"]
    network["spec"]["allNodes"] = True
    assert pools([network]) == []


@pytest.mark.parametrize(("effect", "tainted"), [("NoSchedule", True), ("NoExecute", True), ("None", False)])
def test_tainted_devices(effect, tainted):
    (pool,) = pools([one_slice(GPU | {"taints": [{"key": "unhealthy", "effect": effect}]})])
    assert pool.devices[0].tainted is tainted


def test_the_order_of_devices_is_kept():
    devices = [GPU | {"name": f"gpu-{n}"} for n in (2, 0, 1)]
    later = one_slice(GPU | {"name": "gpu-9"}, name="s1", count=2)
    (pool,) = pools([later, one_slice(*devices, name="s0", count=2)])
    assert [device.name for device in pool.devices] == ["gpu-2", "gpu-0", "gpu-1", "gpu-9"]


paths = st.sampled_from(
    [
        ("spec", "devices", 0, "capacity"),
        ("spec", "devices", 0, "attributes"),
        ("spec", "devices", 0, "consumesCounters"),
        ("spec", "devices", 0, "taints"),
        ("spec", "devices"),
        ("spec", "sharedCounters"),
        ("spec", "pool", "generation"),
        ("spec", "pool", "resourceSliceCount"),
        ("spec", "nodeName"),
        ("metadata",),
    ]
)


@given(paths, st.sampled_from([None, {}, [], 0]))
def test_what_is_absent_or_empty_never_raises(path, value):
    raw = copy.deepcopy(one_slice(mig("1g.5gb", 19, 0, 1, 14), sharedCounters=SHARED))
    target = raw
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    assert len(pools([raw])) <= 1
