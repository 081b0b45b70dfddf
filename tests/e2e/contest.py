"""500 running pods of low priority hold the GPUs that 300 pods of high priority request.

Each pod of low priority belongs to a Job, which makes another one when it is evicted.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from .audit import runs
from .background import PodWatch
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .fewest_evictions import NodeState, Shape, fewest_evictions
from .queue_cases import BACKFILL as LOW
from .queue_cases import INTERACTIVE as HIGH
from .queue_cases import create_classes, set_started
from .rush import A100, GPU, H100, LABEL_SETS
from .workload import job, node, pod

NODES, GPUS = 80, 8
PROTECTED, LOW_PODS, GONE = 80, 500, 60  # together all GPUs
HIGH_PODS = 300
PRODUCT = "nvidia.com/gpu.product"
OLDEST_S = 3 * 3600


def nodes() -> list[Object]:
    """60 nodes with H100 and 20 with A100."""
    labels = LABEL_SETS["h100-sxm-8-whole"]
    products = [H100] * 60 + [A100] * 20
    return [
        node(f"n{number:02}", {GPU: GPUS}, labels=labels | {PRODUCT: product})
        for number, product in enumerate(products)
    ]


def high_pods(draw: random.Random) -> list[Object]:
    shapes = draw.choices(
        [(1, None), (1, A100), (2, None), (2, H100), (4, None)], weights=[65, 20, 7, 3, 5], k=HIGH_PODS
    )
    return [
        pod(f"high-{number:03}", {GPU: gpus}, priority_class=HIGH, product=product)
        for number, (gpus, product) in enumerate(shapes)
    ]


def prepare(cluster: ControlPlane, draw: random.Random) -> None:
    """Fills the cluster; needs running schedulers and controllers. Some GPUs are free again at the end, on
    many nodes, and the pods have run for up to three hours."""
    api = cluster.api
    create_classes(api)
    api.create_all(nodes())
    api.create_all(
        pod(f"serves-{n:02}", {GPU: 1}, priority_class=HIGH, on=f"n{draw.randrange(NODES):02}")
        for n in range(PROTECTED)
    )
    low = pod("", {GPU: 1}, priority_class=LOW)
    names = [f"low-{number:03}" for number in range(LOW_PODS + GONE)]
    api.create_all(job(name, low) for name in names)
    eventually(lambda: len(running(api, LOW)) == len(names), within_s=120, what="the cluster is full")
    for name in draw.sample(names, GONE):
        api.delete("Job", name)
        (gone,) = api.list("Pod", labelSelector=f"job-name={name}")["items"]
        api.delete("Pod", gone["metadata"]["name"])
    eventually(lambda: len(running(api, LOW)) == LOW_PODS, within_s=30, what="some GPUs are free")

    ages = [(one["metadata"]["name"], draw.random() * OLDEST_S) for one in running(api, LOW)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda age: set_started(api, age[0], ago_s=age[1]), ages))


@dataclass(frozen=True, slots=True)
class Before:
    """The cluster before the pods of high priority come."""

    nodes: dict[str, NodeState]
    low: frozenset[str]  # UIDs

    @classmethod
    def now(cls, api: Api) -> Self:
        held: dict[str, int] = Counter()
        evictable: dict[str, list[int]] = defaultdict(list)
        for one in filter(runs, api.list("Pod")["items"]):
            held[on(one)] += gpus(one)
            if of_class(one, LOW):
                evictable[on(one)].append(gpus(one))
        labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in api.list("Node")["items"]}
        states = {
            name: NodeState(labels[name][PRODUCT], GPUS - held[name], tuple(evictable[name]))
            for name in labels
        }
        return cls(states, frozenset(one["metadata"]["uid"] for one in running(api, LOW)))

    def minimum(self, waiting: Iterable[Object]) -> int:
        shapes: Counter[Shape] = Counter(
            (gpus(one), one["spec"].get("nodeSelector", {}).get(PRODUCT, "")) for one in waiting
        )
        return fewest_evictions(list(self.nodes.values()), shapes)


class Evictions(PodWatch):
    """Watches pods of low priority while its `with` block runs.

    `victims` are the bound pods that were deleted, in order. `came` are the pods that were bound, by UID,
    with the number of victims at that time.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, "evictions")
        self._known: dict[str, Object] = {}
        self._gone: set[str] = set()
        self.victims: list[Object] = []
        self.came: dict[str, tuple[Object, int]] = {}

    def jobs(self) -> Counter[str]:
        """How often each job lost a pod."""
        return Counter(one["metadata"]["ownerReferences"][0]["name"] for one in self.victims)

    def _take_list(self, pods: list[Object]) -> None:
        present = {one["metadata"]["uid"] for one in pods}
        for uid, one in list(self._known.items()):
            if uid not in present:
                self._take("DELETED", one)
        for one in pods:
            self._take("ADDED", one)

    def _take(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if not of_class(pod, LOW) or not pod["spec"].get("nodeName") or uid in self._gone:
            return
        if uid not in self._known:
            self.came[uid] = (pod, len(self.victims))
        self._known[uid] = pod
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self._gone.add(uid)
            self.victims.append(pod)


def in_vain(before: Before, evictions: Evictions, after: list[Object]) -> list[str]:
    """The nodes on which more GPUs were taken from victims than pods of high priority needed there."""
    findings = []
    for name, state in before.nodes.items():
        evicted = [n for n, one in enumerate(evictions.victims) if on(one) == name]
        if not evicted:
            continue
        since = [one for one in after if on(one) == name and one["metadata"]["name"].startswith("high-")]
        came = [
            one
            for uid, (one, number) in evictions.came.items()
            if on(one) == name and uid not in before.low and number <= evicted[-1]
        ]
        freed = sum(gpus(evictions.victims[n]) for n in evicted)
        needed = sum(map(gpus, since)) - state.free + sum(map(gpus, came))
        if freed > needed:
            findings.append(f"{name}: {freed} GPUs were taken from victims, {needed} were needed")
    return findings


def running(api: Api, name: str) -> list[Object]:
    """The running pods of a PriorityClass that nothing ends."""
    return [
        one
        for one in api.list("Pod", fieldSelector="status.phase=Running")["items"]
        if of_class(one, name) and "deletionTimestamp" not in one["metadata"]
    ]


def of_class(pod: Object, name: str) -> bool:
    return bool(pod["spec"].get("priorityClassName") == name)


def on(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


def gpus(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
