"""Clusters with planted waste: the audit finds it under its cause, and mends free what they promise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from extender.cluster.census import CensusTaker
from extender.explain.gpu_use import Step, gpu_use
from extender.plan.audit import Audit, audit
from extender.plan.mends import Mender
from extender.plan.prices import NO_COSTS
from extender.source.prometheus import Use
from tests.extender.plan.clusters import GPU, Manifest, bad_mig_layout, node, pod, source_of

TAINT = {"taints": [{"key": "dedicated", "value": "infra", "effect": "NoSchedule"}]}
SPOT = {"node.kubernetes.io/lifecycle": "spot"}
IDLE_USE = {"stowage.dev/peak-gpu-memory": "4Gi", "stowage.dev/peak-gpu-compute": "5%"}
GOOD_USE = {"stowage.dev/peak-gpu-memory": "76Gi", "stowage.dev/peak-gpu-compute": "98%"}


class Planted(NamedTuple):
    """``waste``: the planted GPUs by step; ``frees``: what the mend of each step must free, if it can be
    tried."""

    items: list[Manifest]
    waste: Mapping[Step, float]
    frees: Mapping[Step, float] = {}


def full(prefix: str, count: int, gpus: int = 8, **more: Any) -> list[Manifest]:
    """Nodes whose GPUs are in good use."""
    items = [node(f"{prefix}-{n}", gpus, **more) for n in range(count)]
    return [
        *items,
        *(pod(f"{prefix}-job-{n}", f"{prefix}-{n}", gpus, annotations=GOOD_USE) for n in range(count)),
    ]


def cordoned(prefix: str) -> Planted:
    nodes = [node(f"{prefix}-{n}", 8, unschedulable=True) for n in range(2)]
    return Planted([*nodes, *full(f"{prefix}-full", 3)], {Step.CLOSED: 16}, {Step.CLOSED: 16})


def broken(prefix: str) -> Planted:
    gone, sick = node(f"{prefix}-gone", 8, devices={GPU: "0"}), node(f"{prefix}-sick", 8, devices={GPU: "6"})
    sick["status"]["capacity"] = {GPU: "8"}
    gone["status"]["capacity"] = {GPU: "8"}
    held = pod(f"{prefix}-held", f"{prefix}-sick", 6, annotations=GOOD_USE)
    return Planted([gone, sick, held, *full(f"{prefix}-full", 2)], {Step.BROKEN: 10})


def idle(prefix: str) -> Planted:
    nodes = [node(f"{prefix}-{n}", 8) for n in range(3)]
    return Planted([*nodes, *full(f"{prefix}-full", 2)], {Step.IDLE: 24}, {Step.IDLE: 24})


def fragmented(prefix: str) -> Planted:
    own = {"nodeSelector": {"pool": prefix}}
    nodes = [node(f"{prefix}-{n}", 8, labels={"pool": prefix}) for n in range(4)]
    half = [pod(f"{prefix}-half-{n}", f"{prefix}-{n}", 4, annotations=GOOD_USE, **own) for n in range(4)]
    waiting = [pod(f"{prefix}-large-{n}", gpus=8, **own) for n in range(2)]
    return Planted([*nodes, *half, *waiting], {Step.FRAGMENTED: 16}, {Step.FRAGMENTED: 16})


def more_than_fits(prefix: str) -> Planted:
    """Twelve GPUs in pieces of three, which no move puts together, for five pods with eight."""
    nodes = [node(f"{prefix}-{n}", 8) for n in range(4)]
    held = [pod(f"{prefix}-{n}", f"{prefix}-{n}", 5, annotations=GOOD_USE) for n in range(4)]
    waiting = [pod(f"{prefix}-w-{n}", gpus=8) for n in range(5)]
    return Planted([*nodes, *held, *waiting], {Step.FRAGMENTED: 12}, {Step.FRAGMENTED: 0})


def without_cpu(prefix: str) -> Planted:
    own = {"nodeSelector": {"pool": prefix}}
    nodes = [node(f"{prefix}-{n}", 8, labels={"pool": prefix}) for n in range(2)]
    eaters = [pod(f"{prefix}-etl-{n}", f"{prefix}-{n}", 0, cpu="62", owner="ReplicaSet") for n in range(2)]
    waiting = [pod(f"{prefix}-w-{n}", gpus=4, cpu="16", **own) for n in range(4)]
    return Planted([*nodes, *eaters, *waiting], {Step.CPU_OR_MEMORY: 16}, {Step.CPU_OR_MEMORY: 16})


def tainted(prefix: str) -> Planted:
    nodes = [node(f"{prefix}-{n}", 8, labels={"pool": prefix}, **TAINT) for n in range(2)]
    waiting = [pod(f"{prefix}-w-{n}", gpus=4, nodeSelector={"pool": prefix}) for n in range(4)]
    return Planted([*nodes, *waiting, *full(f"{prefix}-full", 2)], {Step.RULE: 16}, {Step.RULE: 16})


def selected(prefix: str) -> Planted:
    nodes = [node(f"{prefix}-{n}", 8, labels={"zone": "b"}) for n in range(2)]
    waiting = [pod(f"{prefix}-w-{n}", gpus=8, nodeSelector={"zone": "a"}) for n in range(2)]
    return Planted([*nodes, *waiting, *full(f"{prefix}-full", 1)], {Step.RULE: 16}, {Step.RULE: 16})


def mig(prefix: str) -> Planted:
    """Large instances wait for 10 x 3/7 GPUs, and 8/7 GPUs run as small ones: the rest is left over."""
    waiting = 10 * 3 / 7
    return Planted(bad_mig_layout(), {Step.MIG_LAYOUT: waiting}, {Step.MIG_LAYOUT: waiting})


def gated(prefix: str) -> Planted:
    own = {"nodeSelector": {"pool": prefix}}
    nodes = [node(f"{prefix}-{n}", 8, labels={"pool": prefix}) for n in range(2)]
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    waiting = [pod(f"{prefix}-w-{n}", gpus=8, **own, **gates) for n in range(2)]
    return Planted([*nodes, *waiting], {Step.GATED: 16}, {Step.GATED: 16})


def reserved(prefix: str) -> Planted:
    holder = pod(f"{prefix}-headroom", f"{prefix}-0", 8, owner="ReplicaSet")
    holder["spec"]["containers"][0]["image"] = "registry.k8s.io/pause:3.10"
    nominated = pod(f"{prefix}-nominated", gpus=8)
    nominated["status"]["nominatedNodeName"] = f"{prefix}-1"
    nodes = [node(f"{prefix}-{n}", 8) for n in range(2)]
    return Planted([*nodes, holder, nominated], {Step.RESERVED: 16})


def underused(prefix: str) -> Planted:
    nodes = [node(f"{prefix}-{n}", 8) for n in range(2)]
    held = [pod(f"{prefix}-{n}", f"{prefix}-{n % 2}", 1, annotations=IDLE_USE) for n in range(16)]
    return Planted([*nodes, *held], {Step.UNDERUSED: 16 * (1 - 1.2 * 0.05)})


def on_demand(prefix: str) -> Planted:
    again = {"annotations": {"stowage.dev/restartable": "true"}}
    nodes = [node(f"{prefix}-0", 8), node(f"{prefix}-spot", 8, labels=SPOT)]
    held = [pod(f"{prefix}-{n}", f"{prefix}-0", 4, **again) for n in range(2)]
    return Planted([*nodes, *held], {Step.CHEAPER: 8, Step.IDLE: 8}, {Step.CHEAPER: 8})


def job(name: str, gpus: int, **spec: Any) -> Manifest:
    template = {"spec": pod("", gpus=gpus)["spec"]}
    return {
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"template": template, **spec},
    }


def suspended(prefix: str) -> Planted:
    """Two Jobs, one of Kueue, and a job of Kubeflow; a Job that has ended waits for nothing."""
    nodes = [node(f"{prefix}-{n}", 8) for n in range(4)]
    jobs = [job(f"{prefix}-1", 8, suspend=True), job(f"{prefix}-2", 4, suspend=True, parallelism=2)]
    jobs[1]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "ml"}
    ended = job(f"{prefix}-ended", 8, suspend=True)
    ended["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    worker = {"replicas": 1, "template": {"spec": pod("", gpus=8)["spec"]}}
    replicas = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Worker": worker}}
    train = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": f"{prefix}-3", "namespace": "ml"},
        "spec": replicas,
    }
    return Planted([*nodes, *jobs, ended, train], {Step.GATED: 24, Step.IDLE: 8}, {Step.GATED: 24})


def quota_used_up(prefix: str) -> Planted:
    """A ReplicaSet and a Job whose pods the API server rejects; another team's quota has room."""
    nodes = [node(f"{prefix}-{n}", 8) for n in range(3)]
    serve = job(f"{prefix}-serve", 4, replicas=3) | {"kind": "ReplicaSet", "status": {"replicas": 1}}
    train = job(f"{prefix}-train", 8, parallelism=1, completions=4) | {"status": {"succeeded": 3}}
    free = job(f"{prefix}-free", 8, parallelism=1)
    free["metadata"]["namespace"] = "research"
    quotas = [
        {
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": team},
            "spec": {"hard": {f"requests.{GPU}": "8"}},
            "status": {"used": {f"requests.{GPU}": used}},
        }
        for team, used in (("ml", "8"), ("research", "0"))
    ]
    return Planted([*nodes, serve, train, free, *quotas], {Step.GATED: 16, Step.IDLE: 8}, {Step.GATED: 16})


