"""A cluster of shared GPUs, and which pod has how much of which GPU, counted without any code of Stowage.

There are two ways to share: Stowage's own annotations, and HAMi's device plugin. kwok's kubelets have no
device plugin, so the tests check the annotations that it would read.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .audit import runs, unschedulable
from .background import PodWatch
from .controlplane.api import Api, Object
from .workload import node, pod

MIB = 81559
OWN_NODES, OWN_GPUS = 15, 8
HAMI_NODES, HAMI_GPUS = 20, 4
SLOTS = 10  # the most pods that HAMi puts on one GPU
GPU = "nvidia.com/gpu"
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": str(MIB)}
COMPUTE, MEMORY, INDICES = "stowage.dev/gpu-compute", "stowage.dev/gpu-memory", "stowage.dev/gpu-indices"
OWN_SIZES = [("40m", "3Gi"), ("80m", "2Gi"), ("120m", "12Gi"), ("160m", "6Gi")]
HAMI_SIZES = [(5, 2048), (10, 12288), (15, 4096), (0, 9216)]


@dataclass(slots=True, frozen=True)
class Share:
    """Part of one GPU: the node, the GPU by UUID or index, compute in milli, memory in MiB."""

    node: str
    gpu: str
    milli: int
    mib: int


def nodes() -> list[Object]:
    """200 GPUs: 120 on nodes that are set aside for Stowage, 80 on HAMi's nodes."""
    own = [
        node(
            f"own-{n:02}",
            {},
            labels={"stowage.dev/gpu-sharing": "true", GPU + ".count": str(OWN_GPUS)} | PRODUCT,
        )
        for n in range(OWN_NODES)
    ]
    hami = []
    for n in range(HAMI_NODES):
        register = [
            {
                **{
                    "id": f"GPU-{n:02}-{index}",
                    "index": index,
                    "count": SLOTS,
                    "devmem": MIB,
                    "devcore": 100,
                },
                **{"type": "NVIDIA H100 80GB HBM3", "mode": "hami-core", "health": True},
            }
            for index in range(HAMI_GPUS)
        ]
        one = node(f"hami-{n:02}", {GPU: HAMI_GPUS * SLOTS}, labels=PRODUCT)
        one["metadata"]["annotations"] = {
            "hami.io/node-nvidia-register": json.dumps(register),
            "hami.io/node-handshake": "Reported 2026-01-01 00:00:00",
        }
        hami.append(one)
    return own + hami


def pods(own: int, hami: int, seed: int = 1) -> list[Object]:
    """Pods of both kinds that request parts of GPUs, in random order."""
    draw = random.Random(seed)
    mixed = [own_pod(f"own-{n:04}", *draw.choice(OWN_SIZES)) for n in range(own)]
    mixed += [hami_pod(f"hami-{n:04}", *draw.choice(HAMI_SIZES)) for n in range(hami)]
    draw.shuffle(mixed)
    return mixed


def own_pod(name: str, compute: str, memory: str) -> Object:
    """A pod in Stowage's own dialect."""
    return pod(name, {}, cpu="100m", annotations={COMPUTE: compute, MEMORY: memory})


def hami_pod(name: str, cores: int, mib: int) -> Object:
    """A pod in HAMi's dialect."""
    asked = {GPU: 1, "nvidia.com/gpumem": mib} | ({"nvidia.com/gpucores": cores} if cores else {})
    return pod(name, asked, cpu="100m")


def asked(pod: Object) -> tuple[int, int]:
    """Compute in milli and memory in MiB that a pod requests."""
    notes = pod["metadata"].get("annotations", {})
    if COMPUTE in notes:
        return int(notes[COMPUTE].removesuffix("m")), int(notes[MEMORY].removesuffix("Gi")) * 1024
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits.get("nvidia.com/gpucores", 0)) * 10, int(limits["nvidia.com/gpumem"])


