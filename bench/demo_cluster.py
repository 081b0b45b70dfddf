"""Generates the bundled cluster, in the format of ``kubectl get nodes,pods -A -o json``. To regenerate the
file:

    python -m bench.demo_cluster

The labels are those of GPU feature discovery (GFD) and Node Feature Discovery on such machines. Sources:
NVIDIA/k8s-device-plugin internal/lm (the labels) and its issue 1501 (a dump of 8 x H100),
NVIDIA/cloud-native-docs gpu-operator/manifests/output/mig-mixed-node-labels.json (a dump of MIG devices),
docs/gpu-feature-discovery/README.md (the clique); memory sizes as in ``packing/data/gpus.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from extender.data import CLUSTER
from extender.demo import pods
from extender.demo.pods import CREATED, GPU, Manifest, uid

_DRIVER = {"full": "580.95.05", "major": "580", "minor": "95", "revision": "05"}
_RUNTIME = {"full": "13.0", "major": "13", "minor": "0"}
_CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"


@dataclass(frozen=True, slots=True)
class _Machine:
    """A server model. ``compute`` is the CUDA compute capability, ``memory_mib`` the memory of one GPU."""

    product: str
    family: str
    compute: str
    memory_mib: int
    model: str
    gpus: int
    cpus: int
    memory_gib: int
    mig: bool = True
    arch: str = "amd64"
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Instance:
    """One device of a MIG profile of an H100 80GB."""

    slices: int
    memory_mib: int
    multiprocessors: int

    def labels(self, profile: str, count: int) -> dict[str, str]:
        engines = {"copy": self.slices, "decoder": self.slices, "encoder": 0, "jpeg": self.slices, "ofa": 0}
        values: dict[str, object] = {
            "count": count,
            **{f"engines.{name}": number for name, number in engines.items()},
            "memory": self.memory_mib,
            "multiprocessors": self.multiprocessors,
            "product": f"{_H100.product}-MIG-{profile}",
            "replicas": 1,
            "sharing-strategy": "none",
            "slices.ci": self.slices,
            "slices.gi": self.slices,
        }
        return {f"nvidia.com/mig-{profile}.{name}": str(value) for name, value in values.items()}


_H100 = _Machine("NVIDIA-H100-80GB-HBM3", "hopper", "9.0", 81559, "PowerEdge-XE9680", 8, 224, 2048)
_A100 = _Machine("NVIDIA-A100-SXM4-80GB", "ampere", "8.0", 81920, "ProLiant-XL675d-Gen10-Plus", 8, 256, 2048)
_L40S = _Machine("NVIDIA-L40S", "ada-lovelace", "8.9", 46068, "PowerEdge-R760xa", 4, 128, 1024, mig=False)
_T4 = _Machine("Tesla-T4", "turing", "7.5", 15360, "PowerEdge-R740", 4, 80, 384, mig=False)
_GB200 = _Machine(
    "NVIDIA-GB200", "blackwell", "10.0", 189471, "GB200-NVL", 4, 144, 960,
    arch="arm64", extra={"nvidia.com/gpu.clique": _CLIQUE},
)  # fmt: skip
_INSTANCES = {
    "1g.10gb": _Instance(1, 9984, 16),
    "2g.20gb": _Instance(2, 20096, 32),
    "3g.40gb": _Instance(3, 40320, 60),
}
_BALANCED = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
"""Devices of one GPU under the configuration ``all-balanced`` of NVIDIA/mig-parted."""


def nodes() -> list[Manifest]:
    """36 nodes: whole H100, A100 and L40S, H100 in MIG mode, time-sliced T4, and part of a GB200 rack."""
    return [
        *(_whole(f"h100-{i:02}", _H100) for i in range(1, 11)),
        *(_partitioned(f"h100-mig-{i:02}", mig_gpus=8) for i in range(1, 4)),
        _partitioned("h100-mig-04", mig_gpus=2),
        _repartitioning("h100-mig-05"),
        *(_whole(f"a100-{i:02}", _A100) for i in range(1, 7)),
        *(_whole(f"l40s-{i:02}", _L40S) for i in range(1, 7)),
        *(_time_sliced(f"t4-{i:02}", replicas=8) for i in range(1, 4)),
        *(_whole(f"gb200-r1-{i:02}", _GB200) for i in range(1, 7)),
    ]


def _whole(name: str, machine: _Machine) -> Manifest:
    return _node(name, machine, _mig_labels("all-disabled") if machine.mig else {}, {GPU: machine.gpus})


def _partitioned(name: str, mig_gpus: int) -> Manifest:
    """H100s. The first ``mig_gpus`` are in MIG mode, with the mixed strategy."""
    counts = {profile: each * mig_gpus for profile, each in _BALANCED.items()}
    labels = _mig_labels("all-balanced" if mig_gpus == _H100.gpus else f"custom-{mig_gpus}of{_H100.gpus}")
    labels |= {"nvidia.com/mig.strategy": "mixed"}
    if mig_gpus == _H100.gpus:  # GFD describes the whole GPUs, of which there are none
        labels |= {"nvidia.com/gpu.replicas": "0"}
    for profile, count in counts.items():
        labels |= _INSTANCES[profile].labels(profile, count)
    devices = {f"nvidia.com/mig-{profile}": count for profile, count in counts.items()}
    return _node(name, _H100, labels, {GPU: _H100.gpus - mig_gpus, **devices})


def _repartitioning(name: str) -> Manifest:
    """The MIG manager has stopped the device plugin to change the layout: no GPU is allocatable."""
    stopped = ("dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery")
    labels = _mig_labels("all-balanced") | {"nvidia.com/mig.config.state": "pending"}
    labels |= {f"nvidia.com/gpu.deploy.{name}": "paused-for-mig-change" for name in stopped}
    return _node(name, _H100, labels, {GPU: 0})


def _time_sliced(name: str, replicas: int) -> Manifest:
    """T4s under time-slicing with ``renameByDefault: true``."""
    labels = {"nvidia.com/gpu.replicas": str(replicas), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    return _node(name, _T4, labels, {GPU: 0, f"{GPU}.shared": _T4.gpus * replicas})


def _mig_labels(config: str) -> dict[str, str]:
    return {"nvidia.com/mig.config": config, "nvidia.com/mig.config.state": "success"}


def _gfd_labels(machine: _Machine) -> dict[str, str]:
    """The labels that GFD writes on every node; callers override some of them."""
    major, minor = machine.compute.split(".")
    return {
        **{f"nvidia.com/cuda.driver-version.{part}": text for part, text in _DRIVER.items()},
        **{f"nvidia.com/cuda.runtime-version.{part}": text for part, text in _RUNTIME.items()},
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/gpu.count": str(machine.gpus),
        "nvidia.com/gpu.family": machine.family,
        "nvidia.com/gpu.machine": machine.model,
        "nvidia.com/gpu.memory": str(machine.memory_mib),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": machine.product,
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": str(machine.mig).lower(),
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/mps.capable": "false",
        "feature.node.kubernetes.io/pci-10de.present": "true",
    }


def _node(name: str, machine: _Machine, labels: dict[str, str], devices: dict[str, int]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "creationTimestamp": CREATED,
            "labels": {
                **_gfd_labels(machine),
                **machine.extra,
                **labels,
                "kubernetes.io/arch": machine.arch,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
            },
            "name": name,
            "uid": uid("node", name),
        },
        "spec": {},
        "status": {
            "allocatable": dict(_resources(machine, devices, reserved=True)),
            "capacity": dict(_resources(machine, devices, reserved=False)),
            "conditions": [
                {
                    "lastTransitionTime": CREATED,
                    "message": "kubelet is posting ready status",
                    "reason": "KubeletReady",
                    "status": "True",
                    "type": "Ready",
                }
            ],
            "nodeInfo": {
                "architecture": machine.arch,
                "containerRuntimeVersion": "containerd://2.1.4",
                "kubeletVersion": "v1.36.3",
                "operatingSystem": "linux",
                "osImage": "Ubuntu 24.04.3 LTS",
            },
        },
    }


def _resources(machine: _Machine, devices: dict[str, int], *, reserved: bool) -> Iterator[tuple[str, str]]:
    """Capacity, or allocatable: the capacity without 2 CPUs and 8 GiB reserved for the system."""
    yield "cpu", str(machine.cpus - 2 * reserved)
    yield "memory", f"{(machine.memory_gib - 8 * reserved) << 20}Ki"
    yield "pods", "110"
    for name, count in devices.items():
        yield name, str(count)


_KINDS = {kind.app: kind for kind in pods.kinds()}
_RUNNING = [
    ("train-h100", "h100-01", 1),
    ("tune-4g", "h100-02", 1),
    ("tune-1g", "h100-03", 2),
    ("eval-2g", "a100-01", 1),
    ("eval-1g", "a100-02", 1),
    ("render", "l40s-01", 2),
    ("render", "l40s-02", 1),
    ("embedder", "h100-mig-01", 4),
    ("chat-13b", "h100-mig-01", 2),
    ("reranker", "h100-mig-02", 2),
    ("embedder", "h100-mig-04", 1),
    ("notebook", "t4-01", 4),
    ("notebook", "t4-02", 2),
    ("rack-4g", "gb200-r1-01", 1),
    ("rack-4g", "gb200-r1-02", 1),
]
"""Kind, node and number of the running pods of the bundled cluster."""

_PENDING = ["tune-2g", "chat-13b", "notebook", "sweep", "train-16g"]


def bundled() -> list[Manifest]:
    """The pods of the bundled cluster: running, succeeded and pending ones."""
    placed = [(_KINDS[app], node) for app, node, count in _RUNNING for _ in range(count)]
    manifests = [_bound(kind, number, node, "Running") for number, (kind, node) in enumerate(placed, start=1)]
    manifests.append(_bound(_KINDS["eval-4g"], 90, "a100-03", "Succeeded"))
    manifests += [pods.pod(_KINDS[app], f"{app}-p{number}") for number, app in enumerate(_PENDING, start=1)]
    manifests.sort(key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    for minute, manifest in enumerate(one for one in manifests if one["status"]["phase"] == "Pending"):
        manifest["metadata"]["creationTimestamp"] = CREATED.replace("08:00", f"08:{7 * minute:02}")
    return manifests


def _bound(kind: pods.PodKind, number: int, node: str, phase: str) -> Manifest:
    manifest = pods.pod(kind, f"{kind.app}-r{number:02}")
    manifest["spec"]["nodeName"] = node
    kind_of_owner = "ReplicaSet" if kind.namespace in ("inference", "notebooks") else "Job"
    owner = {"controller": True, "kind": kind_of_owner, "name": kind.app, "uid": uid("owner", kind.app)}
    manifest["metadata"]["ownerReferences"] = [owner]
    manifest["status"] = {"phase": phase, "startTime": CREATED}
    return manifest


def text() -> str:
    """The content of the file, with sorted keys and an indentation of four, as printed by kubectl."""
    items = nodes() + bundled()
    document = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


if __name__ == "__main__":
    CLUSTER.write_text(text(), encoding="utf-8")
