"""The fleet: what is taken and given back, and why a request does not fit, against a simple oracle."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, share_mib
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import ModelName, Models, NameFilter, Request, Shares, whole_gpus

from .builders import GPU, MIB, arrays_of, fleet_of, why


def counted(name: str, gpus: int, **more) -> NodeSpec:
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec(name, 64_000, 512_000 << 20, (Gpu(MIB),) * gpus, (pool,) if gpus else (), **more)


def divisible(name: str, gpus: int, **more) -> NodeSpec:
    return NodeSpec(name, 64_000, 512_000 << 20, (Gpu(MIB, divisible=True),) * gpus, **more)


def ask(count: int) -> Request:
    return Request(cpu_milli=1000, memory_bytes=1000 << 20, devices=((GPU, count),))


def test_counted_devices_are_taken_and_given_back():
    fleet, row = fleet_of(counted("a", 8)), 0
    held = allocation_of(fleet, row, ask(6))
    fleet.take(held)
    assert fleet.arrays.free_devices[fleet.names.resources[GPU], row] == 2
    assert fleet.arrays.compute[:, row].tolist() == [0] * 6 + [1000] * 2
    assert why(fleet, ask(2), "a") is Reason.FITS
    assert why(fleet, ask(3), "a") is Reason.NO_FREE_GPUS
    fleet.give_back(held)
    assert why(fleet, ask(8), "a") is Reason.FITS


@pytest.mark.parametrize(
    ("shape", "request_", "reason"),
    [
        (counted("n", 8), ask(9), Reason.TOO_FEW_GPUS),
        (counted("n", 0), ask(1), Reason.NO_SUCH_RESOURCE),
        (counted("n", 8), Request(devices=(("nvidia.com/mig-1g.10gb", 1),)), Reason.NO_SUCH_RESOURCE),
        (counted("n", 8), Request(cpu_milli=64_001, devices=((GPU, 1),)), Reason.NO_FREE_CPU),
        (counted("n", 8), Request(0, (512_000 << 20) + 1, devices=((GPU, 1),)), Reason.NO_FREE_MEMORY),
        (counted("n", 8, blocked=Reason.REPARTITIONING), ask(1), Reason.REPARTITIONING),
        (counted("n", 8, blocked=Reason.REPARTITIONING), ask(9), Reason.REPARTITIONING),
        (counted("n", 8, blocked=Reason.PLUGIN_BUSY), ask(1), Reason.PLUGIN_BUSY),
        (counted("n", 8, blocked=Reason.PLUGIN_BUSY), ask(9), Reason.TOO_FEW_GPUS),
        (counted("n", 8, model="A100"), replace(ask(1), models=frozenset({"H100"})), Reason.WRONG_MODEL),
        (counted("n", 8), Request(devices=((GPU, 4),), island=True), Reason.ISLAND_TOO_SMALL),
        (counted("n", 8, islands=((0, 1, 2, 3),)), Request(devices=((GPU, 4),), island=True), Reason.FITS),
        (divisible("n", 2), Request(shares=whole_gpus(3)), Reason.TOO_FEW_GPUS),
        (counted("n", 2), Request(shares=whole_gpus(1)), Reason.NO_SUCH_RESOURCE),
        (divisible("n", 2), Request(shares=Shares(1, 500, memory_mib=MIB + 1)), Reason.GPUS_TOO_SMALL),
    ],
)
def test_the_reason_on_an_empty_node(shape, request_, reason):
    fleet = fleet_of(shape)
    assert why(fleet, request_) is reason


def test_fragmented_gpus_are_told_from_taken_ones():
    fleet, row = fleet_of(divisible("n", 2)), 0
    for gpu in (0, 1):
        fleet.take(Allocation(row, 0, 0, shares=((gpu, 600, 10_000),)))
    assert why(fleet, Request(shares=Shares(1, 500, 1000))) is Reason.FRAGMENTED
    assert why(fleet, Request(shares=Shares(2, 500, 1000))) is Reason.NO_FREE_GPUS
    assert why(fleet, Request(shares=Shares(1, 400, 1000))) is Reason.FITS


def test_a_node_that_holds_more_than_it_has_takes_nothing():
    fleet, row = fleet_of(counted("n", 2)), 0
    held = [allocation_of(fleet, row, ask(2)), allocation_of(fleet, row, ask(1))]
    for one in held:
        fleet.take(one)
    assert why(fleet, Request()) is Reason.OVERCOMMITTED
    fleet.give_back(held[0])
    assert why(fleet, ask(1)) is Reason.FITS


def test_a_node_is_closed_until_further_notice():
    fleet, row = fleet_of(counted("a", 8)), 0
    before = fleet.changes
    assert why(fleet, ask(1), "a") is Reason.FITS
    fleet.block(row, Reason.PLUGIN_BUSY)
    assert why(fleet, ask(1), "a") is Reason.PLUGIN_BUSY
    fleet.block(row, Reason.PLUGIN_BUSY)
    assert fleet.changes == before + 1
    fleet.block(row, Reason.FITS)
    assert why(fleet, ask(1), "a") is Reason.FITS


def test_only_nodes_with_a_busy_plugin_are_open_while_plugins_count_as_idle():
    fleet, busy = Fleet(nodes=4), Reason.PLUGIN_BUSY
    for name, reason in zip("abcd", (busy, Reason.REPARTITIONING, Reason.FITS, busy), strict=True):
        fleet.put(counted(name, 8, blocked=reason))
    before = fleet.arrays.blocked.tolist()
    assert len(before) == 4
    with fleet.plugins_idle([0, 1, 2, -1]):  # -1 is no node: "d" in the last row is not among them
        assert [why(fleet, ask(1), name) for name in "ab"] == [Reason.FITS, Reason.REPARTITIONING]
        assert [why(fleet, ask(1), name) for name in "cd"] == [Reason.FITS, Reason.PLUGIN_BUSY]
    assert fleet.arrays.blocked.tolist() == before


def test_a_replaced_node_keeps_its_row_and_a_removed_one_is_unknown():
    fleet, row = fleet_of(counted("n", 2)), 0
    assert fleet.put(counted("n", 4)) == row
    assert why(fleet, ask(4)) is Reason.FITS
    fleet.remove("n")
    assert "n" not in fleet.rows
    assert reasons_for(fleet, ask(1))[row] == Reason.UNKNOWN_NODE
    assert fleet.put(counted("other", 1)) == row


def test_the_fleet_grows_in_nodes_gpus_and_resources():
    fleet = Fleet(nodes=1, gpus=1)
    fleet.put(counted("small", 1))
    held = allocation_of(fleet, 0, ask(1))
    fleet.take(held)
    for i in range(200):
        fleet.put(counted(f"n{i}", 16))
    assert why(fleet, ask(1), "small") is Reason.NO_FREE_GPUS
    assert why(fleet, ask(16), "n199") is Reason.FITS
    assert (reasons_for(fleet, ask(16)) == Reason.FITS).sum() == 200


def test_mig_pools_share_their_gpus_in_the_arrays():
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    pools = (Pool(small, 2, (0,), 142, 10_000), Pool(large, 1, (0,), 428, 40_000))
    fleet, row = fleet_of(NodeSpec("n", 1000, 1000, (Gpu(MIB),), pools)), 0
    fleet.take(allocation_of(fleet, row, Request(devices=((small, 1), (large, 1)))))
    assert fleet.arrays.compute[0, row] == 1000 - 142 - 428
    assert fleet.arrays.memory[0, row] == MIB - 50_000
    assert why(fleet, Request(devices=((small, 1),))) is Reason.FITS
    assert why(fleet, Request(devices=((small, 2),))) is Reason.NO_FREE_GPUS


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=6),
)
def test_pools_that_overlap_are_shown_on_the_gpus_that_carry_them(on, pods):
    """GPUs carry so many small and large instances; pods take some of them, and give them back."""
    sizes = {"small": (142, 10_000), "large": (428, 40_000)}
    pools = tuple(
        Pool(name, sum(one[i] for one in on), tuple(range(len(on))), *sizes[name], 0, tuple(o[i] for o in on))
        for i, name in enumerate(sizes)
    )
    fleet, row = fleet_of(NodeSpec("n", 1000, 1000, (Gpu(MIB),) * len(on), pools)), 0
    held = []
    for pod in pods:
        request = Request(devices=tuple((name, n) for name, n in zip(sizes, pod, strict=True) if n))
        if reasons_for(fleet, request)[row] == Reason.FITS:
            held.append(allocation_of(fleet, row, request))
            fleet.take(held[-1])
    taken = [
        sum(n for one in held for r, n in one.devices if r == fleet.names.resources[name]) for name in sizes
    ]
    used = 1000 - fleet.arrays.compute[: len(on), row]
    assert used.sum() == 142 * taken[0] + 428 * taken[1]
    assert (MIB - fleet.arrays.memory[: len(on), row]).sum() == 10_000 * taken[0] + 40_000 * taken[1]
    assert (used <= [142 * small + 428 * large for small, large in on]).all()
    for one in held:
        fleet.give_back(one)
    assert (fleet.arrays.compute[: len(on), row] == 1000).all()
    assert (fleet.arrays.memory[: len(on), row] == MIB).all()


shares = st.builds(Shares, st.integers(1, 3), st.integers(1, 1000), st.integers(0, MIB), st.integers(0, 1000))
requests = st.builds(Request, st.integers(0, 40_000), st.integers(0, 300_000 << 20), shares=shares)


def fits_by_hand(fleet: Fleet, row: int, request: Request) -> bool:
    part = request.shares
    assert part is not None
    compute = fleet.arrays.compute[:4, row] >= part.compute_milli
    memory = fleet.arrays.memory[:4, row] >= part.memory_mib + part.memory_milli * MIB / 1000
    return (
        (compute & memory).sum() >= part.count
        and fleet.arrays.cpu[row] >= request.cpu_milli
        and fleet.arrays.free_memory[row] >= request.memory_bytes
    )


@given(st.lists(requests, max_size=12))
def test_no_sequence_overcommits_and_giving_back_restores_every_array(wanted):
    fleet, row = fleet_of(divisible("n", 4)), 0
    before = arrays_of(fleet)
    taken = []
    for request in wanted:
        fits = fits_by_hand(fleet, row, request)
        assert (why(fleet, request) is Reason.FITS) == fits
        if fits:
            gpus = [
                g
                for g in range(4)
                if fleet.arrays.compute[g, row] >= request.shares.compute_milli
                and fleet.arrays.memory[g, row] >= share_mib(fleet, row, g, request.shares)
            ]
            taken.append(allocation_of(fleet, row, request, gpus[: request.shares.count]))
            fleet.take(taken[-1])
            assert fleet.arrays.compute.min() >= 0
            assert fleet.arrays.memory.min() >= 0
            assert not fleet.arrays.overcommitted[row]
    for held in taken:
        fleet.give_back(held)
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@given(st.lists(st.integers(1, 9), max_size=10))
def test_a_pool_never_hands_out_more_than_it_has(counts):
    fleet, row = fleet_of(counted("n", 8)), 0
    handed_out = 0
    for count in counts:
        fits = why(fleet, ask(count)) is Reason.FITS
        assert fits == (handed_out + count <= 8)
        if fits:
            fleet.take(allocation_of(fleet, row, ask(count)))
            handed_out += count
    assert fleet.arrays.compute[:, row].sum() == 1000 * (8 - handed_out)


def test_what_if_leaves_no_trace():
    fleet, row = fleet_of(counted("n", 8)), 0
    held = allocation_of(fleet, row, ask(8))
    fleet.take(held)
    before = arrays_of(fleet)
    with fleet.without([held]):
        assert why(fleet, ask(8)) is Reason.FITS
        with fleet.holding([allocation_of(fleet, row, ask(1))]):
            assert why(fleet, ask(8)) is Reason.NO_FREE_GPUS
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name])


def divided(gpus: int = 2, *, slots: int = 10, sick: tuple[int, ...] = (), **more) -> NodeSpec:
    """A node that shares its GPUs under the resource name that a plain plugin counts them by."""
    cards = tuple(Gpu(MIB, g not in sick, slots=slots, uuid=f"GPU-{g}") for g in range(gpus))
    healthy = tuple(g for g in range(gpus) if g not in sick)
    pools = (Pool(GPU, len(healthy), healthy, 1000, MIB),) if healthy else ()
    return NodeSpec("n", 64_000, 512_000 << 20, cards, pools, sharing_resource=GPU, **more)


def share(compute: int, mib: int, count: int = 1, **more) -> Request:
    return Request(shares=Shares(count, compute, mib, resource=GPU), **more)


def test_a_counted_device_is_a_whole_gpu_where_gpus_are_divided():
    fleet, row = fleet_of(divided()), 0
    assert why(fleet, ask(2)) is Reason.FITS
    part = allocation_of(fleet, row, share(100, 1000), [1])
    fleet.take(part)
    assert why(fleet, ask(1)) is Reason.FITS
    assert why(fleet, ask(2)) is Reason.NO_FREE_GPUS
    whole = allocation_of(fleet, row, Request(devices=((GPU, 1),)), [0])
    assert whole.shares == ((0, 1000, MIB),)
    fleet.take(whole)
    assert why(fleet, ask(1)) is Reason.NO_FREE_GPUS
    assert why(fleet, share(100, 1000)) is Reason.FITS
    fleet.give_back(whole)
    fleet.give_back(part)
    assert why(fleet, ask(2)) is Reason.FITS


def test_a_share_is_a_counted_device_where_a_plain_plugin_hands_it_out():
    fleet, row = fleet_of(counted("n", 2)), 0
    assert why(fleet, share(100, 1000)) is Reason.NO_SUCH_RESOURCE
    assert allocation_of(fleet, row, share(100, 1000, 2)).devices == ((fleet.names.resources[GPU], 2),)


def test_shares_of_another_sharing_system_mean_nothing():
    fleet, row = fleet_of(divided()), 0
    other = Request(shares=Shares(1, 100, 1000, resource="volcano.sh/vgpu-number"))
    assert why(fleet, other) is Reason.NO_SUCH_RESOURCE
    held = allocation_of(fleet, row, other, [0])
    assert (held.devices, held.shares) == ((), ())


def test_a_gpu_takes_as_many_shares_as_it_has_slots():
    fleet, row = fleet_of(divided(1, slots=2)), 0
    held = [allocation_of(fleet, row, share(100, 100), [0]) for _ in range(2)]
    fleet.take(held[0])
    assert why(fleet, share(100, 100)) is Reason.FITS
    fleet.take(held[1])
    assert why(fleet, share(100, 100)).eviction_helps
    fleet.give_back(held[0])
    assert why(fleet, share(100, 100)) is Reason.FITS


def test_an_unhealthy_gpu_keeps_what_it_holds_and_takes_nothing():
    fleet, row = fleet_of(divided(2, sick=(0,))), 0
    fleet.take(allocation_of(fleet, row, share(500, 1000), [0]))
    assert why(fleet, share(100, 100, 2)) is Reason.TOO_FEW_GPUS
    assert why(fleet, ask(2)) is Reason.TOO_FEW_GPUS
    assert why(fleet, ask(1)) is Reason.FITS


def test_a_gpu_without_free_compute_takes_not_even_memory():
    fleet, row = fleet_of(divided(1)), 0
    fleet.take(allocation_of(fleet, row, share(1000, 1000), [0]))
    assert why(fleet, share(0, 1000)).eviction_helps


@pytest.mark.parametrize(
    ("uuids", "reason"),
    [
        (NameFilter((frozenset({"GPU-1"}),)), Reason.FITS),
        (NameFilter((frozenset({"GPU-7"}),)), Reason.NO_SUCH_RESOURCE),
        (NameFilter(deny=frozenset({"GPU-0"})), Reason.FITS),
        (NameFilter(deny=frozenset({"GPU-0", "GPU-1"})), Reason.NO_SUCH_RESOURCE),
        (NameFilter((frozenset({"GPU-0"}),), frozenset({"GPU-0"})), Reason.NO_SUCH_RESOURCE),
    ],
)
def test_gpus_named_by_uuid(uuids, reason):
    fleet = fleet_of(divided())
    assert why(fleet, share(100, 100, uuids=uuids)) is reason


def names(*models: str) -> frozenset[ModelName]:
    return frozenset(map(ModelName.of, models))


@pytest.mark.parametrize(
    ("model", "product", "products", "fits"),
    [
        ("A100 SXM4 40GB", "NVIDIA-A100-SXM4-40GB", Models((names("a100"),)), True),
        (None, "NVIDIA-GeForce-RTX-4090", Models((names("4090"),)), True),
        (None, "NVIDIA-GeForce-RTX-4090", Models(deny=names("4090")), False),
        (None, "", Models(deny=names("4090")), False),  # not known is not permitted
        (None, "", Models(), True),
        ("T4", "Tesla-T4", Models((names("T4"), names("A100", "L4"))), False),
    ],
)
def test_models_by_a_part_of_their_name(model, product, products, fits):
    fleet = fleet_of(counted("n", 1, model=model, product=product))
    request = Request(devices=((GPU, 1),), products=products)
    assert why(fleet, request) is (Reason.FITS if fits else Reason.WRONG_MODEL)


@pytest.mark.parametrize(("cuda", "fits"), [(12004, True), (13000, True), (12003, False), (0, False)])
def test_the_driver_must_support_the_cuda_version(cuda, fits):
    fleet = fleet_of(counted("n", 1, cuda=cuda))
    reason = why(fleet, Request(devices=((GPU, 1),), cuda=12004))
    assert reason is (Reason.FITS if fits else Reason.OLD_DRIVER)


def test_a_plugin_may_give_one_replica_to_a_container():
    fleet = fleet_of(NodeSpec("n", 64_000, 0, (Gpu(MIB),), (Pool(GPU, 8, (0,), 125, MIB // 8, most=1),)))
    assert why(fleet, Request(devices=((GPU, 2),), together=2)) is Reason.TOO_MANY_REPLICAS
    assert why(fleet, Request(devices=((GPU, 2),))) is Reason.FITS  # two containers, one each


def of_one_gpu(name: str, uuid: str = "") -> NodeSpec:
    return NodeSpec(name, 64_000, 512_000 << 20, (Gpu(MIB, True, uuid=uuid),), sharing_resource=GPU)


def test_a_gpu_is_found_by_its_uuid_wherever_it_goes():
    fleet = Fleet()
    only = share(100, 100, uuids=NameFilter((frozenset({"GPU-1"}),)))
    fleet.put(divided())
    fleet.put(of_one_gpu("other", uuid="GPU-9"))
    assert (why(fleet, only), why(fleet, only, "other")) == (Reason.FITS, Reason.NO_SUCH_RESOURCE)
    fleet.put(divided(1))
    assert why(fleet, only) is Reason.NO_SUCH_RESOURCE
    fleet.put(divided(2))
    fleet.remove("n")
    fleet.put(of_one_gpu("other", uuid="GPU-1"))
    assert why(fleet, only, "other") is Reason.FITS
    fleet.put(of_one_gpu("x"))
    other = share(100, 100, uuids=NameFilter(deny=frozenset({"GPU-5"})))
    assert why(fleet, other, "x") is Reason.NO_SUCH_RESOURCE


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000), st.booleans()), max_size=12))
def test_what_a_node_can_still_take_is_right_after_any_sequence(steps):
    fleet, held = Fleet(), []
    row = fleet.put(divided(3, slots=2, sick=(2,)))
    for gpu, milli, back in steps:
        if back and held:
            fleet.give_back(held.pop(0))
        else:
            held.append(Allocation(row, 0, 0, shares=((gpu, milli, 100 * (milli > 0)),)))
            fleet.take(held[-1])
        on = [[one.shares[0][1] for one in held if one.shares[0][0] == g] for g in range(3)]
        divisible = [len(on[g]) < 2 for g in range(2)]
        assert fleet.arrays.divisible[:3, row].tolist() == [*divisible, False]
        assert fleet.arrays.overcommitted[row] == (max(map(sum, on)) > 1000)
        assert fleet.arrays.free_devices[fleet.names.resources[GPU], row] == sum(
            divisible[g] and not sum(on[g]) for g in range(2)
        )


def test_equal_requests_have_the_same_hash_before_and_after_a_copy():
    one, other = share(100, 1000), share(100, 1000)
    assert hash(one) == hash(other)
    assert one == other
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one)
    assert hash(replace(one, cpu_milli=5)) == hash(replace(other, cpu_milli=5))
