"""HAMi's MIG mode: a real kube-scheduler fills GPUs through Stowage's bind, and no slice is given out twice.

kwok's kubelets do not run HAMi's device plugin, so the test checks the annotations that it would read.
"""

import json
import random
from pathlib import Path

from .audit import runs, unschedulable
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import MIG_PROFILES, hami_mig_node, uuid
from .sharing import hami_pod
from .stowage import Stowage, applied, scheduler_configuration
from .workload import node

UUIDS = {f"n{n}": [uuid(f"n{n}", index) for index in range(2)] for n in range(3)}
RESERVED = "hami.io/vgpu-mig-allocations"


def test_no_slice_is_given_out_twice(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    draw = random.Random(1)
    pods = [hami_pod(f"p{n:02}", 0, draw.choice([4096, 4096, 9216, 15_360])) for n in range(40)]
    api.create_all([hami_mig_node(name, len(uuids)) for name, uuids in UUIDS.items()])
    with (
        applied(api, "rbac-bind.yaml"),
        Stowage(cluster, stowage_kubeconfig, BIND="true") as stowage,
        cluster.scheduler(scheduler_configuration(stowage.url, "shared-gpus.yaml")),
    ):
        api.create_all(pods)
        eventually(lambda: settled(api), within_s=120, what="every pod runs, or fits nowhere", every_s=0.5)
        before = api.list("Pod")["items"]
        running = [pod for pod in before if runs(pod)]
        assert 0 < len(running) < len(pods)
        for pod in draw.sample(running, 8):
            api.delete("Pod", pod["metadata"]["name"])
        # A pod that was refused while room was reserved for another pod is tried again at the next event.
        more = (f"more-{n}" for n in range(100))
        again = lambda: settled_after(api, next(more))  # noqa: E731
        eventually(again, within_s=120, what="other pods have taken the room", every_s=3)
        names = {pod["metadata"]["name"] for pod in running}
        assert any(runs(pod) and pod["metadata"]["name"] not in names for pod in api.list("Pod")["items"])
        check_the_books(api, stowage)


def taken(pods: list[Object]) -> dict[str, set[int]]:
    """The slices that pods have on each GPU, from the annotations for the plugin, whose form this checks."""
    found: dict[str, set[int]] = {gpu: set() for gpus in UUIDS.values() for gpu in gpus}
    for pod in pods:
        if not pod["spec"].get("nodeName"):
            continue
        notes = pod["metadata"]["annotations"]
        (one,) = json.loads(notes[RESERVED])
        profile = next(profile for profile in MIG_PROFILES if profile["name"] == one["profile"])
        assert (one["containerIndex"], one["deviceIndex"]) == (0, 0)
        assert one["placement"] in profile["placements"]
        assert one["gpuUUID"] in UUIDS[pod["spec"]["nodeName"]]
        device = f"{one['gpuUUID']},NVIDIA,{profile['memoryMB']},{profile['core']}:;"
        assert notes["hami.io/vgpu-devices-to-allocate"] == notes["hami.io/vgpu-devices-allocated"] == device
        assert memory(pod) <= profile["memoryMB"]
        slices = places(one["placement"])
        assert not slices & found[one["gpuUUID"]], "a slice is given out twice"
        found[one["gpuUUID"]] |= slices
    return found


def settled(api: Api) -> bool:
    """Whether every pod runs, or is unschedulable and fits nowhere."""
    pods = api.list("Pod")["items"]
    slices = taken(pods)
    waiting = [pod for pod in pods if not runs(pod)]
    return all(unschedulable(pod) and not has_room(slices, memory(pod)) for pod in waiting)


def settled_after(api: Api, name: str) -> bool:
    """The same. If not, creates a node without GPUs, so that kube-scheduler tries all waiting pods again."""
    if settled(api):
        return True
    api.create(node(name, {}))
    return False


def has_room(slices: dict[str, set[int]], mib: int) -> bool:
    large = [profile for profile in MIG_PROFILES if profile["memoryMB"] >= mib]
    free = [place for profile in large for place in profile["placements"]]
    return any(not places(place) & held for place in free for held in slices.values())


def check_the_books(api: Api, stowage: Stowage) -> None:
    """Stowage counts the same slices as taken."""
    nodes = {node["name"]: node for node in stowage.json("/debug/nodes")["nodes"]}
    for gpu, slices in taken(api.list("Pod")["items"]).items():
        _, name, index = gpu.split("-")
        assert nodes[name]["gpus"][int(index)]["taken_slices"] == sorted(slices)


def memory(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"])


def places(placement: Object) -> set[int]:
    return set(range(placement["start"], placement["start"] + placement["size"]))
