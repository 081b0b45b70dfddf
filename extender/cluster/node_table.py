"""Nodes, and the other objects that describe their GPUs: Koordinator's Device, MIG layouts.

The MIG manager of a node reads one file: a ConfigMap that all nodes share, or a ConfigMap for this node,
which it writes as ``<node>-mig-config`` (NVIDIA/mig-parted at bd7160f4, cmd/nvidia-mig-manager/main.go). So
layouts of two ConfigMaps are never merged. If several are for the same nodes, the one with that name is used,
otherwise the first by namespace and name.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from extender.cluster.allocations import Allocations, Problems
from extender.cluster.demand import NodeSets
from extender.dialects.nvfractions import ENFORCED
from extender.dialects.pod_request import writers_on
from extender.dialects.shared_gpus import InventoryError
from extender.dra.node_devices import NodeDevices
from extender.inventory.devices import LAYOUT_LABEL, STATE_LABEL, applied_layout
from extender.inventory.gpu_labels import AMD_PRODUCT, INTEL_COUNT, PRODUCT, read_gpu_labels, reconfiguring
from extender.inventory.node_inventory import Sources, domains_of, inventory_of, known_gpus
from extender.inventory.node_state import closed_because, mig_change_of
from extender.k8s.objects import KoordinatorDevice, MigLayout, MigLayouts, Node, Pod
from extender.k8s.quantity import QuantityError
from extender.untrusted.visible import clock_text, listed
from packing.fleet.fleet import Fleet
from packing.fleet.names import TooMany
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason

_log = logging.getLogger(__name__)
NodeKind: TypeAlias = Literal["Node", "Device", "ConfigMap"]
_LOST_FOR = 600
"""Seconds for which the last known labels of a node count after they have vanished."""
_ALWAYS_WRITTEN = PRODUCT, AMD_PRODUCT, INTEL_COUNT
"""A label that each agent for GPUs always writes."""
_STARTS_FOR = 900
"""Seconds from the creation of a node until its MIG manager must have started."""
_RETRIED = 8
"""Number of nodes without room in the fleet that are retried whenever another node changes."""


class MigLayoutTable:
    """ConfigMaps by ``namespace/name``. ``listed``: whether Stowage watches them, so that an unknown
    ConfigMap does not exist."""

    def __init__(self) -> None:
        self.listed = False
        self.by_name: dict[str, MigLayouts] = {}
        self._by_node: defaultdict[str, dict[str, MigLayouts]] = defaultdict(dict)  # "": for all nodes
        self._counting: dict[str, MigLayouts] = {}

    def put(self, record: MigLayouts) -> None:
        known = self.by_name.get(record.name)
        if record.problem and (known is None or known.problem != record.problem):
            _log.warning("%s: %s", record.name, record.problem)
        self.remove(record.name)
        self.by_name[record.name] = self._by_node[record.node][record.name] = record
        self._choose(record.node)

    def remove(self, name: str) -> None:
        if known := self.by_name.pop(name, None):
            del self._by_node[known.node][name]
            self._choose(known.node)

    def on(self, node: str) -> MigLayouts | None:
        """The layouts available to a node: its own, otherwise those for all nodes."""
        return self._counting.get(node) or self._counting.get("")

    def problems(self, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
        """Missing, unreadable and ambiguous layouts of these nodes, each with the problem."""
        if missing := "the MIG manager's ConfigMap does not exist" if self.listed else "":
            if not self.by_name:
                yield _layouts_of(""), missing
            elif "" not in self._counting:
                without = (node for node in nodes.values() if node.name not in self._counting)
                yield from ((_layouts_of(n.name), missing) for n in without if LAYOUT_LABEL in n.labels)
        for node, layouts in self._counting.items():
            count = len(self._by_node[node])
            problem = layouts.problem and f"{layouts.name}: {layouts.problem}"
            doubt = f"{layouts.name} is used, one of {count} ConfigMaps" if count > 1 else ""
            if (problem or doubt) and (not node or node in nodes):
                yield _layouts_of(node), "; ".join(filter(None, (problem, doubt)))

    def _choose(self, node: str) -> None:
        if found := self._by_node[node]:
            own = f"/{node}-mig-config"
            self._counting[node] = found[min(found, key=lambda name: (not name.endswith(own), name))]
        else:
            del self._by_node[node]
            self._counting.pop(node, None)


def _layouts_of(node: str) -> str:
    return f"MIG layouts of {node or 'all nodes'}"


class NodeTable(Mapping[str, Node]):
    """Nodes by name. Writes their resources into ``allocations``; the methods return the nodes that changed
    there.

    ``sources``: the sources of each inventory. ``network``: the nodes that are near each other. ``sets``: the
    sets of nodes that pods require. ``closed``: cordoned nodes and nodes that are not ready, with the reason.
    A node with an unreadable inventory has no sources, accepts no pods, and is a problem. ``unoffered``: the
    number of GPUs of a node in addition to those that it offers; 0: unknown. ``counted_as``: the resource
    by which a sharing system counts its fractions, if Stowage does not read that. ``layouts``: those of the
    MIG manager.
    """

    def __init__(self, allocations: Allocations, fleet: Fleet) -> None:
        self.problems = Problems()
        self.sets = NodeSets(fleet)
        self.changes = 0  # of Nodes
        self.spot_marks: Collection[str] = ()  # the setting ``spot_nodes``
        self.enforces_shares = False  # the setting ``enforce_shares``
        self.sources: dict[str, Sources] = {}
        self.closed: dict[str, str] = {}
        self.unoffered: dict[str, int] = {}
        self.unhealthy: dict[str, int] = {}
        self.counted_as: dict[str, str] = {}
        self._unused_layouts: dict[str, str] = {}
        self.network = fleet.network
        self.layouts = MigLayoutTable()
        self._lost_labels: dict[str, tuple[Mapping[str, str], float]] = {}  # with the time of the loss
        self._koordinator_devices: dict[str, KoordinatorDevice] = {}
        self._nodes: dict[str, Node] = {}
        self._too_many: dict[str, None] = {}  # most recently retried last
        self._allocations, self._fleet = allocations, fleet

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, record: Node | KoordinatorDevice | MigLayouts) -> list[str]:
        match record:
            case Node():
                known = self._nodes.get(record.name)
                reread = record.name in self._lost_labels or self._waits_for_layout(record)
                self._note_lost_labels(known, record)
                self._nodes[record.name] = record
                self.changes += known != record
                self.closed.pop(record.name, None)
                if why := closed_because(record):
                    self.closed[record.name] = why
                if reread or known is None or known.labels != record.labels:
                    self.network.put(record.name, domains_of(self._described(record).labels))
                if known is not None and _inventory_fields(known) == _inventory_fields(record):
                    return self._read_inventories([record.name] if reread else ())
                self.sets.put(record)
                return self._read_inventories([record.name])
            case KoordinatorDevice():
                self._koordinator_devices[record.name] = record
                return self._read_inventories([record.name])
            case MigLayouts():
                return self._set_layouts(record.name, record)

    def remove(self, kind: NodeKind, key: str) -> list[str]:
        match kind:
            case "Node":
                self._nodes.pop(key, None)
                self._lost_labels.pop(key, None)
                self.sets.remove(key)
                self._forget_inventory(key)
                self.closed.pop(key, None)
                self.network.remove(key)
                self.problems.pop(key, None)
                self._allocations.remove_node(key)
                return [key, *self._read_inventories(())]
            case "Device":
                self._koordinator_devices.pop(key, None)
                return self._read_inventories([key])
            case "ConfigMap":
                return self._set_layouts(key, None)

    def keep(self, kind: NodeKind, keys: frozenset[str]) -> list[str]:
        """Forget all objects of a kind except these."""
        by_kind: dict[NodeKind, Iterable[str]] = {
            "Node": self._nodes,
            "Device": self._koordinator_devices,
            "ConfigMap": self.layouts.by_name,
        }
        self.layouts.listed |= kind == "ConfigMap"
        gone = [key for key in by_kind[kind] if key not in keys]
        return [node for key in gone for node in self.remove(kind, key)]

    def records(self) -> list[Node | KoordinatorDevice | MigLayouts]:
        """Nodes, and the objects that describe their GPUs."""
        return [*self._nodes.values(), *self._koordinator_devices.values(), *self.layouts.by_name.values()]

    def labels_of(self, node: str) -> Mapping[str, str]:
        """The labels of a node; none if it is unknown."""
        known = self._nodes.get(node)
        return known.labels if known else {}

    def _note_lost_labels(self, before: Node | None, node: Node) -> None:
        """Remember the labels of GPUs that have vanished since the last update of the node, and for how long.

        All labels of an agent vanish together: if the one that it always writes is gone, those of its domain
        are (GFD removes its file when it ends, cmd/gpu-feature-discovery/main.go of NVIDIA/k8s-device-plugin;
        AMD's labeler removes its labels when it starts). If the MIG layout changes, they no longer hold.
        """
        lost, since = self._lost_labels.pop(node.name, ({}, time.time()))
        known = {**before.labels, **lost} if before and before.uid == node.uid else {}
        gone = {_domain(key) for key in _ALWAYS_WRITTEN if key in known and key not in node.labels}
        changes = any(known.get(key) != node.labels.get(key) for key in (LAYOUT_LABEL, STATE_LABEL))
        if not gone or changes or reconfiguring(node.labels) or time.time() >= since + _LOST_FOR:
            return
        lost = {key: text for key, text in known.items() if _domain(key) in gone and key not in node.labels}
        self._lost_labels[node.name] = lost, since

    def _described(self, node: Node) -> Node:
        """The node with the labels that it has lost, and a problem that says so."""
        if (known := self._lost_labels.get(node.name)) is None:
            return node
        lost, since = known
        start, end = clock_text(since), clock_text(since + _LOST_FOR)
        names = listed(sorted(lost), 1)
        text = f"labels missing since {start} ({names}): the last known ones count until {end}"
        problem = "; ".join(filter(None, (text, node.problem)))
        return replace(node, labels={**node.labels, **lost}, problem=problem)

    def layout_problems(self) -> Iterator[tuple[str, str]]:
        """Reasons the MIG manager's layouts are not used, of all nodes or single ones."""
        return chain(self.layouts.problems(self), sorted(self._unused_layouts.items()))

    def _set_layouts(self, name: str, layouts: MigLayouts | None) -> list[str]:
        """Add or update a ConfigMap; None removes it. Reads the inventories of nodes again whose layout this
        changes."""
        named = {known.node for known in (self.layouts.by_name.get(name), layouts) if known}
        nodes = self._nodes.values() if "" in named else filter(None, map(self._nodes.get, named))
        before = {node.name: self._layout(node) for node in nodes}
        if layouts is not None:
            self.layouts.put(layouts)
        else:
            self.layouts.remove(name)
        changed = [name for name, layout in before.items() if self._layout(self._nodes[name]) != layout]
        return self._read_inventories(changed)

    def _waits_for_layout(self, node: Node) -> bool:
        """Whether the node accepts no pods because its MIG layout is about to change, or because the MIG
        manager has not started there. Both end with time."""
        spec = self._fleet.spec_of(node.name)
        if spec is None:
            return False
        not_begun = spec.blocked is Reason.REPARTITIONING and STATE_LABEL not in node.labels
        return not_begun or spec.blocked is Reason.LAYOUT_CHANGES

    def _layout(self, node: Node) -> tuple[str, bool, MigLayout | None] | None:
        """The parts of a node's MIG layouts on which its inventory depends."""
        layouts = self.layouts.on(node.name)
        if layouts is None or LAYOUT_LABEL not in node.labels:
            return None
        return layouts.name, bool(layouts.layouts), applied_layout(node, layouts)

    def _forget_inventory(self, name: str) -> None:
        known: tuple[dict[str, Any], ...] = (self.sources, self.unhealthy, self.unoffered, self._too_many)
        for facts in (*known, self.counted_as, self._unused_layouts):
            facts.pop(name, None)

    def _read_inventories(self, names: Iterable[str]) -> list[str]:
        """Read these nodes, then some that had no room in the fleet: there may be room now."""
        known = [name for name in names if name in self._nodes]
        known += [name for name in islice(self._too_many, _RETRIED) if name not in known]
        for name in known:
            self._forget_inventory(name)
            try:
                devices, layouts = self._koordinator_devices.get(name), self.layouts.on(name)
                node, now = self._described(self._nodes[name]), time.time()
                change = mig_change_of(node.annotations)
                inventory = inventory_of(
                    node,
                    devices,
                    layouts,
                    is_new=not node.created or now < node.created + _STARTS_FOR,
                    layout_changes=change is not None and change.closes(now),
                    spot_marks=self.spot_marks,
                )
                self.sources[name] = inventory.sources
                self.unhealthy[name] = inventory.unhealthy
                if inventory.counted_as:
                    self.counted_as[name] = inventory.counted_as
                if inventory.layout_problem:
                    self._unused_layouts[name] = inventory.layout_problem
                spec = inventory.spec
                if self.enforces_shares and spec.agents:
                    spec = replace(spec, agents=spec.agents | {ENFORCED})
                self._allocations.put_node(spec)
                problem = inventory.problem
                if inventory.unoffered is not None:
                    self.unoffered[name] = inventory.unoffered
            except (InventoryError, QuantityError, TooMany) as error:
                self._allocations.put_node(NodeSpec(name, 0, 0, blocked=Reason.UNREADABLE))
                problem = f"node accepts no pods: {error}"
                self.unoffered[name] = known_gpus(self._nodes[name])
                if isinstance(error, TooMany):
                    self._too_many[name] = None
            self.problems.report(name, problem)
        return known


def _domain(label: str) -> str:
    return label.partition("/")[0]


_inventory_fields = attrgetter(
    "labels", "annotations", "allocatable", "capacity", "taints", "conditions", "unreadable", "problem"
)
"""All fields from which an inventory is read. Heartbeats change other fields of a node."""


def blocked_because(spec: NodeSpec, node: Node, pods: Iterable[Pod]) -> Reason:
    """Reason a node with these pods accepts no others: a state of the node, or a device plugin that could
    confuse another pod with one of these that is still starting. ``FITS`` if there is none."""
    writers = () if spec.blocked else writers_on(spec.sharing_resource)
    busy = any(dialect.plugin_may_confuse(node, pods) for dialect in writers)
    return Reason.PLUGIN_BUSY if busy else spec.blocked


_VENDORS = ("nvidia", "amd", "intel")
"""The first part of the prefix of their resource names (``nvidia.com/gpu``)."""


def offered_twice(spec: NodeSpec, labels: Mapping[str, str], on_node: NodeDevices) -> str:
    """Description of the GPUs that are offered both by a device plugin and in ResourceSlices, "" if there are
    none: the same GPUs, unless the labels count enough GPUs for both.

    Neither knows what the other has allocated. So claims are allocated no GPU while pods hold GPUs of the
    device plugin, and the node accepts no other pods while claims hold any.
    """
    if not spec.gpus or not on_node.devices:
        return ""
    counted = {vendor for vendor in _VENDORS if any(f"{vendor}.com/" in pool.resource for pool in spec.pools)}
    counted |= {"nvidia"} if spec.sharing_resource else set()  # all sharing systems are for NVIDIA GPUs
    gpus = ((part.gpu, _vendors(on_node, index)) for index, part in on_node.gpus().items())
    in_slices = len({gpu for gpu, vendors in gpus if counted & vendors})
    known = read_gpu_labels(labels).gpu_count
    if not in_slices or known >= len(spec.gpus) + in_slices:
        return ""
    same = "They are the same GPUs" if known else "They may be the same GPUs"
    return (
        f"a device plugin advertises {len(spec.gpus)} GPUs, and ResourceSlices {in_slices}. {same}, so they "
        "are allocated in only one way at a time: remove one of the two"
    )


def _vendors(on_node: NodeDevices, index: int) -> set[str]:
    """The vendors that the device may be of, by its driver, product and brand."""
    device, driver = on_node.device(index), on_node.device_id(index).driver
    text = " ".join((driver, device.attribute_text("productName"), device.attribute_text("brand"))).lower()
    return {vendor for vendor in _VENDORS if vendor in text} or set(_VENDORS)


def pods_have_gpus(fleet: Fleet, row: int) -> bool:
    """Whether GPUs of the device plugin are allocated to pods."""
    arrays = fleet.arrays
    return bool((arrays.compute[:, row] < arrays.compute_capacity[:, row]).any())
