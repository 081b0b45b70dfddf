"""A node as one row of the page at ``/``: short, because there are thousands of them.

What it says is what ``view_node`` says, with the parts of GPUs (``gpu_parts``) instead of names of devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from extender.cluster.census import NodeCount
from extender.cluster.state import State
from extender.cluster.unoffered import Unoffered, missing_gpus
from extender.explain.gpu_parts import FREE, GpuPart, gpu_parts, memory_slices
from extender.explain.node import DeviceView, HolderView, view_node
from extender.untrusted.limits import GPUS_PER_NODE, KEY, LISTED_NAMES, PAGE_LABELS, PAGE_PARTS, shorten
from packing.model.gpu_catalogue import parse_profile
from packing.model.request import WHOLE


class GpuCell(NamedTuple):
    """``name``: of a DRA device; "" for a GPU, which its index names. ``slices``: memory slices, where it is
    in MIG mode. ``takes``: whether it takes pods at all."""

    name: str
    memory_mib: int
    slices: int
    takes: bool


ZONE = "topology.kubernetes.io/zone"
_OF_MACHINES = re.compile(
    r"^(nvidia\.com|[^/]*feature\.node\.kubernetes\.io|beta\.kubernetes\.io)/"
    r"|^kubernetes\.io/hostname$|(-hash|controller-uid|pod-name|pod-index|completion-index)$"
)
_TAKES_NONE = GpuCell("", 0, 0, False)


class PartCell(NamedTuple):
    """As ``GpuPart``; ``devices`` is its ``count``. ``pod`` and ``resource`` are positions in the row's
    lists, -1 for none."""

    gpu: int
    pod: int
    resource: int
    devices: int
    compute_milli: int
    memory_mib: int
    start: int
    size: int


class PodCell(NamedTuple):
    """A pod with a part of a GPU; ``exact``: it is known which GPU it has. ``labels``: ``labels_of``."""

    pod: str
    queue: str
    exact: bool
    assumed: bool
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetRow:
    """``count``: what the census says of the node, null for a node without GPUs. ``closed``: why it takes no
    pods, "" if it does. ``cpu_milli`` and ``memory_mib`` are free and total. ``pods_beside`` counts
    the pods without a GPU. ``layout``: what says which GPU has which MIG instances, "" where they are spread
    evenly; ``more``: parts that are left out because there are too many."""

    name: str
    model: str
    spot: bool
    count: NodeCount | None
    closed: str
    problem: str
    cpu_milli: tuple[int, int]
    memory_mib: tuple[int, int]
    islands: tuple[tuple[int, ...], ...]
    layout: str
    resources: tuple[str, ...]
    gpus: tuple[GpuCell, ...]
    pods: tuple[PodCell, ...]
    parts: tuple[PartCell, ...]
    pods_beside: int
    more: int
    zone: str
    labels: tuple[str, ...]


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """``key=value`` of the first labels that people choose by: none of discovery, which ``model`` and
    ``layout`` sum up, and none that controllers give to each of their pods."""
    found = (f"{key}={value}" for key, value in labels.items() if not _OF_MACHINES.search(key))
    return tuple(shorten(text, KEY) for text in islice(found, PAGE_LABELS))


def fleet_row(state: State, name: str, count: NodeCount | None, now: float) -> FleetRow | None:
    """The row of a node, None where it is not known. ``count`` is of the census; ``now``: as for
    ``view_node``."""
    view, spec = view_node(state, name, now), state.fleet.spec_of(name)
    if view is None or spec is None:
        return None
    keys = state.allocations.pods_on(name)
    parts = gpu_parts(state.fleet, name, [state.allocations.allocation_of(key) for key in keys])
    cells = _RowLists(state)
    for index, gpu in enumerate(spec.gpus):
        takes = gpu.divisible or not spec.sharing_resource
        cells.gpus.append(GpuCell("", gpu.memory_mib, memory_slices(spec, index), takes))
    for part in parts[:PAGE_PARTS]:
        cells.add_part(part, view.holders[part.pod] if part.pod != FREE else None)
    cells.add_devices(view.devices)
    hidden = view.unoffered if not cells.gpus else None
    if hidden:
        cells.add_hidden(hidden)
    elif view.not_offered:
        cells.gpus += [_TAKES_NONE] * missing_gpus(state, name)
    note, labels = hidden.note if hidden else "", state.nodes.labels_of(name)
    return FleetRow(
        name=shorten(name, KEY),
        model=shorten(view.model or (view.unoffered.model if view.unoffered else ""), KEY),
        spot=view.spot,
        count=count,
        closed=view.takes_nothing or note,
        problem=shorten(view.problem or view.not_offered or note),
        cpu_milli=(view.free_cpu_milli, spec.cpu_milli),
        memory_mib=(view.free_memory_mib, spec.memory_mib),
        islands=view.islands,
        layout=view.read_from.layout if view.read_from else "",
        resources=cells.resources,
        gpus=tuple(cells.gpus),
        pods=tuple(cells.pods),
        parts=tuple(cells.parts),
        pods_beside=len(keys) - len(cells.pods),
        more=max(0, len(parts) - PAGE_PARTS),
        zone=shorten(labels.get(ZONE, ""), KEY),
        labels=labels_of(labels),
    )


class _RowLists:
    """The lists of a row while it is made."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.gpus: list[GpuCell] = []
        self.parts: list[PartCell] = []
        self.pods: list[PodCell] = []
        self._pod_at: dict[str, int] = {}
        self._resource_at: dict[str, int] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources, in the order of their positions."""
        return tuple(self._resource_at)

    def add_part(self, part: GpuPart, holder: HolderView | None) -> None:
        pod = self._pod(holder.pod, holder.known == "placement", holder.assumed_seconds) if holder else FREE
        sizes = part.count, part.compute_milli, part.memory_mib, part.start, part.size
        self.parts.append(PartCell(part.gpu, pod, self._resource(part.resource), *sizes))

    def add_devices(self, devices: Sequence[DeviceView]) -> None:
        """A cell for each device of DRA that a claim has, and for each whole one that is free."""
        for device in [one for one in devices if one.claims or (one.free and not _is_instance(one))][
            :GPUS_PER_NODE
        ]:
            index = len(self.gpus)
            self.gpus.append(GpuCell(shorten(device.device, KEY), 0, 0, not device.problem))
            pods = [self._pod(pod, True, None) for pod in device.pods[:LISTED_NAMES]] or [FREE]
            resource = self._resource(shorten(device.what, KEY))
            for pod in pods if device.pods or device.free else ():
                self.parts.append(PartCell(index, pod, resource, 1, WHOLE // len(pods), 0, 0, 0))

    def add_hidden(self, hidden: Unoffered) -> None:
        """A cell for each GPU that takes no pods, with the pods that have some still, in any order."""
        self.gpus += [_TAKES_NONE] * hidden.gpus
        holders = (self._pod(pod, False, None) for pod, count in hidden.held for _ in range(count))
        for gpu, pod in zip(range(hidden.gpus), holders, strict=False):
            self.parts.append(PartCell(gpu, pod, -1, 1, WHOLE, 0, 0, 0))

    def _pod(self, key: str, exact: bool, assumed_seconds: float | None) -> int:
        """The position of the pod in ``pods``."""
        if key not in self._pod_at:
            known = self._state.pods.get(key)
            queue = self._state.rights.queues.name_of(known) if known else ""
            self._pod_at[key] = len(self.pods)
            labels = labels_of(known.labels) if known else ()
            self.pods.append(PodCell(shorten(key, KEY), queue, exact, assumed_seconds is not None, labels))
        return self._pod_at[key]

    def _resource(self, name: str) -> int:
        """The position of the resource in ``resources``, -1 for none."""
        if not name:
            return -1
        return self._resource_at.setdefault(name, len(self._resource_at))


def _is_instance(device: DeviceView) -> bool:
    """Whether a device is a part of a GPU: a MIG profile names it."""
    return parse_profile(device.what) is not None