def mixed(*parts: Planted) -> Planted:
    items = [item for part in parts for item in part.items]
    waste = {step: gpus for part in parts for step, gpus in part.waste.items()}
    return Planted(items, waste, {step: gpus for part in parts for step, gpus in part.frees.items()})


PLANTED = {
    "cordoned": cordoned("a"),
    "broken": broken("a"),
    "idle": idle("a"),
    "fragmented": fragmented("a"),
    "fragmented for good": more_than_fits("a"),
    "CPU used up": without_cpu("a"),
    "tainted": tainted("a"),
    "selector": selected("a"),
    "MIG layout": mig("a"),
    "gated": gated("a"),
    "reserved": reserved("a"),
    "underused": underused("a"),
    "suspended": suspended("a"),
    "quota used up": quota_used_up("a"),
    "on demand": on_demand("a"),
    "cordoned and fragmented": mixed(cordoned("a"), fragmented("b")),
    "CPU, a taint and broken": mixed(without_cpu("a"), tainted("b"), broken("c")),
    "fragmented, gated, underused and idle": mixed(fragmented("a"), gated("b"), underused("c")),
}


def audited(items: list[Manifest], by: str = "team", measured: Mapping[str, Use] | None = None) -> Audit:
    source = source_of(*items)
    source.add_unmade_pods(state := source.state())
    mender = Mender(source, state, measured or {})
    use = mender.with_use(asyncio.run(gpu_use(state, CensusTaker(state))))
    mends = dict(mender.mends(use, lambda what, part: None))
    return audit(state, "test", 0.0, use, mends, by, NO_COSTS)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_waste_is_found_under_its_cause_and_mended(name: str) -> None:
    planted = PLANTED[name]
    of_cluster = audited(planted.items)
    found = {line.step: line.gpus for line in of_cluster.steps}
    assert sum(found.values()) == pytest.approx(of_cluster.installed, abs=0.05)
    for step, gpus in planted.waste.items():
        assert found[step] >= 0.95 * gpus, found
        assert found[step] <= gpus + 1, found
    frees = {line.step: line.mend.frees for line in of_cluster.steps if line.mend}
    for step, gpus in planted.frees.items():
        assert frees[step] == pytest.approx(gpus, abs=1), of_cluster.steps


