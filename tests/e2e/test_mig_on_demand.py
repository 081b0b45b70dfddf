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
from .sharing import GPU, hami_pod
from .stowage import Stowage, applied, scheduler_configuration
from .workload import node

# The profiles of an A100 with 40 GB, as in HAMi's register.
PROFILES = [
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
UUIDS = [[f"GPU-{n}-{index}" for index in range(2)] for n in range(3)]
RESERVED = "hami.io/vgpu-mig-allocations"


def mig_node(name: str, uuids: list[str]) -> Object:
    register = [
        {
            **{"id": uuid, "index": index, "count": 7, "devmem": 40960, "devcore": 100},
            **{"type": "NVIDIA A100-SXM4-40GB", "mode": "mig", "health": True, "migProfiles": PROFILES},
        }
        for index, uuid in enumerate(uuids)
    ]
    one = node(name, {GPU: 7 * len(uuids)})
    one["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(register)}
    return one


def test_no_slice_is_given_out_twice(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    draw = random.Random(1)
    pods = [hami_pod(f"p{n:02}", 0, draw.choice([4096, 4096, 9216, 15_360])) for n in range(40)]
    api.create_all([mig_node(f"n{n}", uuids) for n, uuids in enumerate(UUIDS)])
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
    found: dict[str, set[int]] = {uuid: set() for uuids in UUIDS for uuid in uuids}
    for pod in pods:
        if not pod["spec"].get("nodeName"):
            continue
        notes = pod["metadata"]["annotations"]
        (one,) = json.loads(notes[RESERVED])
        profile = next(profile for profile in PROFILES if profile["name"] == one["profile"])
        assert (one["containerIndex"], one["deviceIndex"]) == (0, 0)
        assert one["placement"] in profile["placements"]
        assert one["gpuUUID"] in UUIDS[int(pod["spec"]["nodeName"].removeprefix("n"))]
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
    large = [profile for profile in PROFILES if profile["memoryMB"] >= mib]
    free = [place for profile in large for place in profile["placements"]]
    return any(not places(place) & held for place in free for held in slices.values())


def check_the_books(api: Api, stowage: Stowage) -> None:
    """Stowage counts the same slices as taken."""
    nodes = {node["name"]: node for node in stowage.json("/debug/nodes")["nodes"]}
    for uuid, slices in taken(api.list("Pod")["items"]).items():
        _, name, index = uuid.split("-")
        assert nodes[f"n{name}"]["gpus"][int(index)]["taken_slices"] == sorted(slices)


def memory(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"])


def places(placement: Object) -> set[int]:
    return set(range(placement["start"], placement["start"] + placement["size"]))