def assigned(pod: Object) -> Share:
    """What a bound pod has, from the annotations for its device plugin, whose form this checks."""
    notes, name = pod["metadata"]["annotations"], pod["spec"]["nodeName"]
    if COMPUTE in notes:
        assert name.startswith("own-")
        assert 0 <= int(notes[INDICES]) < OWN_GPUS
        return Share(name, notes[INDICES], *asked(pod))
    assert notes["hami.io/vgpu-node"] == name
    assert notes["hami.io/bind-phase"] == "allocating"
    assert int(notes["hami.io/bind-time"]) > 0
    written = notes["hami.io/vgpu-devices-to-allocate"]
    assert written == notes["hami.io/vgpu-devices-allocated"]
    assert written.endswith(":;")
    uuid, kind, mib, cores = written.removesuffix(":;").split(",")
    assert kind == "NVIDIA"
    assert uuid.startswith(name.replace("hami", "GPU"))
    return Share(name, uuid, int(cores) * 10, int(mib))


def sums(pods: Iterable[Object]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """By node and GPU: compute, memory and number of the bound pods that have not ended."""
    held: dict[tuple[str, str], list[Share]] = defaultdict(list)
    for one in pods:
        if one["spec"].get("nodeName") and one["status"]["phase"] not in ("Succeeded", "Failed"):
            share = assigned(one)
            assert (share.milli, share.mib) == asked(one)
            held[share.node, share.gpu].append(share)
    return {
        gpu: (sum(s.milli for s in shares), sum(s.mib for s in shares), len(shares))
        for gpu, shares in held.items()
    }


def overcommitted(pods: Iterable[Object]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """The over-committed GPUs."""
    return {gpu: held for gpu, held in sums(pods).items() if not fits(gpu[0], held, (0, 0))}


def has_room(pods: list[Object], waiting: Object) -> list[tuple[str, str]]:
    """The GPUs that have room for a waiting pod."""
    held, size = sums(pods), asked(waiting)
    own = COMPUTE in waiting["metadata"].get("annotations", {})
    every = (
        [(f"own-{n:02}", str(i)) for n in range(OWN_NODES) for i in range(OWN_GPUS)]
        if own
        else [(f"hami-{n:02}", f"GPU-{n:02}-{i}") for n in range(HAMI_NODES) for i in range(HAMI_GPUS)]
    )
    return [gpu for gpu in every if fits(gpu[0], held.get(gpu, (0, 0, 0)), size, more=1)]


def fits(node: str, held: tuple[int, int, int], size: tuple[int, int], *, more: int = 0) -> bool:
    """Whether a GPU of this node has room for `held`, and for this size and `more` pods in addition."""
    slots = SLOTS if node.startswith("hami") else len(OWN_SIZES) * 1000
    return held[0] + size[0] <= 1000 and held[1] + size[1] <= MIB and held[2] + more <= slots


class GpuAudit(PodWatch):
    """Watches all pods while its `with` block runs, and recounts a GPU whenever a pod is bound to it.

    `pods` are the pods as last seen, by UID. `bound` are the UIDs of those that have a node. `findings`
    describe what must not happen.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, "gpu-audit")
        self._held: dict[tuple[str, str], dict[str, Share]] = defaultdict(dict)
        self.pods: dict[str, Object] = {}
        self.bound: set[str] = set()
        self.findings: list[str] = []

    def settled(self) -> bool:
        """Whether every pod runs, or is unschedulable and fits nowhere."""
        pods = list(self.pods.values())
        waiting = [pod for pod in pods if not runs(pod)]
        if not pods or any(pod["spec"].get("nodeName") or not unschedulable(pod) for pod in waiting):
            return False
        kinds = {(asked(pod), COMPUTE in pod["metadata"]["annotations"]): pod for pod in waiting}
        return not any(has_room(pods, pod) for pod in kinds.values())

    def _take_list(self, pods: list[Object]) -> None:
        for one in pods:
            self._see(one)

    def _take(self, kind: str, pod: Object) -> None:
        self._see(pod)

    def _see(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        if not pod["spec"].get("nodeName") or uid in self.bound:
            return
        self.bound.add(uid)
        share = assigned(pod)
        on_gpu = self._held[share.node, share.gpu]
        on_gpu[uid] = share
        milli, mib = sum(one.milli for one in on_gpu.values()), sum(one.mib for one in on_gpu.values())
        if not fits(share.node, (milli, mib, len(on_gpu)), (0, 0)):
            self.findings.append(f"{share} is over-committed: {milli} milli, {mib} MiB, {len(on_gpu)} pods")
