"""GPUs that a DRA driver publishes: ResourceSlices (``resource.k8s.io/v1``) as the API has them.

Facts: the types in kubernetes/api ``resource/v1/types.go`` (a pool counts with its newest generation only,
and only when all of its slices are there; ``perDeviceNodeSelection`` and ``allNodes`` slices belong to no
one node); NVIDIA's attributes, capacities and counters in kubernetes-sigs/dra-driver-nvidia-gpu at 95932046
(``cmd/gpu-kubelet-plugin/{deviceinfo,mig,partitions}.go``): devices ``gpu-<minor>`` and, for each placement
of each MIG profile, ``gpu-<minor>-mig-<profile>-<profile id>-<start>``, which take the parent's counters
``memory-slice-<n>``. Attribute names may carry the driver's domain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from extender.quantity import QuantityError, mib, whole

_MIG_NAME = re.compile(r"gpu-(\d+)-mig-[a-z0-9-]+?-(\d+)-(\d+)", re.ASCII)
_SLICE = re.compile(r"memory-slice-(\d+)", re.ASCII)

Counters = Mapping[tuple[str, str], int]
"""Amounts by (counter set, counter)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice. ``kind`` is ``gpu`` or ``mig`` (or whatever a driver says), ``parent`` the
    UUID of the GPU that a MIG device is on; ``consumes`` is what it takes of its pool's
    counters. A device that is ``tainted`` takes nothing new."""

    name: str
    kind: str = ""
    uuid: str = ""
    parent: str = ""
    product: str = ""
    profile: str = ""
    memory_mib: int = 0
    cuda: int = 0
    consumes: Counters = field(default_factory=dict)
    tainted: bool = False

    @property
    def placement(self) -> tuple[int, int, int] | None:
        """(GPU minor, first memory slice, number of slices), None for all but MIG placements."""
        match = _MIG_NAME.fullmatch(self.name)
        if match is None:
            return None
        taken = [int(m[1]) for _, counter in self.consumes if (m := _SLICE.fullmatch(counter))]
        return int(match[1]), int(match[3]), len(taken)


@dataclass(frozen=True, slots=True)
class DevicePool:
    """All devices of one driver's pool on a node, in the order that the scheduler tries them, and the
    counters that they share."""

    driver: str
    name: str
    node: str
    devices: tuple[Device, ...] = ()
    counters: Counters = field(default_factory=dict)


def pools(slices: Iterable[Mapping[str, Any]]) -> list[DevicePool]:
    """The complete pools of these ResourceSlices, by driver and name. What cannot be read is left out.

    A pool of which a slice is missing is left out, too: what its devices share is not known.
    """
    groups: defaultdict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for item in slices:
        spec = item.get("spec") or {}
        pool, node = spec.get("pool") or {}, spec.get("nodeName")
        if node and pool.get("name"):
            groups[str(spec.get("driver", "")), str(pool["name"]), str(node)].append(item)
    complete = ((key, _newest(items)) for key, items in sorted(groups.items()))
    return [_pool(*key, specs) for key, specs in complete if specs]


def _newest(items: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    newest = max(_number(item["spec"]["pool"].get("generation")) for item in items)
    current = [item for item in items if _number(item["spec"]["pool"].get("generation")) == newest]
    current.sort(key=lambda item: str((item.get("metadata") or {}).get("name", "")))
    specs = [item["spec"] for item in current]
    return specs if len(specs) == _number(specs[0]["pool"].get("resourceSliceCount")) else []


def _pool(driver: str, name: str, node: str, specs: list[Mapping[str, Any]]) -> DevicePool:
    sets = (entry for spec in specs for entry in spec.get("sharedCounters") or ())
    devices = (device for spec in specs for device in spec.get("devices") or () if device.get("name"))
    return DevicePool(driver, name, node, tuple(map(_device, devices)), _counters(sets, "name"))


def _device(raw: Mapping[str, Any]) -> Device:
    attributes = {str(k).rpartition("/")[2]: v for k, v in (raw.get("attributes") or {}).items()}
    capacity = {str(k).rpartition("/")[2]: v for k, v in (raw.get("capacity") or {}).items()}
    effects = {taint.get("effect") for taint in raw.get("taints") or ()}

    def text(key: str) -> str:
        value = attributes.get(key) or {}
        return str(value.get("string") or value.get("version") or "")

    return Device(
        name=str(raw["name"]),
        kind=text("type"),
        uuid=text("uuid"),
        parent=text("parentUUID"),
        product=text("productName"),
        profile=text("profile"),
        memory_mib=_amount((capacity.get("memory") or {}).get("value", "0"), of_bytes=True),
        cuda=_version(text("cudaDriverVersion")),
        consumes=_counters(raw.get("consumesCounters") or (), "counterSet"),
        tainted=bool(effects & {"NoSchedule", "NoExecute"}),
    )


def _counters(sets: Iterable[Mapping[str, Any]], name: str) -> dict[tuple[str, str], int]:
    return {
        (str(one.get(name, "")), str(counter)): _amount((amount or {}).get("value", "0"))
        for one in sets
        for counter, amount in (one.get("counters") or {}).items()
    }


def _amount(value: object, *, of_bytes: bool = False) -> int:
    try:
        return mib(str(value), round_up=False) if of_bytes else whole(str(value))
    except QuantityError:
        return 0


def _version(text: str) -> int:
    match = re.match(r"(\d{1,3})\.(\d{1,3})", text, re.ASCII)
    return int(match[1]) * 1000 + int(match[2]) if match else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1
