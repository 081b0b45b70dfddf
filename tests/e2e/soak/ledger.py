"""Who has what, counted from API objects without any code of Stowage.

A place is a node and a device on it ("" for what kube-scheduler counts on the node as a whole). Amounts are
counted by name: a resource in thousandths, "milli" and "MiB" of a shared GPU, the memory slices of a GPU in
MIG mode one by one.
"""

import json
import time
from collections import Counter, defaultdict

from ..books import Amounts, amounts, needs
from ..controlplane.api import Object
from ..hami_nodes import MIG_PROFILES
from ..sharing import COMPUTE, GPU, INDICES, MEMORY, MIB
from . import fleet

Place = tuple[str, str]
WAY = "soak/load"
GRACE_S = 40.0  # how long after a node shrank a pod may still come by what it had before
HAMI_NODE, HAMI_DEVICES = "hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"
HAMI_MIG = "hami.io/vgpu-mig-allocations"


class Ledger:
    """What nodes have had lately, and what pods hold. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._had: defaultdict[str, list[tuple[float, dict[str, Amounts]]]] = defaultdict(list)
        self.held: defaultdict[Place, dict[str, Amounts]] = defaultdict(dict)
        self._places: dict[str, list[Place]] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.closed: set[str] = set()  # nodes that take no pods

    def put_node(self, node: Object) -> None:
        """The node is like this from now on."""
        name = node["metadata"]["name"]
        self.labels[name] = node["metadata"].get("labels", {})
        closed = node["spec"].get("unschedulable") or node["spec"].get("taints")
        (self.closed.add if closed else self.closed.discard)(name)
        self._had[name].append((time.monotonic(), capacity(node)))

    def remove_node(self, name: str) -> None:
        """It is gone, and will come back."""
        self.closed.add(name)

    def put(self, pod: Object) -> list[str]:
        """Add or update a pod. Returns what is wrong if it has just been bound."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            self.remove(uid)
        if not node or uid in self._places or pod["status"]["phase"] in ("Succeeded", "Failed"):
            return []
        name = pod["metadata"]["name"]
        try:
            held = holds(pod)
        except (KeyError, ValueError, IndexError) as problem:
            self._places[uid] = []
            return [f"{name} was bound to {node} without a readable assignment: {problem!r}"]
        self._places[uid] = [(node, device) for device in held]
        for device, taken in held.items():
            self.held[node, device][uid] = taken
        return [f"{name} on {place}: {excess}" for place, excess in self._excess(node, held).items()]

    def remove(self, uid: str) -> None:
        """It has ended, or is gone."""
        for place in self._places.pop(uid, []):
            self.held[place].pop(uid, None)

    def taken(self, place: Place) -> Amounts:
        """The sum of what pods hold there."""
        return sum(self.held[place].values(), Amounts()) if place in self.held else Amounts()

    def _excess(self, node: str, held: dict[str, Amounts]) -> dict[Place, str]:
        """By place, what this pod and the others there take beyond what the node has had lately."""
        found = {}
        for device, taken in held.items():
            has, sums = self._most_lately(node, device), self.taken((node, device))
            if over := {name: f"{sums[name]} of {has[name]}" for name in taken if sums[name] > has[name]}:
                found[node, device] = str(over)
        return found

    def _most_lately(self, node: str, device: str) -> Amounts:
        """The most that the node has had there within GRACE_S: nobody can know of a change at once."""
        versions = self._had[node]
        since = time.monotonic() - GRACE_S
        while len(versions) > 1 and versions[1][0] < since:
            versions.pop(0)
        most = Amounts()
        for _, has in versions:
            most |= has.get(device, Amounts())
        return most

    def room(self, pod: Object) -> list[str]:
        """The nodes with room for a waiting pod of the load, as they are now."""
        pool = pod["spec"]["nodeSelector"][fleet.POOL]
        open_ = [name for name, labels in self.labels.items() if labels.get(fleet.POOL) == pool]
        return [name for name in open_ if name not in self.closed and self._fits(pod, name, pool)]

    def _fits(self, pod: Object, node: str, way: str) -> bool:
        has = self._had[node][-1][1]
        counted = needs(pod)
        if way in ("hami", "himig"):  # what no node advertises
            counted = Amounts({name: n for name, n in counted.items() if "gpumem" not in name})
            counted = Amounts({name: n for name, n in counted.items() if "gpucores" not in name})
        sums = self.taken((node, ""))
        if any(sums[name] + n > has[""][name] for name, n in counted.items()):
            return False
        if not (options := wishes(pod)):
            return True
        return any(
            all(self.taken((node, device))[name] + n <= one[name] for name, n in share.items())
            for device, one in has.items()
            if device
            for share in options
        )


