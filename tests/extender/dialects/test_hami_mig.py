"""HAMi's MIG mode: of the pods that ``bind`` writes annotations for, no two get the same memory slice."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.shared_gpus import InventoryError
from extender.explain.node import view_node
from extender.inventory.node_inventory import inventory_of
from extender.k8s.objects import Container, Deleted, Node, Pod, PodSpec, Upserted
from extender.settings import Settings
from extender.verbs.bind import BindingRefused, assign
from packing.model.mig_instances import window
from packing.model.reasons import Reason
from packing.policies.interface import update_now
from tests.examples import examples
from tests.extender.builders import make_state, why
from tests.extender.dialects.test_dialect_manifests import node

ON = "hami-mig-on-demand"
REGISTER = "hami.io/node-nvidia-register"
ALLOCATED, RESERVED = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-mig-allocations"


def with_gpus(count: int, **changes: object) -> Node:
    """The node with this many GPUs of its kind; ``changes`` go into the register entry of the last GPU."""
    one = node(ON)
    (gpu,) = json.loads(one.annotations[REGISTER])
    gpus = [gpu | {"id": f"GPU-{index}", "index": index} for index in range(count)]
    gpus[-1] |= changes
    allocatable = {**one.allocatable, "nvidia.com/gpu": str(7 * count)}
    return replace(one, annotations={REGISTER: json.dumps(gpus)}, allocatable=allocatable)


def asking(name: str, *amounts: tuple[int, int, int], inits: tuple[tuple[int, int, int], ...] = ()) -> Pod:
    """A pod with a container (and init containers) for each (GPUs, MiB, per cent of the cores)."""
    return Pod("d", name, name, PodSpec(tuple(map(container, amounts)), tuple(map(container, inits))))


def container(amounts: tuple[int, int, int]) -> Container:
    names = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
    limits = tuple((name, str(n)) for name, n in zip(names, amounts, strict=True) if n)
    return Container("c", limits, limits)


def started(one: Pod, annotations: dict[str, str]) -> Pod:
    return replace(one, node_name=ON, annotations={**one.annotations, **annotations}, phase="Running")


def running(name: str, devices: str, reserved: list[tuple[int, int, str, int, int]], mib: int = 4000) -> Pod:
    """A pod of one container that has these devices according to its annotations."""
    names = ("containerIndex", "deviceIndex", "gpuUUID")
    entries = [
        dict(zip(names, device, strict=True), profile="1g.5gb", placement={"start": start, "size": size})
        for *device, start, size in reserved
    ]
    one = asking(name, (devices.count(":"), mib, 0))
    return started(one, {ALLOCATED: devices + ";", RESERVED: json.dumps(entries)})


def arrays(state: State) -> list[list[list[float]]]:
    all_of = state.fleet.arrays
    return [a.tolist() for a in (all_of.compute, all_of.memory, all_of.share_slots, all_of.free_devices)]


sizes = st.tuples(st.sampled_from([4000, 4864, 5000, 9000, 15_000, 30_000]), st.sampled_from([0, 0, 20, 60]))
pods = st.lists(
    st.tuples(st.lists(sizes, min_size=1, max_size=2), st.lists(sizes, max_size=1), st.booleans()),
    max_size=18,
)


@pytest.mark.parametrize("policy", ["best-fit", "inventory"])
@settings(max_examples=examples(40))
@given(pods, st.randoms(use_true_random=False))
def test_pods_that_come_and_go_never_share_a_slice(policy, pods, draw):
    state = state_of(Settings(policy=policy))
    update_now(state.policy, state.fleet)
    state.apply([Upserted(with_gpus(2))])
    empty, there = arrays(state), {}
    for number, (containers, inits, goes) in enumerate(pods):
        one = asking(f"p{number}", *((1, *c) for c in containers), inits=tuple((1, *c) for c in inits))
        if goes and there:
            gone = draw.choice(sorted(there))
            del there[gone]
            state.apply([Deleted("Pod", f"d/{gone}")])
        try:
            written = assign(state, one, ON)
        except BindingRefused:
            assert why(state, one, ON) is not Reason.FITS
            continue
        there[one.name] = written
        state.apply([Upserted(started(one, written))])
        assert not state.problems
        check(there)
    state.apply([Deleted("Pod", f"d/{name}") for name in there])
    assert arrays(state) == empty


def check(there: dict[str, dict[str, str]]) -> None:
    """Recount from the annotations: the GPU can have each instance, and no two pods share a slice."""
    profiles = {one["name"]: one for one in json.loads(with_gpus(1).annotations[REGISTER])[0]["migProfiles"]}
    taken: dict[str, set[tuple[str, int]]] = {}
    for name, written in there.items():
        devices = [part for part in written[ALLOCATED].replace(";", ":").split(":") if part]
        reserved = json.loads(written[RESERVED])
        assert len(devices) == len(reserved)
        for device, one in zip(devices, reserved, strict=True):
            profile, (uuid, _, mib, cores) = profiles[one["profile"]], device.split(",")
            assert one["placement"] in profile["placements"]
            assert (uuid, int(mib), int(cores)) == (one["gpuUUID"], profile["memoryMB"], profile["core"])
            start, size = one["placement"]["start"], one["placement"]["size"]
            taken.setdefault(name, set()).update((uuid, place) for place in range(start, start + size))
    assert not any(one & other for one, other in combinations(taken.values(), 2))


def test_two_devices_of_one_gpu_are_two_instances():
    state = make_state(with_gpus(1))
    two = running(
        "two", "GPU-0,NVIDIA,4864,15:GPU-0,NVIDIA,4864,15:", [(0, 0, "GPU-0", 6, 1), (0, 1, "GPU-0", 5, 1)]
    )
    state.apply([Upserted(two)])
    assert not state.problems
    assert state.fleet.usage[state.fleet.rows[ON]].slices(0) == window(5, 2)
    view = view_node(state, ON, 0.0)
    assert view is not None
    assert (view.gpus[0].taken_slices, view.gpus[0].free_memory_mib) == ((5, 6), 19_968)
    assert (view.gpus[0].slices, view.gpus[0].uuid) == (8, "GPU-0")
    (holder,) = view.holders
    assert [(one.profile, one.slices) for one in holder.instances] == [("1g.5gb", (6,)), ("1g.5gb", (5,))]
    assert [part.slices for part in holder.parts] == [(5, 6)]
    assert (holder.source, holder.known) == ("annotations", "placement")


@pytest.mark.parametrize(
    ("reserved", "problem"),
    [
        ([], "claims no MIG instance"),
        ([(0, 0, "GPU-0", 6, 2)], "claims no MIG instance"),
        ([(0, 0, "GPU-1", 6, 1)], "names 1 GPUs, but the pod requests 0"),
        ([(1, 0, "GPU-0", 6, 1)], "names 1 GPUs, but the pod requests 0"),
        ([(0, 0, "GPU-0", 6, 1), (0, 0, "GPU-0", 5, 1)], "cannot be read"),
        ([(0, 0, "GPU-0", -1, 1)], "cannot be read"),
        ([(0, 0, "GPU-0", 6, 10**9)], "cannot be read"),
    ],
)
def test_a_device_without_a_valid_reservation_has_the_whole_gpu(reserved, problem):
    state = make_state(with_gpus(2))
    empty = arrays(state)
    state.apply([Upserted(running("odd", "GPU-0,NVIDIA,4864,15:", reserved))])
    assert problem in state.problems["d/odd"]
    row = state.fleet.rows[ON]
    assert (state.fleet.arrays.compute[0, row], state.fleet.arrays.memory[0, row]) == (0, 0)
    state.apply([Deleted("Pod", "d/odd")])
    assert arrays(state) == empty


def test_nominated_pods_get_different_slices():
    state = make_state(with_gpus(1))
    for number in range(7):
        assert why(state, asking("asking", (1, 4000, 0)), ON) is Reason.FITS
        state.apply([Upserted(replace(asking(f"n{number}", (1, 4000, 0)), nominated_node=ON))])
    assert why(state, asking("asking", (1, 4000, 0)), ON) is Reason.NO_FREE_GPUS
    assert not state.fleet.usage[state.fleet.rows[ON]].slices(0)


@pytest.mark.parametrize(
    "profile",
    [
        7,
        {"name": "1g.5gb", "memoryMB": "much", "core": 14, "placements": []},
        {"name": "1g.5gb", "memoryMB": 5000, "core": 101, "placements": []},
        {"name": "1g.5gb", "memoryMB": 5000, "core": 14, "placements": [{"start": 0, "size": 0}]},
        {"name": "1g.5gb", "memoryMB": 5000, "core": 14, "placements": [{"start": 30, "size": 9}]},
        {"name": "1g.5gb", "memoryMB": 5000, "core": 14, "placements": "all"},
    ],
)
def test_impossible_profiles_close_the_node(profile):
    with pytest.raises(InventoryError, match=REGISTER):
        inventory_of(with_gpus(1, migProfiles=[profile]))
