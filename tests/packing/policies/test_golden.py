"""Where the default policy puts 600 pods that come and go: a weight that changes by a fifth changes it."""

from __future__ import annotations

import heapq
import random

import numpy as np

from bench.packing.placer import Placer
from packing.cost.demand import Mix
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.inventory import InventoryPolicy
from tests.packing.fleet.builders import GIB, GPU

MIB = 80_000
QUADS = ((0, 1, 2, 3), (4, 5, 6, 7))
KINDS = {
    Request(3000, 8 * GIB, shares=Shares(1, 250, memory_milli=250)): 20,
    Request(2000, 8 * GIB, shares=Shares(1, 400, memory_milli=400)): 12,
    Request(6000, 8 * GIB, shares=Shares(1, 500, memory_milli=300)): 10,
    Request(12_000, 16 * GIB, shares=whole_gpus(1)): 8,
    Request(9000, 32 * GIB, shares=whole_gpus(2)): 9,
    Request(4000, 16 * GIB, devices=((GPU, 1),)): 25,
    Request(14_000, 32 * GIB, devices=((GPU, 2),)): 12,
    Request(16_000, 64 * GIB, devices=((GPU, 4),)): 8,
    Request(32_000, 128 * GIB, devices=((GPU, 8),)): 3,
    Request(8000, 8 * GIB): 4,
}


def fleet() -> Fleet:
    """Nodes a to x: shares, shares with islands, whole H100 with and without islands, and replicas of T4."""
    specs, nodes = list[NodeSpec](), iter("abcdefghijklmnopqrstuvwx")

    def add(count: int, gpus: int, cpu: int, model: str, *, parts: int = 1, cut: bool = False, islands=()):
        pool = Pool(GPU, gpus * parts, tuple(range(gpus)), 1000 // parts, MIB // parts)
        cards, pools = (Gpu(MIB, divisible=cut),) * gpus, () if cut else (pool,)
        for _ in range(count):
            specs.append(NodeSpec(next(nodes), cpu, 512 * GIB, cards, pools, model, islands))

    add(4, 4, 40_000, "A100 SXM4 80GB", cut=True)
    add(4, 4, 48_000, "A100 SXM4 80GB", cut=True, islands=((0, 1), (2, 3)))
    add(4, 8, 64_000, "H100 SXM5 80GB")
    add(6, 8, 64_000, "H100 SXM5 80GB", islands=QUADS)
    add(6, 2, 32_000, "T4", parts=2)
    made = Fleet(nodes=len(specs), gpus=8)
    for number, spec in enumerate(specs):
        made.put(spec)
        if 8 <= number < 18 and number % 3:
            made.network.put(spec.name, (f"rack {number % 2}", "", "", ""))
    return made


def cheapest(cost: Floats) -> int:
    return int(cost.argmin()) if np.isfinite(cost).any() else -1


def places(pods: int = 600, seed: int = 6) -> str:
    """The node of each pod, - for none."""
    draw, nodes = random.Random(seed), fleet()
    placer = Placer(nodes, InventoryPolicy(Mix.of(KINDS)), cheapest)
    leaving, found = list[tuple[float, int, Allocation]](), ""
    for number in range(pods):
        while leaving and leaving[0][0] <= number:
            nodes.give_back(heapq.heappop(leaving)[2])
        (request,) = draw.choices(list(KINDS), list(KINDS.values()))
        placer.arrive(request)
        if held := placer.place(request):
            heapq.heappush(leaving, (number + draw.expovariate(1 / 130), number, held))
        found += nodes.specs[held.row].name if held else "-"
    return found


def test_pods_go_where_they_always_went() -> None:
    assert places() == EXPECTED


EXPECTED = (
    "sabcbbssbttubudvjddwvvdxxmdedexmexedexmmxemafmfdeedfpfggtmpnfnggdegubvnhebxnbhsggrrxdougeflumoexbbhi"
    "emngbbbgaaqgetbggxwwwecbffanmcneafmuucpomqhvbffcjpcbomcfashbdtk-g-up-oerfdoabqbcwlncoqocufcpocc-bvxb"
    "hnppbfabggfb-cpccmagombejmatbabeaatcsjd-css-oopfpcg-h-ewsb-saa-xpdu-b-inibcabdbeeu-xgsfsx-l--ttce-e-"
    "jswgdsbqj-tw-aleguxoop-ncgqdx-mgdeacnbm-b-qvibpfd-egsedc-a-vt--s-upbbdauoaamnhgogbpfbfbgfswafmaauofp"
    "dafna-aaccxnncghddphhuhm-jsmapheknmqxgbbmeatmufdmxjbgfaravegdomtel-ufxmmegpgdexnfj-fbobap---ahe-t-cb"
    "fmv-qmabecxmvkahdgqeae-htqphxavmqjnvpfeblaftbroxekgb-ddxrffghun-qcagnbqapfopbmh-qpqriej-wbg---qni--g"
)
