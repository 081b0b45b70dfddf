"""GPUs of a node that other systems allocate, as extended resources of their own: whole GPUs and vGPUs for
virtual machines, and MIG instances that a slicer creates on demand.

A resource is recognized by its name. NVIDIA's device plugins for virtual machines advertise
``nvidia.com/pgpu``, or the names of PCI devices and vGPU types, in capitals (kubevirt-gpu-device-plugin and
sandbox-device-plugin of NVIDIA). The name of a vGPU type ends in its memory in GiB (``NVIDIA_A10-12Q``).
NVSwitches are no GPUs. A slicer advertises, for each MIG profile, as many instances as an empty node could
have: ``mig.das.com/3g.20gb`` and ``instaslice.redhat.com/mig-3g.20gb`` (openshift/instaslice-operator).

AMD's device plugin advertises GPUs for virtual machines as ``amd.com/gpu``, too: the label
``amd.com/gpu.mode`` of its node labeler tells them apart (docs/user-guide/configuration.md of
ROCm/k8s-device-plugin, branch gpu-virtualization). They stay devices of the node, and only pods of virtual
machines may request them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from extender.dialects.shared_gpus import NVIDIA, is_nvidia
from extender.inventory.gfd_labels import PREFIX
from extender.inventory.gpu_labels import read_gpu_labels
from extender.k8s.objects import Node
from extender.untrusted.limits import GPUS_PER_NODE, KEY, RESOURCES, shorten
from packing.model.gpu_catalog import find_model, parse_profile

FOR_MACHINES = "its GPUs are for virtual machines"
_FOR_MACHINES = re.compile(r"nvidia\.com/(?:pgpu$|[A-Z])", re.ASCII)
_VGPU_TYPE = re.compile(r"nvidia\.com/([\w-]+)-(\d{1,3})[ABCQ](?:ME)?", re.ASCII)
_SWITCH = "nvswitch"


@dataclass(frozen=True, slots=True)
class OtherAllocator:
    """``note``: who allocates the node's ``gpus`` (0: an unknown number). ``part``: by resource, the part of
    a GPU that one device is."""

    note: str
    gpus: int
    part: dict[str, Fraction]


def other_allocator(node: Node) -> OtherAllocator | None:
    """The system that allocates the GPUs of this node, None if there is none. A node that offers
    ``nvidia.com/gpu`` has none."""
    if len(node.allocatable) > RESOURCES or any(node.allocatable.get(name, "0") != "0" for name in NVIDIA):
        return None
    counts = {name: int(n) for name, n in node.allocatable.items() if n.isdecimal() and 0 < len(n) < 5}
    counts = {name: n for name, n in counts.items() if n and not is_nvidia(name)}
    said = node.labels.get("nvidia.com/gpu.workload.config", "").startswith("vm-")
    parts = {
        name: _part(name)
        for name in counts
        if (_FOR_MACHINES.match(name) or (said and name.startswith(PREFIX))) and _SWITCH not in name.lower()
    }
    if parts or said:
        gpus = sum(-(-counts[name] * part // 1) for name, part in parts.items())
        return OtherAllocator(FOR_MACHINES, min(int(gpus), GPUS_PER_NODE), parts)
    slices = [name for name in counts if parse_profile(name.partition("/")[2].removeprefix("mig-"))]
    if not slices:
        return None
    gpus = read_gpu_labels(node.labels).gpu_count or min(counts[name] for name in slices)
    note = f"its GPUs are sliced on demand, as {shorten(slices[0].partition('/')[0], KEY)}/..."
    return OtherAllocator(
        note, min(gpus, GPUS_PER_NODE), {name: Fraction(gpus, counts[name]) for name in slices}
    )


def passes_through(node: Node) -> bool:
    """Whether AMD's labeler says that the GPUs, or parts of them, are passed through to virtual machines."""
    return node.labels.get("amd.com/gpu.mode", "").endswith("-passthrough")


def _part(resource: str) -> Fraction:
    """The part of a GPU that one device of a virtual machine is."""
    vgpu = _VGPU_TYPE.fullmatch(resource)
    model = find_model("NVIDIA-" + vgpu[1].removeprefix("NVIDIA_").replace("_", "-")) if vgpu else None
    if vgpu is None or model is None or not int(vgpu[2]):
        return Fraction(1)
    return Fraction(1, max(1, round(model.memory_mib / 1024 / int(vgpu[2]))))
