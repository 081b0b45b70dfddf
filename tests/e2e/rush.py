"""A rush: 100 nodes with 800 GPUs of mixed kinds, and 1,500 pods of mixed shapes that arrive at once.

The labels are those of GPU feature discovery, from the label sets in the tests of the inventory. The pods
request slightly more of every kind than there is, so some pods must wait.
"""

import json
import random
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .controlplane.api import Object
from .workload import node, pod

LABEL_FILE = Path(__file__).parents[1] / "extender" / "data" / "node-labels.json"
LABEL_SETS = {entry["id"]: entry["labels"] for entry in json.loads(LABEL_FILE.read_text())["nodes"]}
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SMALL, MEDIUM, LARGE = (f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb"))
H100, A100, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S"
H100_SLICE, T4_SHARED = f"{H100}-MIG-1g.10gb", "Tesla-T4-SHARED"


@dataclass(slots=True, frozen=True)
class Kind:
    """Nodes of one kind: their label set, the labels that differ from it, and their devices."""

    name: str
    count: int
    labels: str
    different: dict[str, str]
    devices: dict[str, int]


def _like_h100(product: str, family: str, memory_mib: int) -> dict[str, str]:
    return {f"{GPU}.product": product, f"{GPU}.family": family, f"{GPU}.memory": str(memory_mib)}


EIGHT = {f"{GPU}.count": "8"}
KINDS = [
    Kind("h100", 40, "h100-sxm-8-whole", {}, {GPU: 8}),
    Kind("balanced", 10, "h100-8-mixed-all-balanced", {}, {GPU: 0, SMALL: 16, MEDIUM: 8, LARGE: 8}),
    Kind("2-of-8", 5, "h100-8-mixed-2-of-8", {}, {GPU: 6, SMALL: 4, MEDIUM: 2, LARGE: 2}),
    Kind("single", 5, "h100-8-single-1g.10gb", {}, {GPU: 56}),
    Kind("a100", 15, "h100-sxm-8-whole", _like_h100(A100, "ampere", 81920), {GPU: 8}),
    Kind("l40s", 15, "h100-sxm-8-whole", _like_h100(L40S, "ada-lovelace", 46068), {GPU: 8}),
    Kind("t4", 5, "t4-time-sliced-4", EIGHT, {GPU: 32}),
    Kind("t4-renamed", 5, "t4-time-sliced-4-renamed", EIGHT, {GPU: 0, SHARED: 32}),
]


def nodes() -> list[Object]:
    return [
        node(f"{kind.name}-{number:02}", kind.devices, labels=LABEL_SETS[kind.labels] | kind.different)
        for kind in KINDS
        for number in range(kind.count)
    ]


def pods() -> list[Object]:
    """The pods in a random order that is the same in every run."""
    shapes = [
        _alike("train", 15, {GPU: 8}, cpu="96", product=H100),
        _alike("tune-4", 20, {GPU: 4}, product=H100),
        _alike("tune-2", 30, {GPU: 2}, cpu="16", product=H100),
        _alike("tune-1", 40, {GPU: 1}, product=H100),
        _alike("prepare", 10, {GPU: 1}, product=H100, prepares_with={GPU: 2}),
        _alike("evaluate-8", 5, {GPU: 8}, product=A100),
        _alike("evaluate-2", 20, {GPU: 2}, product=A100),
        _alike("evaluate-1", 50, {GPU: 1}, product=A100),
        _alike("render", 80, {GPU: 1}, product=L40S),
        _alike("render-2", 15, {GPU: 2}, product=L40S),
        _alike("encode", 20, {GPU: 1}, cpu="60", product=L40S),  # two of them leave six GPUs without CPU
        _alike("notebook", 265, {GPU: 1}, product=H100_SLICE),
        _alike("lesson", 155, {GPU: 1}, product=T4_SHARED),
        _alike("student", 170, {SHARED: 1}),
        _alike("embed", 170, {SMALL: 1}),
        _alike("rerank", 80, {MEDIUM: 1}),
        _alike("chat", 95, {LARGE: 1}),
        _alike("chat-and-embed", 10, {SMALL: 1, MEDIUM: 1}),
        _alike("too-large", 3, {GPU: 64}),
        _alike("anywhere", 247, {GPU: 1}),
    ]
    mixed = list(chain.from_iterable(shapes))
    random.Random(1).shuffle(mixed)
    return mixed


def _alike(
    name: str,
    count: int,
    resources: dict[str, int],
    *,
    cpu: str = "1",
    product: str | None = None,
    prepares_with: dict[str, int] | None = None,
) -> list[Object]:
    return [
        pod(f"{name}-{number:03}", resources, cpu=cpu, product=product, prepares_with=prepares_with)
        for number in range(count)
    ]
