"""Hostile nodes and Koordinator Devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples import examples, some
from tests.hostile.cluster import (
    GPU,
    PLAIN,
    SAID,
    Budget,
    Cluster,
    Manifest,
    usual_node,
    usual_nodes,
    usual_pod,
)
from tests.hostile.test_pods import QUANTITIES, TEXTS

KEYS = [
    *(
        "hami.io/node-nvidia-register",
        "hami.io/node-handshake",
        "hami.io/device-cordon",
        "hami.io/mutex.lock",
    ),
    *("volcano.sh/node-vgpu-register", "nvidia.com/node-device-register", "nvidia.com/node-config-info"),
]
"""Annotations of nodes that Stowage reads."""
LABELS = [
    *("nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"),
    *("nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/cuda.runtime-version.major"),
    *("nvidia.com/gpu.clique", "stowage.dev/gpu-sharing", "stowage.dev/replicas-per-container"),
    *("cloud.google.com/gke-accelerator", "cloud.google.com/gke-max-shared-clients-per-gpu"),
    *("node.koordinator.sh/gpu-model", "node.kubernetes.io/instance-type", "amd.com/gpu.vram"),
    *("nvlink.feature.node.kubernetes.io/islands", "gpu.nvidia.com/class"),
]
USUAL = usual_nodes()[2] | {"metadata": usual_nodes()[2]["metadata"] | {"name": "usual"}}
VALUES = [
    "9" * 63,
    "-1",
    "0",
    "1e9",
    "٣" * 30,
    "a" * 63,
    "0_" * 31,
    "0.1_2.3",
    "all-" * 15,
    "1g.10gb" * 9,
    "",
]


def registered(gpus: int, /, **fields: Any) -> str:
    """HAMi's register of GPUs with these fields."""
    usual = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-A100", "health": True}
    return json.dumps([{"id": f"GPU-{n}", "index": n} | usual | fields for n in range(gpus)])


REGISTERS: dict[str, Callable[[], str]] = {
    "GPUs": lambda: registered(1600),
    "shares": lambda: registered(4, count=10**9),
    "memory": lambda: registered(4, devmem=10**15),
    "negative": lambda: registered(4, devmem=-1, count=-1),
    "index": lambda: registered(4, index=10**9),
    "one index": lambda: registered(4, index=0, id="GPU-0"),
    "digits": lambda: '[{"id": "GPU-0", "count": %s}]' % ("9" * 4400),
    "type": lambda: registered(4, type="A" * 40_000),
    "wrong types": lambda: registered(4, count=[[]], devmem={}, type=[], index="x", health=7),
    "profiles": lambda: registered(
        2,
        mode="mig",
        migProfiles=[
            {
                "name": f"1g.{n}gb",
                "memoryMB": 1,
                "core": 1,
                "sliceCount": 1,
                "placements": [{"start": k, "size": 1} for k in range(32)],
            }
            for n in range(50)
        ],
    ),
    "old form": lambda: "GPU-0,10,40960,100,NVIDIA,0,true:" * 6000,
    "old form, many fields": lambda: "," * 250_000,
}


def labelled(count: int) -> dict[str, str]:
    return {f"nvidia.com/l{n}": "x" * 63 for n in range(count)}


def hostile(**members: Any) -> Manifest:
    return usual_node("hostile", **({"resources": {GPU: "8"}, "labels": {}} | members))


