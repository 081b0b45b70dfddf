"""The nodes of a soak: some of each way to offer GPUs."""

import random

from ..controlplane.api import Object
from ..dra_devices import whole_node
from ..hami_nodes import hami_mig_node, hami_node
from ..rush import LABEL_SETS, LARGE, MEDIUM, SHARED, SMALL
from ..sharing import GPU, PRODUCT
from ..workload import node

MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
WHOLE, MIXED, SINGLE, REPLICAS, RENAMED = 36, 4, 2, 3, 2
OWN, HAMI, HAMI_MIG, GPUSHARE, CLAIMS, PIECES = 5, 6, 3, 3, 3, 6
LAYOUTS = ({SMALL: 16, MEDIUM: 8, LARGE: 8}, {SMALL: 20, MEDIUM: 12, LARGE: 4})
"""What a node with MIG instances has, before and after it is re-partitioned."""
POOL = "soak/pool"  # the label that pods select where a resource has one name on nodes of several kinds

EIGHT = {f"{GPU}.count": "8"}


def nodes() -> list[Object]:
    """All nodes. Their names begin with their kind."""
    own = {"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"} | PRODUCT
    t4, renamed = LABEL_SETS["t4-time-sliced-4"] | EIGHT, LABEL_SETS["t4-time-sliced-4-renamed"] | EIGHT
    made = [
        *_many("whole", WHOLE, {GPU: 8}, LABEL_SETS["h100-sxm-8-whole"]),
        *_many("mixed", MIXED, {GPU: 0} | LAYOUTS[0], LABEL_SETS["h100-8-mixed-all-balanced"]),
        *_many("single", SINGLE, {GPU: 56}, LABEL_SETS["h100-8-single-1g.10gb"]),
        *_many("replicas", REPLICAS, {GPU: 32}, t4),
        *_many("renamed", RENAMED, {GPU: 0, SHARED: 32}, renamed),
        *_many("own", OWN, {}, own),
        *(hami_node(f"hami-{n}", 4, slots=10) for n in range(HAMI)),
        *(hami_mig_node(f"himig-{n}", 4) for n in range(HAMI_MIG)),
        *_many("gpushare", GPUSHARE, {MEMORY: 8 * 80, COUNT: 8}, {}),
        *(whole_node(f"claims-{n}", 8)[0] for n in range(CLAIMS)),
        *_many("pieces", PIECES, {GPU: 8}, LABEL_SETS["h100-sxm-8-whole"]),
    ]
    for one in made:
        one["metadata"]["labels"][POOL] = kind_of(one["metadata"]["name"])
    return made


def slices() -> list[Object]:
    """The devices of the nodes for claims."""
    return [whole_node(f"claims-{n}", 8)[1] for n in range(CLAIMS)]


def names(kind: str) -> list[str]:
    """The nodes of a kind."""
    return [one["metadata"]["name"] for one in nodes() if kind_of(one["metadata"]["name"]) == kind]


def one_of(kind: str, pick: float) -> str:
    """A node of this kind; ``pick`` in [0, 1)."""
    found = names(kind)
    return found[int(pick * len(found))]


def kind_of(node_name: str) -> str:
    return node_name.rpartition("-")[0]


def draw_for(seed: int, number: int) -> random.Random:
    """The random numbers of one pod."""
    return random.Random(f"pod {seed} {number}")


def _many(kind: str, count: int, resources: dict[str, int], labels: dict[str, str]) -> list[Object]:
    return [node(f"{kind}-{n}", resources, labels=labels) for n in range(count)]
