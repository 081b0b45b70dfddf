"""The fleet: all nodes, and the only place where their resources are allocated or released.

A GPU request is met in one of two ways. *Counted* devices (whole GPUs, replicas, existing MIG instances
behind a device plugin) are in pools. The plugin chooses the physical device, so the pool's count decides, and
the GPU arrays show the pool as if it filled one GPU after another. *Divisible* GPUs are placed one by one, so
the GPU arrays decide; for a GPU with MIG instances on demand they show the largest instance that can still be
created.

Allocations of a node are counted in integers (``NodeUsage``), and the arrays are written from them. So a
release restores every array bit by bit, whatever was allocated and in whatever order.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import NodeArrays
from packing.fleet.feasibility_kernels import note_untouched
from packing.fleet.names import MOST_KINDS, Names, NodeKind, TooMany
from packing.fleet.network import Network
from packing.fleet.node_usage import Allocation, NodeUsage
from packing.model.gpu_catalog import GpuValues
from packing.model.node_spec import MOST_GPUS, NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request, SeparateGpus


class Fleet:
    """Nodes and their free resources. A node keeps its row in the arrays; the row of a removed node is
    reused.

    Shares below ``minimum_milli`` thousandths of a GPU are rejected; 0 rejects none.
    """

    def __init__(self, nodes: int = 64, gpus: int = 8, *, minimum_milli: int = 0) -> None:
        self.minimum_milli = minimum_milli
        self.separate: SeparateGpus = "prefer"
        """For requests that do not specify whether their devices must be on different GPUs."""
        self.arrays = NodeArrays(nodes, gpus)
        self.values = GpuValues()
        """The values of GPUs, for nodes that are added from now on."""
        self.names = Names()
        self.rows: dict[str, int] = {}
        self.specs: list[NodeSpec | None] = []
        self.gpu_of_uuid: dict[str, tuple[int, int]] = {}
        """(GPU, row) of each known UUID."""
        self.changes = 0
        """Number of changes to nodes; ``replaced``: number of nodes added, replaced or removed."""
        self.replaced = 0
        self.last_reasons: tuple[Request, int, npt.NDArray[np.int8]] | None = None
        """The last answer of ``feasibility.reasons_for``: ``prioritize`` follows ``filter`` with the same
        request."""
        self.usage: dict[int, NodeUsage] = {}
        """The allocations on the node of each row."""
        self.spot_rows: set[int] = set()
        self.any_concurrent = False
        """Whether any share has been ``concurrent``."""
        self.choosy_rows: set[int] = set()
        """Rows with a GPU that is ``choosy``."""
        self.network = Network()
        self.sets_of_node: Mapping[str, int] = {}
        """By node name, a mask of the sets that contain the node (``Names.node_sets``)."""
        self.absent: defaultdict[int, list[Allocation]] = defaultdict(list)
        """By row, the allocations that ``without`` excludes now."""
        self._vacant: list[int] = []
        self._assumed: defaultdict[int, list[Allocation]] = defaultdict(list)  # by row, of ``holding``

    @property
    def layout(self) -> tuple[int, int, int]:
        """Changes when the arrays are replaced by larger ones, or a number is assigned to a new name."""
        return id(self), self.arrays.grown, self.names.grown

    def spec_of(self, name: str) -> NodeSpec | None:
        """The node of this name, None if it is unknown."""
        row = self.rows.get(name)
        return None if row is None else self.specs[row]

    def put(self, spec: NodeSpec) -> int:
        """Add a node, or replace the one of that name, and return its row. The row is empty afterwards: the
        allocations of its pods must be taken again.

        Raises TooMany if the fleet would exceed a limit; then the node is unchanged.
        """
        if len(spec.gpus) > MOST_GPUS:
            raise TooMany(f"{len(spec.gpus)} GPUs on one node: the limit is {MOST_GPUS}")
        sharing = self.names.number_sharing_resource(spec.sharing_resource)
        kind = self._kind_of(spec)
        pools = self.names.number_resources(
            [pool.resource for pool in spec.pools],
            lambda: {pool.resource for spec in self.specs if spec for pool in spec.pools},
        )
        if (row := self.rows.get(spec.name)) is None:
            row = self._new_row(spec.name)
        self.arrays.reserve_gpus(len(spec.gpus))
        self.arrays.reserve_resources(self.names.resource_count)
        self._replace(row, spec, pools)
        self.specs[row], self.usage[row] = spec, NodeUsage(spec, pools)
        self.gpu_of_uuid |= {gpu.uuid: (g, row) for g, gpu in enumerate(spec.gpus) if gpu.uuid}
        self.arrays.sharing[row], self.arrays.model[row] = sharing, kind
        self.arrays.gpu_value[row] = self.values.of(spec.model, spec.product)
        return row

    def tell_apart(self, node_sets: Mapping[Hashable, int], sets_of_node: Mapping[str, int]) -> None:
        """Distinguish exactly these sets of nodes: the bit of each set, and by node name the mask of the sets
        that contain it. The same mapping may be changed later, before ``put`` of that node.

        Raises TooMany if that would use more than half of ``MOST_KINDS``; then nothing changes.
        """
        kinds = {_node_kind(spec, sets_of_node.get(spec.name, 0)) for spec in self.specs if spec}
        if len(kinds) > MOST_KINDS // 2:
            raise TooMany(f"{len(node_sets)} sets of nodes would result in {len(kinds)} kinds of nodes")
        renamed = self.sets_of_node is sets_of_node
        self.sets_of_node = sets_of_node
        self.names.tell_apart(node_sets, renamed=renamed)
        if renamed:
            return
        self.arrays.model[:] = 0
        for name, row in self.rows.items():
            spec = self.specs[row]
            assert spec is not None, name
            self.arrays.model[row] = self._kind_of(spec)
            self.touch(row)

    def _kind_of(self, spec: NodeSpec) -> int:
        """The number of the node's kind. Raises TooMany."""
        in_use = lambda: {int(self.arrays.model[row]) for row in self.rows.values()}  # noqa: E731
        try:
            return self.names.number_kind(_node_kind(spec, self.sets_of_node.get(spec.name, 0)), in_use)
        except TooMany:
            return self.names.number_kind(_node_kind(spec, 0), in_use)  # sets affect only costs

    def remove(self, name: str) -> None:
        """Remove a node; its row counts as unknown until it is reused."""
        row = self.rows.pop(name)
        self._replace(row, NodeSpec(name, 0, 0, blocked=Reason.UNKNOWN_NODE), [])
        self.specs[row] = None
        del self.usage[row]
        self._vacant.append(row)

    def block(self, row: int, reason: Reason) -> None:
        """Close a node for this reason until further notice; ``FITS`` reopens it."""
        if int(self.arrays.blocked[row]) != reason:  # numpy asks an enum for its array protocol
            self.arrays.blocked[row] = reason
            self.touch(row)

    @contextmanager
    def blocked_as(self, reasons: Mapping[int, Reason]) -> Iterator[None]:
        """Within the context, these rows are closed for these reasons, or open for ``FITS``."""
        before = {row: Reason(int(self.arrays.blocked[row])) for row in reasons}
        for row, reason in reasons.items():
            self.block(row, reason)
        try:
            yield
        finally:
            for row, reason in before.items():
                self.block(row, reason)

    @contextmanager
    def plugins_idle(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Iterator[None]:
        """Within the context, no device plugin of these rows counts as busy. Row -1 is no node."""
        asked = np.asarray(rows, np.int64)
        busy = asked[(asked >= 0) & (self.arrays.blocked[asked] == Reason.PLUGIN_BUSY)]
        with self.blocked_as(dict.fromkeys(busy.tolist(), Reason.FITS)):
            yield

    def touch(self, row: int) -> None:
        """Record that a node changed, for everything that is derived from it."""
        self.arrays.generation[row] += 1
        self.changes += 1

    def take(self, held: Allocation) -> None:
        """Take an allocation, even beyond the free amount: then the node counts as over-committed."""
        self.take_all(held.row, [held])

    def take_all(self, row: int, held: Sequence[Allocation]) -> None:
        """``take`` these allocations of one node: faster than one by one, with the same result."""
        self._change(row, held, +1)

    def give_back(self, held: Allocation) -> None:
        """Undo ``take``: every array is restored exactly."""
        self._change(held.row, [held], -1)

    @contextmanager
    def without(
        self, held: Iterable[Allocation], idle: Sequence[int] | npt.NDArray[np.int64] = ()
    ) -> Iterator[None]:
        """Within the context, the fleet lacks these allocations, and the device plugins of the ``idle`` rows
        do not count as busy: they may be with one of these pods. The exact previous state is restored after
        it."""
        by_row = defaultdict[int, list[Allocation]](list)
        for allocation in held:
            by_row[allocation.row].append(allocation)
        for row, on_row in by_row.items():
            self._change(row, on_row, -1)
            self.absent[row] += on_row
        try:
            with self.plugins_idle(idle) if len(idle) else nullcontext():
                yield
        finally:
            for row, on_row in by_row.items():
                self._change(row, on_row, +1)
                del self.absent[row][-len(on_row) :]

    @contextmanager
    def holding(self, held: Iterable[Allocation]) -> Iterator[None]:
        """Within the context, the fleet has these allocations of nominated pods; the exact previous state is
        restored after it.

        Each is read from the iterable once those before it are taken, so it can depend on the remaining
        resources. The pods may wait for resources that others still hold: where more is allocated than
        exists, nothing is free, but the node does not count as over-committed.
        """
        taken: list[Allocation] = []
        try:
            for allocation in held:
                self._move(allocation.row, [allocation], +1)
                self._assumed[allocation.row].append(allocation)
                taken.append(allocation)
            yield
        finally:
            for allocation in taken:
                self._move(allocation.row, [allocation], -1)
                self._assumed[allocation.row].remove(allocation)

    def _new_row(self, name: str) -> int:
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = len(self.specs)
            self.specs.append(None)
            self.arrays.reserve_node(row)
        self.rows[name] = row
        self.arrays.order[row] = zlib.crc32(name.encode())  # the same whatever order nodes arrive in
        return row

    def _replace(self, row: int, spec: NodeSpec, pools: list[int]) -> None:
        """Write another node to a row, and forget the UUIDs of the previous one."""
        before = self.specs[row]
        for g, gpu in enumerate(before.gpus if before else ()):
            if self.gpu_of_uuid.get(gpu.uuid) == (g, row):
                del self.gpu_of_uuid[gpu.uuid]
        self.arrays.write_empty(row, spec, pools)
        (self.spot_rows.add if spec.spot else self.spot_rows.discard)(row)
        choosy = any(gpu.choosy for gpu in spec.gpus)
        (self.choosy_rows.add if choosy else self.choosy_rows.discard)(row)
        self.replaced += 1
        self.touch(row)

    def _change(self, row: int, held: Sequence[Allocation], sign: int) -> None:
        """``_move``, and record whether more of a GPU or a pool is allocated than exists, apart from
        nominated pods."""
        self._move(row, held, sign)
        assumed, a = self._assumed[row], self.arrays
        if assumed:
            self._move(row, assumed, -1)
        free = a.compute[:, row], a.memory[:, row], a.free_devices[:, row]
        a.overcommitted[row] = any(amounts.min(initial=0) < 0 for amounts in free)
        if assumed:
            self._move(row, assumed, +1)

    def _move(self, row: int, held: Sequence[Allocation], sign: int) -> None:
        """Allocate (sign 1) or release (-1) all these allocations of one node, and write its arrays once."""
        arrays, usage = self.arrays, self.usage[row]
        changed, devices, shares = usage.add(held, sign), False, False
        for allocation in held:
            for gpu, *_ in allocation.shares:
                arrays.share_slots[gpu, row] -= sign
                if allocation.concurrent:
                    arrays.concurrent_shares[gpu, row] += sign
                    self.any_concurrent = True
            for gpu, more in allocation.further:
                arrays.share_slots[gpu, row] -= sign * more
            devices, shares = devices or bool(allocation.devices), shares or bool(allocation.shares)
        for gpu in changed:
            arrays.compute[gpu, row], arrays.memory[gpu, row] = usage.free_on_gpu(gpu)
        arrays.write_cpu_and_memory(row, *usage.free_cpu_and_memory())
        if devices:
            for resource, free in usage.free_devices():
                arrays.free_devices[resource, row] = free
            for resource, peers in usage.free_peers():
                arrays.free_peers[resource, row] = peers
        if shares:
            self._count_untouched(row)
        self.touch(row)

    def _count_untouched(self, row: int) -> None:
        """Update which GPUs can hold another share, and count those without any as free in their pools."""
        arrays, spec = self.arrays, self.specs[row]
        assert spec is not None
        untouched = np.empty(len(arrays.compute), np.uint8)
        note_untouched(
            row, arrays.compute, arrays.memory, arrays.compute_capacity, arrays.memory_capacity,
            arrays.shareable, arrays.share_slots, arrays.divisible, untouched,
        )  # fmt: skip
        for pool in spec.pools:
            if spec.is_divisible(pool):
                whole = int(untouched[list(pool.gpus)].sum())
                arrays.free_devices[self.names.resources[pool.resource], row] = min(whole, pool.total)


def _node_kind(spec: NodeSpec, sets: int) -> NodeKind:
    products = sorted({gpu.product for gpu in spec.gpus} - {""})
    return NodeKind(spec.model, "\n".join(products) or spec.product, spec.mode, sets, spec.agents)