NODES: dict[str, Callable[[], list[Manifest]]] = {
    **{
        f"text {name}": lambda text=text: [
            hostile(annotations={key: text}, resources={GPU: "40"}) for key in KEYS
        ]
        for name, text in TEXTS.items()
    },
    **{
        f"register {name}": lambda make=make: [
            hostile(annotations={"hami.io/node-nvidia-register": make()}, resources={GPU: "40"})
        ]
        for name, make in REGISTERS.items()
    },
    **{
        f"label {value[:9]!r}": lambda value=value: [hostile(labels={key: value}) for key in LABELS]
        for value in VALUES
    },
    **{
        f"quantity {text[:12]!r}": lambda text=text: [
            hostile(resources={name: text})
            for name in (GPU, "cpu", "memory", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared")
        ]
        for text in QUANTITIES
    },
    "labels": lambda: [hostile(labels=labelled(15_000))],
    "resources": lambda: [hostile(resources={f"nvidia.com/mig-{n}g.1gb": "7" for n in range(20_000)})],
    "taints": lambda: [hostile() | {"spec": {"taints": [{"key": f"k{n}"} for n in range(20_000)]}}],
    "conditions": lambda: [
        hostile()
        | {"status": {"allocatable": {GPU: "8"}, "conditions": [{"type": f"c{n}"} for n in range(20_000)]}}
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", some(NODES))
def test_a_hostile_node_costs_little_and_harms_no_other(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    cluster = Cluster(runner)
    budget = Budget(cluster)
    pod, others = usual_pod("n"), cluster.books()
    problems = []
    for node in NODES[kind]():
        caplog.clear()
        problem = budget.of_event("Node", "ADDED", node, USUAL)
        if problem:
            problems.append(problem)
            cluster = Cluster(runner)
            budget = Budget(cluster)
            continue
        if len(caplog.text) > 2 * SAID:
            problems.append(f"{len(caplog.text)} characters of log")
        assert PLAIN in cluster.filter(pod, [PLAIN, "hostile"])["NodeNames"]
        cluster.plan()
        cluster.ask_all(pod)
        shown = cluster.send("GET", "/debug/nodes/hostile")
        if len(shown.content) > 100_000:
            problems.append(f"{len(shown.content)} characters of the node shown")
        cluster.hear("Node", "DELETED", node)
        assert cluster.books() == others
    assert not problems, "\n".join(problems)
    cluster.alive()


KOORDINATOR_DEVICES: dict[str, Any] = {
    "many": [{"type": "gpu", "minor": n, "id": f"GPU-{n}", "health": True} for n in range(15_000)],
    "one number": [{"type": "gpu", "minor": 0, "id": f"GPU-{n}", "health": True} for n in range(15_000)],
    "large numbers": [{"type": "gpu", "minor": 1 << 60, "id": "GPU", "health": True}],
    "negative": [{"type": "gpu", "minor": -1, "id": "GPU", "health": True}],
    "resources": [
        {
            "type": "gpu",
            "minor": 0,
            "health": True,
            "resources": {f"koordinator.sh/r{n}": "9" * 99 for n in range(9000)},
        }
    ],
    "ids": [{"type": "gpu", "minor": 0, "id": "G" * 1_000_000, "health": True}],
    **{
        f"quantity {text[:12]!r}": [
            {"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-memory": text}}
        ]
        for text in QUANTITIES
    },
}


@pytest.mark.parametrize("kind", some(KOORDINATOR_DEVICES))
def test_a_hostile_koordinator_device(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    cluster = Cluster(runner)
    cluster.hear("Node", "ADDED", hostile(resources={"koordinator.sh/gpu-core": "800", GPU: "8"}))
    budget = Budget(cluster)
    device = {"metadata": {"name": "hostile"}, "spec": {"devices": KOORDINATOR_DEVICES[kind]}}
    caplog.clear()
    assert budget.of_event("Device", "ADDED", device) == ""
    assert len(caplog.text) <= 2 * SAID
    cluster.plan()
    cluster.alive()
    assert cluster.send("GET", "/debug/nodes/hostile").status_code == 200


def test_nodes_of_many_models_and_resources(runner: asyncio.Runner) -> None:
    """A node that changes its model and its resources 300 times leaves no memory behind."""
    cluster = Cluster(runner)
    budget = Budget(cluster)
    for n in range(examples(300, least=160)):
        labels = {"nvidia.com/gpu.product": f"NVIDIA-X{n}", "nvidia.com/gpu.memory": str(1000 + n)}
        cluster.hear(
            "Node", "MODIFIED", hostile(resources={f"nvidia.com/mig-{n}g.{n}gb": "1"}, labels=labels)
        )
        cluster.filter(usual_pod("n"))
    cluster.hear("Node", "DELETED", hostile())
    assert budget.of_event("Node", "ADDED", usual_nodes()[0] | {"metadata": {"name": "new"}}) == ""
    assert budget.of_verbs(usual_pod("n")) == ""
    fleet = cluster.engine.state.fleet
    assert len(fleet.names.resources) < 150
    assert len(fleet.names.kinds) < 150
