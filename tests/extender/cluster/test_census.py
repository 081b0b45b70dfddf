"""The census: what is on offer, free and stranded, and the same sums wherever they are shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extender.cluster.census import Census, CensusTaker
from extender.cluster.state import State
from extender.explain.node import view_node
from extender.explain.overview import overview
from extender.k8s.affinity import Taint
from extender.k8s.objects import Deleted, Upserted
from tests.extender.builders import make_node, make_pod, make_state

SPOT = {"karpenter.sh/capacity-type": "spot"}
MIG = "nvidia.com/mig-1g.10gb"


async def report(state: State) -> Census:
    return await CensusTaker(state).take()


async def test_only_what_is_on_offer_counts() -> None:
    not_ready = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
    pressed = Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule")
    state = make_state(
        make_node("a", 8),
        make_node("spot", 4, labels=SPOT),
        replace(make_node("cordoned", 8), unschedulable=True),
        replace(make_node("down", 8), taints=(not_ready,)),
        replace(make_node("pressed", 2), taints=(pressed,)),
        make_node("changing", 8, labels={"nvidia.com/mig.config.state": "pending"}),
        make_node("full", 1),
        make_node("cpu", 0),
        make_pod("one", 1, node_name="full"),
        make_pod("too-much", 1, node_name="full"),
        make_pod("p", 5, node_name="a"),
    )
    found = await report(state)
    assert (found.fleet.nodes, found.fleet.gpus) == (3, 14)
    assert (found.fleet.whole, found.fleet.whole_nodes) == (9, 2)
    assert (found.fleet.largest_request, found.fleet.free) == (4, 9)
    assert found.models == {"H100 SXM5 80GB": found.fleet}
    assert found.closed_nodes == {
        "node is cordoned": 1,
        "node is not ready": 1,
        "MIG reconfiguration in progress": 1,
        "node is over-committed": 1,
    }
    table = await overview(state, CensusTaker(state), 0)
    assert (table.totals.whole_nodes, table.totals.whole) == (2, 9)
    assert {line.node for line in table.nodes if not line.on_offer} == {
        "cordoned",
        "down",
        "changing",
        "full",
    }
    assert "9 GPUs and 2 nodes entirely free" in table.totals.text
    notes = {line.node: line.note for line in table.nodes}
    assert (notes["cordoned"], notes["spot"], notes["a"]) == ("node is cordoned", "spot", "")
    view = view_node(state, "down", 0.0)
    assert view is not None
    assert view.takes_nothing == "node is not ready"


async def test_a_cordon_that_is_lifted_counts_again() -> None:
    node = make_node("n", 8)
    state = make_state(replace(node, unschedulable=True))
    assert (await report(state)).fleet.nodes == 0
    state.apply([Upserted(node)])
    assert (await report(state)).fleet.whole_nodes == 1
    state.apply([Upserted(replace(node, unschedulable=True)), Deleted("Node", "n")])
    assert state.nodes.closed == {}


async def test_slices_by_profile_and_no_replica_is_a_whole_gpu() -> None:
    mixed = {"nvidia.com/mig.strategy": "mixed"}
    state = make_state(
        make_node("mig", 0, labels=mixed, **{MIG: "7"}),
        make_node("replicas", 8, labels={"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}),
        make_pod("slice", 2, resource=MIG, node_name="mig"),
    )
    found = await report(state)
    assert (found.fleet.gpus, found.fleet.whole, found.fleet.whole_nodes) == (3, 0, 0)
    [slices] = found.mig.values()
    assert slices.free_slices == 6
    assert {name: (one.instances, one.stranded) for name, one in slices.profiles.items()} == {
        "1g.10gb": (5, 1)
    }


async def test_cpu_strands_gpus_by_what_pods_ask_for() -> None:
    pods = [make_pod(f"p{number}", 1, cpu="16", node_name="a") for number in range(4)]
    state = make_state(make_node("a", 8), *pods)
    found = await report(state)
    assert found.beside_one_gpu.cpu_milli == pytest.approx(16_000)
    assert found.fleet.free == 4
    assert found.fleet.stranded_by_cpu == 4
    assert found.fleet.stranded_by_host_memory == 0


async def test_many_nodes_are_computed_in_parts() -> None:
    state = make_state(*(make_node(f"n{number}", 0, **{MIG: "7"}) for number in range(60)))
    found = await report(state)
    assert found.mig["H100 SXM5 80GB"].profiles["1g.10gb"].instances == 7 * 60


async def test_the_figures_are_numbers_of_python() -> None:
    found = await report(make_state(make_node("a", 8)))
    figures = [getattr(one, name) for one in (found.fleet, found.totals) for name in type(one).__slots__]
    assert not any(isinstance(figure, np.generic) for figure in figures)
