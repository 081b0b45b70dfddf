"""Nodes that currently accept no pods, spot nodes, nodes that are about to be terminated, nodes whose GPUs
other systems allocate, and the change of a node's MIG layout.

A node accepts no pods while it is cordoned (``spec.unschedulable``) or has one of these taints of the control
plane (Kubernetes, "Well-Known Labels, Annotations and Taints" and "Taints and Tolerations"). Memory pressure
is not among them: all pods that request memory tolerate it, and GPU pods request memory.
``data/node-lifecycle.json`` lists the labels and taints of providers, with sources. A label of spot nodes
also counts as the key of a taint with one of its values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from extender.data import facts
from extender.dialects.shared_gpus import NVIDIA, is_nvidia
from extender.inventory.gpu_labels import PREFIX, read_gpu_labels
from extender.k8s.node_filter import HOSTNAME
from extender.k8s.objects import Node
from extender.untrusted.limits import (
    DEVICES_PER_NODE,
    GPUS_PER_NODE,
    KEY,
    MIG_PROFILES,
    NAME,
    NODE_LABELS,
    RESOURCES,
    shorten,
)
from packing.model.gpu_catalog import find_model, parse_profile

_NOT_READY = {
    "node.kubernetes.io/not-ready": "node is not ready",
    "node.kubernetes.io/unreachable": "node is unreachable",
    "node.kubernetes.io/unschedulable": "node is cordoned",
    "node.kubernetes.io/disk-pressure": "node has too little disk space",
    "node.kubernetes.io/pid-pressure": "node has too few process IDs",
    "node.kubernetes.io/network-unavailable": "node has no network",
    "node.cloudprovider.kubernetes.io/uninitialized": "node is not initialized yet",
}


def closed_because(node: Node) -> str:
    """Why the node accepts no pods without an explicit toleration, "" if it does."""
    if node.unschedulable:
        return "node is cordoned"
    keys = (taint.key for taint in node.taints if taint.blocks_scheduling)
    return next((_NOT_READY[key] for key in keys if key in _NOT_READY), "")


def is_down(node: Node) -> bool:
    """Whether the control plane does not hear from the node, or hears that it is not ready."""
    return any(taint.key in _DOWN for taint in node.taints)


_DOWN = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_KNOWN = facts("node-lifecycle")
SPOT_LABELS = {known["label"]: frozenset(known["values"]) for known in _KNOWN["spot"]}
LEAVING_TAINTS = frozenset(taint for known in _KNOWN["leaving"] for taint in known["taints"])
_KEPT_BY = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations of nodes (FAQ of Cluster Autoscaler; Karpenter, "Disruption", "Node-Level Controls"). Both
tools recognize only "true" there."""


def must_stay(node: Node) -> str:
    """Why plans must not drain the node, "" if they may."""
    return next((f"{name} keeps the node" for name in _KEPT_BY if node.annotations.get(name) == "true"), "")


def is_spot(node: Node, marks: Collection[str] = ()) -> bool:
    """Whether the provider may reclaim the node at any time. ``marks``: labels or taints in addition to the
    known ones, as ``key=value``, or ``key`` for any value."""
    names = (*SPOT_LABELS, *(mark.partition("=")[0] for mark in marks))
    labels = [(name, node.labels[name]) for name in names if name in node.labels]
    return any(
        value in SPOT_LABELS.get(name, ()) or name in marks or f"{name}={value}" in marks
        for name, value in (*labels, *((taint.key, taint.value) for taint in node.taints))
    )


def is_leaving(node: Node) -> bool:
    """Whether a taint indicates that the node is about to be terminated, or is shut down."""
    return any(taint.key in LEAVING_TAINTS and taint.blocks_scheduling for taint in node.taints)


def is_virtual(node: Node) -> bool:
    """Whether the node stands for a cluster or a service, by a label or a taint: ``type: virtual-kubelet``,
    ``virtual-kubelet.io/provider``, ``liqo.io/type: virtual-node``."""
    labels = islice(node.labels.items(), NODE_LABELS)
    texts = (*labels, *((taint.key, taint.value) for taint in node.taints))
    return any("virtual-kubelet" in text or "virtual-node" in text for pair in texts for text in pair)


