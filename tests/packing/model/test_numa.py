"""Beside a model of kubelet's Topology Manager that tries every set of NUMA nodes, and every merge of hints.

Facts: kubernetes, ``pkg/kubelet/cm``: ``topologymanager/policy.go`` (``mergePermutation``: a merged hint is
preferred if all hints are, and are equal), ``topologymanager/policy_*.go``, and how hints are made in
``cpumanager/policy_static.go`` and ``devicemanager/topology_hints.go``.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.model.numa import Aligned, NumaNode
from packing.model.numa_alignment import as_arrays, fit_one_after_the_other
from tests.examples import examples

RESOURCES = ("cpu", "gpu", "nic")


class Hint(NamedTuple):
    nodes: frozenset[int]
    preferred: bool


def hints(free: list[int], total: list[int], amount: int) -> list[Hint]:
    """Of one resource: the sets with enough of it free, preferred if no smaller set could ever have it."""
    every = range(1, len(free) + 1)
    sets = [frozenset(nodes) for size in every for nodes in combinations(range(len(free)), size)]
    large_enough = [len(nodes) for nodes in sets if sum(total[node] for node in nodes) >= amount]
    fewest = min(large_enough, default=len(free))
    return [
        Hint(nodes, len(nodes) == fewest) for nodes in sets if sum(free[node] for node in nodes) >= amount
    ]


def merged(offered: list[list[Hint]]) -> Hint | None:
    """The best merge of one hint for each resource: preferred, narrow, a low number as a mask of bits."""
    found = []
    for chosen in product(*offered):
        sets = [one.nodes for one in chosen]
        if both := frozenset.intersection(*sets):
            found.append(Hint(both, all(one.preferred and one.nodes == sets[0] for one in chosen)))
    mask = {hint: sum(1 << node for node in hint.nodes) for hint in found}
    return min(found, key=lambda hint: (not hint.preferred, len(hint.nodes), mask[hint]), default=None)


def admitted(single: bool, numa: list[NumaNode], wanted: list[Aligned]) -> list[dict[str, int]] | None:
    """What is free when kubelet has admitted all of them; None if it refuses one."""
    free, total = [dict(one.free) for one in numa], [dict(one.total) for one in numa]
    for amounts, stays in wanted:
        offered = []
        for name, amount in amounts:
            found = hints([one[name] for one in free], [one[name] for one in total], amount)
            offered.append(
                [one for one in found if one.preferred and len(one.nodes) == 1] if single else found
            )
        best = merged(offered) if amounts else Hint(frozenset(), True)
        if best is None or not best.preferred:
            return None
        for name, amount in amounts if stays else ():
            for node in sorted(best.nodes):
                taken = min(amount, free[node][name])
                free[node][name] -= taken
                amount -= taken
    return free


def aligned(single: bool, numa: list[NumaNode], wanted: list[Aligned]) -> list[dict[str, int]] | None:
    """The same by the kernel, on a machine that is not the only one asked about."""
    names = sorted({name for one in numa for name, _ in one.total})
    free, total = as_arrays(numa, names, len(numa) + 1)
    empty = np.zeros_like(free)
    both = np.stack([empty, free]), np.stack([empty, total])
    queues = [(tuple(wanted),), (tuple(wanted),)]
    if not fit_one_after_the_other(np.array([not single, single]), *both, names, queues)[1]:
        return None
    return [dict(zip(names, left, strict=True)) for left in both[0][1][: len(numa)].tolist()]


AMOUNT = st.integers(0, 6)


@st.composite
def machines(draw: st.DrawFn) -> list[NumaNode]:
    numa = []
    for _ in range(draw(st.integers(1, 4))):
        total = {name: draw(AMOUNT) for name in RESOURCES}
        free = {name: draw(st.integers(0, amount)) for name, amount in total.items()}
        numa.append(NumaNode(tuple(free.items()), tuple(total.items())))
    return numa


CONTAINER = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 8), max_size=3).map(
    lambda amounts: tuple(sorted(amounts.items()))
)
CONTAINERS = st.lists(st.builds(Aligned, CONTAINER, st.booleans()), min_size=1, max_size=3)


@settings(max_examples=examples(2000))
@given(st.booleans(), machines(), CONTAINERS)
def test_the_verdict_and_what_is_left_are_those_of_kubelet(
    single: bool, numa: list[NumaNode], wanted: list[Aligned]
) -> None:
    assert aligned(single, numa, wanted) == admitted(single, numa, wanted)


def test_a_resource_that_no_numa_node_has_is_bound_to_none() -> None:
    numa = [NumaNode((("cpu", 2000),), (("cpu", 2000),))]
    assert aligned(True, numa, [Aligned((("cpu", 2000), ("dongle", 9)))])


def test_many_numa_nodes_without_devices_cost_nothing() -> None:
    """GPUs of a Grace machine have NUMA nodes for their memory, without CPUs."""
    socket, memory = (("cpu", 72_000), ("gpu", 2)), (("memory", 96),)
    numa = [NumaNode(socket, socket)] * 2 + [NumaNode(memory, memory)] * 62
    assert aligned(False, numa, [Aligned((("cpu", 100_000), ("gpu", 4)))])
    assert aligned(False, numa, [Aligned((("cpu", 1000), ("gpu", 4)))]) is None
