"""Pods of the three queues that hold GPUs for a known time, for the tests of preemption."""

import json
from datetime import UTC, datetime, timedelta

from .controlplane.api import Api, Object
from .controlplane.process import eventually
from .sharing import GPU
from .stowage import apply
from .workload import node, pod

INTERACTIVE, BATCH, BACKFILL = "stowage-interactive", "stowage-batch", "stowage-backfill"
MINUTE, HOUR = 60, 3600
MIG_PROFILES = [
    {
        "name": name,
        "memoryMB": mib,
        "core": core,
        "sliceCount": int(name[0]),
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for name, mib, core, size, starts in (
        ("1g.5gb", 4864, 15, 1, range(7)),
        ("2g.10gb", 9984, 29, 2, (0, 2, 4)),
        ("3g.20gb", 19968, 43, 4, (0, 4)),
        ("7g.40gb", 40192, 100, 8, (0,)),
    )
]
"""The profiles of an A100 with 40 GB, as in HAMi's register."""


def create_classes(api: Api) -> None:
    """The PriorityClasses of the default queues."""
    apply(api, "priority-classes.yaml")


def run(api: Api, one: Object, *, on: str, for_s: float = 0) -> None:
    """Runs a pod on a node, without a scheduler. It has run for this time."""
    one["spec"]["nodeName"] = on
    name = api.create(one)["metadata"]["name"]
    wait_until_running(api, name)
    if for_s:
        set_started(api, name, ago_s=for_s)


def set_started(api: Api, name: str, *, ago_s: float) -> None:
    api.patch("Pod", name, {"status": {"startTime": ago(ago_s)}}, subresource="status")


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def wait_until_running(api: Api, name: str, *, within_s: float = 60) -> str:
    """The node on which the pod runs."""
    eventually(
        lambda: api.get("Pod", name)["status"]["phase"] == "Running", within_s=within_s, what=f"{name} runs"
    )
    return str(api.get("Pod", name)["spec"]["nodeName"])


def present(api: Api) -> set[str]:
    """The names of the pods that are not being deleted."""
    return {
        one["metadata"]["name"]
        for one in api.list("Pod")["items"]
        if "deletionTimestamp" not in one["metadata"]
    }


def observed_budgets(api: Api) -> set[str]:
    """The budgets of which the disruption controller has counted the pods."""
    return {
        one["metadata"]["name"]
        for one in api.list("PodDisruptionBudget")["items"]
        if one.get("status", {}).get("expectedPods")
    }


def hami_node(name: str, gpus: int, *, slots: int) -> Object:
    """A node of HAMi with H100s, each of which takes at most `slots` pods."""
    return _registered(
        name,
        slots * gpus,
        [
            {**_device(name, index, slots), "devmem": 81559, "type": "NVIDIA H100", "mode": "hami-core"}
            for index in range(gpus)
        ],
    )


def hami_mig_node(name: str, gpus: int) -> Object:
    """A node of HAMi with A100s in MIG mode, which makes instances on demand."""
    return _registered(
        name,
        7 * gpus,
        [
            {
                **{**_device(name, index, 7), "devmem": 40960, "type": "NVIDIA A100-SXM4-40GB"},
                **{"mode": "mig", "migProfiles": MIG_PROFILES},
            }
            for index in range(gpus)
        ],
    )


def _device(name: str, index: int, slots: int) -> Object:
    return {"id": uuid(name, index), "index": index, "count": slots, "devcore": 100, "health": True}


def _registered(name: str, slots: int, register: list[Object]) -> Object:
    one = node(name, {GPU: slots})
    one["metadata"]["annotations"] = {
        "hami.io/node-nvidia-register": json.dumps(register),
        "hami.io/node-handshake": "Reported 2026-01-01 00:00:00",
    }
    return one


def uuid(node_name: str, index: int) -> str:
    return f"GPU-{node_name}-{index}"


def hami_pod(name: str, mib: int, cores: int, *, priority_class: str) -> Object:
    asked = {GPU: 1, "nvidia.com/gpumem": mib} | ({"nvidia.com/gpucores": cores} if cores else {})
    return pod(name, asked, cpu="100m", priority_class=priority_class)


def assigned(one: Object, *, on: str, gpu: int, slices: tuple[str, int] | None = None) -> Object:
    """The pod of HAMi with the annotations of its device: a GPU, and a profile and start in MIG mode."""
    limits = one["spec"]["containers"][0]["resources"]["limits"]
    amounts = [limits["nvidia.com/gpumem"], limits.get("nvidia.com/gpucores", "0")]
    notes = {"hami.io/vgpu-node": on, "hami.io/bind-phase": "success", "hami.io/bind-time": "1750000000"}
    if slices is not None:
        profile = next(profile for profile in MIG_PROFILES if profile["name"] == slices[0])
        placement = next(place for place in profile["placements"] if place["start"] == slices[1])
        amounts = [str(profile["memoryMB"]), str(profile["core"])]
        reserved = {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": uuid(on, gpu),
            "profile": slices[0],
            "placement": placement,
        }
        notes["hami.io/vgpu-mig-allocations"] = json.dumps([reserved])
    device = f"{uuid(on, gpu)},NVIDIA,{amounts[0]},{amounts[1]}:;"
    notes |= {"hami.io/vgpu-devices-to-allocate": device, "hami.io/vgpu-devices-allocated": device}
    one["metadata"]["annotations"] |= notes
    return one


def gpu_of(one: Object) -> str:
    """The UUID of the GPU that a pod of HAMi was assigned to."""
    return str(one["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]).partition(",")[0]
