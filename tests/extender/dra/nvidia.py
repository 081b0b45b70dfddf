"""What NVIDIA's DRA driver publishes, and the claims in its documentation.

Of kubernetes-sigs/dra-driver-nvidia-gpu at 95932046: classes and claims from ``deployments/helm`` and
``demo/specs/quickstart/v1``, slices from ``cmd/gpu-kubelet-plugin/{deviceinfo,mig,partitions}.go``.
"""

from __future__ import annotations

from typing import Any

import yaml

from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator, Forecast
from extender.k8s.objects import Pod, PodClaim, PodSpec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice

Manifest = dict[str, Any]
NODE = "node-a"

CLASSES = """
- metadata: {name: gpu.nvidia.com}
  spec:
    extendedResourceName: nvidia.com/gpu
    selectors:
    - cel:
        expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
- metadata: {name: mig.nvidia.com}
  spec:
    selectors:
    - cel:
        expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
"""
# Profile, its id, memory slices, multiprocessors, first slices: of an A100 with 40 GB.
PROFILES = (
    ("1g.5gb", 19, 1, 14, range(7)),
    ("1g.5gb+me", 20, 1, 14, range(7)),
    ("1g.10gb", 15, 2, 14, (0, 2, 4, 6)),
    ("2g.10gb", 14, 2, 28, (0, 2, 4)),
    ("3g.20gb", 9, 4, 42, (0, 4)),
    ("4g.20gb", 5, 4, 56, (0,)),
    ("7g.40gb", 0, 8, 98, (0,)),
)


def gpu(minor: int = 0, **more: Any) -> Manifest:
    """A whole GPU."""
    return {
        "name": f"gpu-{minor}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{minor}"},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Ampere"},
            "cudaComputeCapability": {"version": "8.0.0"},
            "driverVersion": {"version": "580.65.6"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{minor}0"},
        },
        "capacity": {"memory": {"value": "40Gi"}},
        **more,
    }


def dynamic(minor: int = 0) -> list[Manifest]:
    """A GPU that is partitioned on demand: the whole GPU, and every placement of every profile."""
    source = f"gpu-{minor}-counter-set"
    parts = [
        {
            "name": f"gpu-{minor}-mig-{profile.replace('.', '').replace('+', '-')}-{number}-{start}",
            "attributes": {
                "type": {"string": "mig"},
                "profile": {"string": profile},
                "parentUUID": {"string": f"GPU-{minor}"},
                "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            },
            "capacity": {"memory": {"value": f"{4864 * size}Mi"}, "multiprocessors": {"value": str(sms)}},
            "consumesCounters": [{"counterSet": source, "counters": counters(start, size, sms)}],
        }
        for profile, number, size, sms, starts in PROFILES
        for start in starts
    ]
    whole = {"counterSet": source, "counters": counters(0, 8, 98)}
    return [gpu(minor, consumesCounters=[whole]), *parts]


def counters(start: int, size: int, multiprocessors: int) -> Manifest:
    """Memory slices from ``start`` on, memory and multiprocessors."""
    slices = {f"memory-slice-{n}": {"value": "1"} for n in range(start, start + size)}
    return slices | {
        "memory": {"value": f"{4864 * size}Mi"},
        "multiprocessors": {"value": str(multiprocessors)},
    }


def counter_set(minor: int = 0) -> Manifest:
    """The counter set of a partitioned GPU."""
    return {"name": f"gpu-{minor}-counter-set", "counters": counters(0, 8, 98)}


def spec(*devices: Manifest, count: int = 1, generation: int = 1, node: str = NODE, **more: Any) -> Manifest:
    """The spec of a slice of the node's pool."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    parts = {"devices": list(devices)} if devices else {}
    return {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, **parts, **more}


def device_cache(*slices: Manifest) -> DeviceCache:
    """A cache with NVIDIA's classes and these slices, which are named s0, s1, ..."""
    cache = DeviceCache()
    for one in yaml.safe_load(CLASSES):
        cache.put(parse_class(one["metadata"]["name"], one["spec"]))
    for number, one in enumerate(slices):
        cache.put(parse_slice(f"s{number}", one))
    return cache


def cluster(nodes: int = 100) -> DeviceCache:
    """Nodes n0, n1, ... with eight GPUs each."""
    cache = device_cache(*(spec(*map(gpu, range(8)), node=f"n{number}") for number in range(nodes)))
    cache.refresh(lambda name: {})
    return cache


def hold(cache: DeviceCache, *devices: str, node: str = NODE) -> None:
    """Let each of these devices be held by a claim of its own."""
    for device in devices:
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": node, "device": device}
        allocation = {"allocation": {"devices": {"results": [result]}}}
        cache.put(parse_claim("ml", f"has-{node}-{device}", {"devices": {}}, allocation))


def forecast_for(cache: DeviceCache, claim: Manifest | str, node: str = NODE) -> Forecast:
    """The forecast for a pod with a claim, whose ``devices`` are a manifest or YAML."""
    devices = yaml.safe_load(claim) if isinstance(claim, str) else claim
    cache.put(parse_claim("ml", "wanted", {"devices": devices}, None))
    cache.refresh(lambda name: {})
    pod = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "wanted"),)))
    (found,) = AllocationSimulator(cache).forecasts(pod, [(node, {})])
    return found


def names(forecast: Forecast) -> list[str]:
    """The names of the devices, without driver and pool."""
    return [one.device for one in forecast.devices]
