"""Nodes with devices, as DRA drivers publish them.

Whole GPUs and dynamic MIG follow kubernetes-sigs/dra-driver-nvidia-gpu at 95932046
(``cmd/gpu-kubelet-plugin``): there are devices ``gpu-<minor>``, and for each placement of each MIG profile
``gpu-<minor>-mig-<profile>-<id>-<start>``, which consume memory slices and multiprocessors of their GPU's
counter set. GPUs that are given out in parts follow KEP-5075 (consumable capacity).
"""

import random

from .controlplane.api import Object
from .controlplane.build import release
from .workload import node

DRIVER = "gpu.nvidia.com"
H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
# Profile, its id, memory slices, multiprocessors and starts on an H100 with 80 GB.
PROFILES = (
    ("1g.10gb", 19, 1, 16, range(7)),
    ("1g.20gb", 15, 2, 26, (0, 2, 4, 6)),
    ("2g.20gb", 14, 2, 32, (0, 2, 4)),
    ("3g.40gb", 9, 4, 60, (0, 4)),
    ("4g.40gb", 5, 4, 64, (0,)),
    ("7g.80gb", 0, 8, 132, (0,)),
)
ROOT = "resource.kubernetes.io/pcieRoot"
POWER = "chassis"
CORES = {"default": "50", "validRange": {"min": "10", "step": "20"}}
MEMORY = {"default": "20Gi", "validValues": ["10Gi", "20Gi", "40Gi", "80Gi"]}


def divided_node(name: str, gpus: int = 1) -> tuple[Object, list[Object]]:
    """A node with this many H100 that are divided on demand, and its ResourceSlices."""
    rng = random.Random(name)
    counters = [{"name": f"gpu-{minor}-counter-set", "counters": _all_of_it()} for minor in range(gpus)]
    devices = [device for minor in range(gpus) for device in _gpu(minor, rng, divided=True)]
    return node(name, {}), slices_of(name, devices, counters, rng, missing=False)


def whole_node(name: str, gpus: int) -> tuple[Object, Object]:
    """A node with this many L40S or H100, which are not in its allocatable, and their ResourceSlice."""
    rng = random.Random(name)
    devices = [device for minor in range(gpus) for device in _gpu(minor, rng, divided=False)]
    return node(name, {}), slice_of(f"{name}-gpus", DRIVER, name, 1, {"devices": devices})


def devices_of(kind: str, rng: random.Random) -> tuple[list[Object], list[Object]]:
    """The devices of a node and their counter sets."""
    devices: list[Object] = []
    counters: list[Object] = []
    for minor in range(rng.choice((2, 4, 6)) if kind == "whole" else rng.choice((1, 2, 3))):
        divided = kind == "mig" or (kind == "both" and minor % 2 == 1)
        devices += [_parted(minor, rng)] if kind == "parts" else _gpu(minor, rng, divided=divided)
        if divided:
            counters.append({"name": f"gpu-{minor}-counter-set", "counters": _all_of_it()})
    if kind == "parts" and rng.random() < 0.4:  # of three devices only two have power
        counters.append({"name": POWER, "counters": {"watts": {"value": "1500"}}})
        for device in devices:
            device["consumesCounters"] = [{"counterSet": POWER, "counters": {"watts": {"value": "700"}}}]
    if rng.random() < 0.5:
        rng.shuffle(devices)
    if rng.random() < 0.2:
        tainted = rng.choice(devices)
        tainted["taints"] = [
            {"key": "gpu.nvidia.com/unhealthy", "value": "yes", "effect": rng.choice(EFFECTS)}
        ]
    return devices, counters


EFFECTS = ("NoSchedule", "NoExecute", "None")[: 2 if release() < "1.35" else 3]


def _gpu(minor: int, rng: random.Random, *, divided: bool) -> list[Object]:
    product = H100 if divided else rng.choice((H100, L40S))
    memory = "80Gi" if product == H100 else "48Gi"
    common = {
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper" if product == H100 else "Ada Lovelace"},
        "cudaComputeCapability": {"version": "9.0.0" if product == H100 else "8.9.0"},
        "driverVersion": {"version": rng.choice(("550.54.15", "570.86.15"))},
        "cudaDriverVersion": {"version": "12.8.0"},
        ROOT: {"string": root(minor)},
        "index": {"int": minor},
    }
    uuid = {"string": f"GPU-{minor}"}
    whole: Object = {
        "name": f"gpu-{minor}",
        "attributes": common | {"type": {"string": "gpu"}, "uuid": uuid},
        "capacity": {"memory": {"value": memory}},
    }
    if not divided:
        return [whole]
    source = f"gpu-{minor}-counter-set"
    whole["consumesCounters"] = [{"counterSet": source, "counters": _all_of_it()}]
    parts = [
        {
            "name": f"gpu-{minor}-mig-{profile.replace('.', '')}-{number}-{start}",
            "attributes": common
            | {"type": {"string": "mig"}, "profile": {"string": profile}, "parentUUID": uuid},
            "capacity": {"memory": {"value": f"{profile.partition('.')[2].removesuffix('gb')}Gi"}},
            "consumesCounters": [{"counterSet": source, "counters": _window(start, size, sms)}],
        }
        for profile, number, size, sms, starts in PROFILES
        for start in starts
    ]
    return [whole, *parts]


def _parted(minor: int, rng: random.Random) -> Object:
    """A GPU that is given out in parts; some have no policy for the size of a part."""
    (whole,) = _gpu(minor, rng, divided=False)
    cores: Object = {"value": "100", "requestPolicy": CORES}
    memory: Object = {"value": "80Gi", "requestPolicy": MEMORY}
    if rng.random() < 0.2:
        del cores["requestPolicy"]
    whole["attributes"] |= {"type": {"string": "parts"}}
    return whole | {"allowMultipleAllocations": True, "capacity": {"cores": cores, "memory": memory}}


def _window(start: int, size: int, multiprocessors: int) -> Object:
    taken = {f"memory-slice-{n}": {"value": "1"} for n in range(start, start + size)}
    return taken | {"multiprocessors": {"value": str(multiprocessors)}, "memory": {"value": f"{size * 10}Gi"}}


def _all_of_it() -> Object:
    return _window(0, 8, 132)


def root(number: int) -> str:
    return f"pci0000:0{number // 2}"


def slices_of(
    node_name: str, devices: list[Object], counters: list[Object], rng: random.Random, *, missing: bool
) -> list[Object]:
    """The ResourceSlices of a node. Sometimes one is missing, or there is another of an older generation.

    Up to 1.34 counters are in the slice of their devices, later in one of their own."""
    size = rng.choice((3, 8, 60)) if len(devices) < 20 else 60
    parts: list[Object] = [{"devices": devices[n : n + size]} for n in range(0, len(devices), size)]
    if counters and release() < "1.35":
        parts = [{"devices": devices, "sharedCounters": counters}]
    elif counters:
        parts.insert(rng.randrange(len(parts) + 1), {"sharedCounters": counters})
    letters = rng.sample("abcdefghijklmnop", len(parts))
    made = [
        slice_of(f"{node_name}-{letter}", DRIVER, node_name, len(parts) + missing, part, generation=2)
        for letter, part in zip(letters, parts, strict=True)
    ]
    if rng.random() < 0.1:
        made.append(slice_of(f"{node_name}-old", DRIVER, node_name, 1, {"devices": [{"name": "gpu-0"}]}))
    return made


def slice_of(
    name: str, driver: str, node_name: str, count: int, part: Object, *, generation: int = 1
) -> Object:
    pool = {"name": node_name, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node_name, "pool": pool} | part,
    }