def steps_of(of_cluster: Audit) -> dict[Step, float]:
    return {line.step: line.gpus for line in of_cluster.steps if line.gpus}


def test_replicas_that_idle_could_be_fewer_but_for_one() -> None:
    """Of three replicas one is busy; of two idle ones one stays."""
    owners = {"a": ("serve-7d9f", 0.9), "b": ("serve-7d9f", 0.0), "c": ("serve-7d9f", 0.002)}
    owners |= {"d": ("lone-5c44", 0.0), "e": ("lone-5c44", 0.0)}
    pods = [pod(name, "node-0", 1, owner="ReplicaSet") for name in owners]
    for item in pods:
        item["metadata"]["ownerReferences"][0]["name"] = owners[item["metadata"]["name"]][0]
    use = {f"ml/{name}": Use(70_000.0, active) for name, (_, active) in owners.items()}
    found = audited([node("node-0", 5), *pods], measured=use)
    assert steps_of(found)[Step.CHEAPER] == 3
    (mend,) = (line.mend for line in found.steps if line.step is Step.CHEAPER)
    assert mend is not None
    assert mend.frees == 3
    assert "kubectl scale deployment serve --namespace ml --replicas 1" in mend.command
    assert "kubectl scale deployment lone --namespace ml --replicas 1" in mend.command


MIG = "nvidia.com/mig-3g.40gb"


def test_virtual_gpus_of_a_plugin_make_no_gpus_of_less_than_nothing() -> None:
    """kubecost/kubecost#1978: with aws-virtual-gpu-device-plugin the idle cost of a node was negative."""
    virtual = node("n", 1, devices={"k8s.amazonaws.com/vgpu": "10"})
    found = audited([virtual, *(pod(f"p{n}", "n", 3, resource="k8s.amazonaws.com/vgpu") for n in range(3))])
    assert sum(steps_of(found).values()) == pytest.approx(found.installed)
    assert min(steps_of(found).values()) > 0