def copy_of(like: Node, name: str) -> Node:
    """An empty, schedulable copy of this node, without the taints of unhealthy nodes."""
    labels = {key: name if key == HOSTNAME else text for key, text in like.labels.items()}
    taints = tuple(taint for taint in like.taints if not taint.key.startswith("node.kubernetes.io/"))
    return replace(
        like,
        name=name,
        uid=name,
        labels=labels,
        taints=taints,
        unschedulable=False,
        conditions=(),
        created=0.0,
    )


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
    """The system that allocates the GPUs of this node as extended resources of its own: whole GPUs and vGPUs
    for virtual machines, and MIG instances that a slicer creates on demand. None if there is none; a node
    that offers ``nvidia.com/gpu`` has none.

    A resource is recognized by its name. NVIDIA's device plugins for virtual machines advertise
    ``nvidia.com/pgpu``, or the names of PCI devices and vGPU types, in capitals (kubevirt-gpu-device-plugin
    and sandbox-device-plugin of NVIDIA). The name of a vGPU type ends in its memory in GiB
    (``NVIDIA_A10-12Q``). NVSwitches are no GPUs. A slicer advertises, for each MIG profile, as many instances
    as an empty node could have: ``mig.das.com/3g.20gb`` and ``instaslice.redhat.com/mig-3g.20gb``
    (openshift/instaslice-operator).
    """
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
    """Whether AMD's labeler says that the GPUs, or parts of them, are passed through to virtual machines: its
    device plugin advertises these as ``amd.com/gpu``, too (docs/user-guide/configuration.md of
    ROCm/k8s-device-plugin, branch gpu-virtualization). They stay devices of the node, and only pods of
    virtual machines may request them."""
    return node.labels.get("amd.com/gpu.mode", "").endswith("-passthrough")


def _part(resource: str) -> Fraction:
    """The part of a GPU that one device of a virtual machine is."""
    vgpu = _VGPU_TYPE.fullmatch(resource)
    model = find_model("NVIDIA-" + vgpu[1].removeprefix("NVIDIA_").replace("_", "-")) if vgpu else None
    if vgpu is None or model is None or not int(vgpu[2]):
        return Fraction(1)
    return Fraction(1, max(1, round(model.memory_mib / 1024 / int(vgpu[2]))))


MIG_CHANGE = "stowage.dev/mig-change"
_LONGEST_CHANGE = 48 * 3600.0
"""Maximum seconds from the beginning of a change for which it may close a node, or prevent another change."""
_SKEW = 300.0
"""Maximum clock skew in seconds."""
_SIZE = 8192
_Name: TypeAlias = Annotated[str, Meta(max_length=NAME)]
Step: TypeAlias = Literal["drain", "apply", "revert", "done", "given_up", "failed"]
_DeviceCount: TypeAlias = Annotated[int, Meta(ge=0, le=DEVICES_PER_NODE)]


class NodeLayout(Struct, frozen=True, omit_defaults=True):
    """A MIG layout, and the resources that a node offers with it. ``name``: the MIG manager's name of it, ""
    for a layout that would have to be added. ``profile``: of all instances with the strategy ``single``.
    """

    name: _Name
    devices: Annotated[dict[_Name, _DeviceCount], Meta(max_length=MIG_PROFILES)]
    profile: _Name = ""


class MigChange(Struct, frozen=True, omit_defaults=True):
    """The annotation of a node whose MIG layout Stowage changes. It is the only record of the change's
    progress, from which the next leader continues.

    ``since``: start of the change; ``until``: end of this step or, after the last step, of the cooldown of
    the node, in Unix seconds. ``pod``: the key of the first pod that waits for the change."""

    before: NodeLayout = field(name="from")
    after: NodeLayout = field(name="to")
    step: Step
    since: float
    until: float
    pod: Annotated[str, Meta(max_length=2 * KEY)] = ""

    @property
    def is_active(self) -> bool:
        return self.step in ("drain", "apply", "revert")

    def lasts(self, now: float) -> bool:
        """Whether the time of this step is not over. False for times that Stowage cannot have written."""
        return self.since - _SKEW <= now < min(self.until, self.since + _LONGEST_CHANGE)

    def closes(self, now: float) -> bool:
        """Whether the node accepts no new pods. Expires even if no leader continues the change."""
        return self.is_active and self.lasts(now)

    def described(self) -> str:
        """The change, its pod, its progress, and how to stop it, as text."""
        whom = f" for {self.pod}" if self.pod else ""
        text = f"MIG layout {self.before.name} to {self.after.name}{whom}: {self.step}"
        return f"{text}; to stop it, remove the annotation {MIG_CHANGE}" if self.is_active else text

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def mig_change_of(annotations: Mapping[str, str]) -> MigChange | None:
    """The change in these annotations of a node; None for none, or if it cannot be read."""
    text = annotations.get(MIG_CHANGE, "")
    if not text or len(text) > _SIZE:
        return None
    try:
        return msgspec.json.decode(text, type=MigChange)
    except (msgspec.DecodeError, RecursionError):
        return None