def capacity(node: Object) -> dict[str, Amounts]:
    """By device ("" for the node as a whole), what the node has."""
    has, name = amounts(node["status"]["allocatable"]), node["metadata"]["name"]
    found = {"": has}
    way, labels = fleet.kind_of(name), node["metadata"]["labels"]
    if way == "own":
        for index in range(int(labels[f"{GPU}.count"])):
            found[str(index)] = Amounts({"milli": 1000, "MiB": MIB})
    if way in ("hami", "himig"):
        register = json.loads(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])
        for one in register:
            slices = {f"slice {n}": 1 for n in range(8)} if way == "himig" else {}
            found[one["id"]] = Amounts({"milli": 1000, "MiB": one["devmem"], "pods": one["count"]} | slices)
    if way == "gpushare":
        for index in range(has[fleet.COUNT] // 1000):
            found[str(index)] = Amounts({"units": has[fleet.MEMORY] // has[fleet.COUNT]})
    return found


def wishes(pod: Object) -> list[Amounts]:
    """What would do for a pod on one GPU, empty if kube-scheduler counts all that it asks for."""
    if pod["metadata"]["labels"][WAY] == "himig":
        mib = quantity(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"])
        profile = next(one for one in MIG_PROFILES if one["memoryMB"] >= mib)
        return [
            Amounts({f"slice {place['start'] + n}": 1 for n in range(place["size"])})
            for place in profile["placements"]
        ]
    return [share] if (share := wish(pod)) else []


def wish(pod: Object) -> Amounts | None:
    """What a pod asks of one GPU, None if kube-scheduler counts all that it asks for, or in MIG mode."""
    notes, way = pod["metadata"].get("annotations", {}), pod["metadata"]["labels"][WAY]
    limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
    if way == "own":
        milli, gib = notes[COMPUTE].removesuffix("m"), notes[MEMORY].removesuffix("Gi")
        return Amounts({"milli": int(milli), "MiB": int(gib) * 1024})
    if way == "hami":
        cores, mib = limits.get("nvidia.com/gpucores", "0"), limits["nvidia.com/gpumem"]
        return Amounts({"milli": int(cores) * 10, "MiB": quantity(mib), "pods": 1})
    if way == "gpushare":
        return Amounts({"units": int(limits[fleet.MEMORY])})
    return None


def quantity(text: str) -> int:
    return int(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)


def holds(pod: Object) -> dict[str, Amounts]:
    """By device, what a bound pod has. Raises KeyError, ValueError and IndexError for annotations that a
    device plugin could not read."""
    counted, notes = needs(pod), pod["metadata"].get("annotations", {})
    way = pod["metadata"].get("labels", {}).get(WAY)
    if way in ("hami", "himig"):
        counted = Amounts({name: n for name, n in counted.items() if name in (GPU, "cpu", "memory", "pods")})
        return {"": counted, **_of_hami(pod, notes)}
    share = wish(pod) if way else None
    if way == "own" and share is not None:
        return {"": counted, str(int(notes[INDICES])): share}
    if way == "gpushare" and share is not None:
        if int(notes["ALIYUN_COM_GPU_MEM_POD"]) != share["units"]:
            raise ValueError(notes["ALIYUN_COM_GPU_MEM_POD"])
        return {"": counted, str(int(notes["ALIYUN_COM_GPU_MEM_IDX"])): share}
    return {"": counted}


def _of_hami(pod: Object, notes: dict[str, str]) -> dict[str, Amounts]:
    if notes[HAMI_NODE] != pod["spec"]["nodeName"]:
        raise ValueError(f"{HAMI_NODE} is {notes[HAMI_NODE]}")
    gpu, _, mib, cores = notes[HAMI_DEVICES].removesuffix(":;").split(",")
    taken = Amounts({"milli": int(cores) * 10, "MiB": int(mib), "pods": 1})
    if HAMI_MIG in notes:
        (one,) = json.loads(notes[HAMI_MIG])
        start, size = one["placement"]["start"], one["placement"]["size"]
        if one["gpuUUID"] != gpu:
            raise ValueError(f"an instance on {one['gpuUUID']}, the GPU is {gpu}")
        taken = Amounts({f"slice {n}": 1 for n in range(start, start + size)})
    else:
        share = wish(pod)
        if share != taken:
            raise ValueError(f"asked for {share}, got {taken}")
    return {gpu: taken}


def shared_devices(claims: list[Object]) -> dict[str, list[str]]:
    """The devices that several claims have, with these claims."""
    users: defaultdict[str, list[str]] = defaultdict(list)
    for claim in claims:
        allocation = claim.get("status", {}).get("allocation") or {"devices": {"results": []}}
        for result in allocation["devices"].get("results", ()):
            users[f"{result['pool']}/{result['device']}"].append(claim["metadata"]["name"])
    return {device: names for device, names in users.items() if len(names) > 1}


def tally(findings: list[str]) -> Counter[str]:
    """How many findings there are of each kind (their text up to the first colon)."""
    return Counter(one.partition(":")[0] for one in findings)
