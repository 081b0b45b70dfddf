"""Nobody hides: what cannot be read of an object never makes more free, is shown, and ends with the object.

Each field of an object of each watched kind becomes too long, of another type, or too deep. The objects come
as lines of a watch and as items of a list, and what is free is what the verbs answer.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import product
from typing import Any

import pytest

from extender.k8s.manifest import Unreadable
from extender.k8s.objects import Kind, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.k8s.resource_claims import ResourceClaim
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS
from tests.examples import NIGHTLY, SEED
from tests.hostile.cluster import (
    GPU,
    HAMI,
    MIG,
    OWN,
    PLAIN,
    WATCHED,
    Cluster,
    Manifest,
    usual_node,
    usual_nodes,
    usual_pod,
)

Path = tuple[str | int, ...]
DEEP = 5000
"""Levels: more than any decoder of Python follows."""
DRA, KOORDINATOR, NUMA = "dra", "koordinator", "numa"
ALL = [PLAIN, OWN, HAMI, MIG, DRA, KOORDINATOR, NUMA]
SHARE, INDICES = "stowage.dev/gpu-compute", "stowage.dev/gpu-indices"
HAMI_GIVEN = "hami.io/vgpu-devices-allocated"
T4 = {
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory": "15Gi",
    "koordinator.sh/gpu-memory-ratio": "100",
}
GUARANTEED = {"cpu": "4", "memory": "4Gi", GPU: "2"}


def meta(name: str, **more: Any) -> Manifest:
    owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "j-1", "controller": True}
    known = {"name": name, "namespace": "d", "uid": f"uid-{name}", "resourceVersion": "7"}
    times = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return known | times | {"labels": {"app": "a"}, "annotations": {}, "ownerReferences": [owner]} | more


def running(name: str, node: str, amounts: Manifest, annotations: Manifest | None = None) -> Manifest:
    """A pod with most of the fields that Stowage reads."""
    pod = usual_pod(name, amounts, node=node)
    labels = {"app": "a", "scheduling.x-k8s.io/pod-group": "g"}
    pod["metadata"] = meta(name, annotations=annotations or {}, labels=labels)
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod["spec"] |= {
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"}],
        "affinity": {"nodeAffinity": required, "podAffinity": {"x": [{}]}},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"disk": "ssd"},
        "overhead": {"cpu": "100m"},
        "priority": 5,
        "priorityClassName": "c",
        "preemptionPolicy": "Never",
        "schedulerName": "default-scheduler",
        "schedulingGates": [{"name": "gate"}],
        "schedulingGroup": {"podGroupName": "g"},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "volumes": [{"name": "v", "hostPath": {"type": "Socket"}}],
    }
    held = {"name": "main", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "3"}}
    devices = [{"name": GPU, "resources": [{"resourceID": "GPU-1"}]}]
    pod["status"] |= {
        "conditions": [{"type": "PodScheduled", "status": "True", "reason": "r", "lastTransitionTime": "x"}],
        "containerStatuses": [held | {"allocatedResourcesStatus": devices}],
        "initContainerStatuses": [{"name": "i"}],
        "nominatedNodeName": node,
        "startTime": "2026-01-01T00:00:00Z",
    }
    return pod


def claim(name: str, devices: list[str], **config: Any) -> Manifest:
    exactly = {"deviceClassName": "gpu", "count": 2, "allocationMode": "ExactCount"}
    results = [{"request": "r", "driver": "gpu.x", "pool": DRA, "device": one} for one in devices]
    allocation = {"allocation": {"devices": {"results": results}}} if devices else {}
    opaque = [{"opaque": {"driver": "gpu.x", "parameters": {"a": 1}}}]
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}], "config": opaque}}
    return {"metadata": meta(name), "spec": spec, "status": allocation}


def claiming(name: str, of: str) -> Manifest:
    return usual_pod(name, {}, resourceClaims=[{"name": "c", "resourceClaimName": of}])


PART = {GPU: "1", "nvidia.com/gpumem": "3000"}
TAINT = {
    "metadata": {"name": "t"},
    "spec": {"deviceSelector": {"driver": "gpu.x"}, "taint": {"key": "k", "effect": "NoSchedule"}},
}
AMOUNTS = [{"name": name, "capacity": "9", "allocatable": "9", "available": "1"} for name in (GPU, "cpu")]
TOPOLOGY = {
    "metadata": {"name": NUMA, "resourceVersion": "1"},
    "topologyPolicies": ["SingleNUMANodeContainerLevel"],
    "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
    "zones": [{"name": "node-0", "type": "Node", "resources": AMOUNTS}],
}
BUDGET = {
    "metadata": meta("b"),
    "spec": {
        "selector": {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}
    },
    "status": {"disruptionsAllowed": 0, "disruptedPods": {"other": "2026-01-01T00:00:00Z"}},
}
TOLERATES = "preemption-toleration.scheduling.x-k8s.io/"
CLASS = {
    "metadata": {
        "name": "c",
        "annotations": {
            f"{TOLERATES}minimum-preemptable-priority": "1000",
            f"{TOLERATES}toleration-seconds": "-1",
        },
    },
    "value": 5,
    "preemptionPolicy": "PreemptLowerPriority",
}
GROUP = {"metadata": meta("g"), "spec": {"minMember": 2}}


def others() -> Iterator[tuple[Kind, Manifest]]:
    """The objects around those that are changed."""
    for node in usual_nodes():
        yield "Node", node
    yield "Node", usual_node(DRA, {}, {"zone": "a"})
    yield (
        "Node",
        usual_node(
            KOORDINATOR,
            {name: str(2 * int(n)) if n == "100" else "30Gi" for name, n in T4.items()},
            {"node.koordinator.sh/gpu-model": "Tesla-T4"},
        ),
    )
    yield (
        "Node",
        usual_node(NUMA, {GPU: "4"}, {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "4"}),
    )
    yield (
        "DeviceClass",
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
    )
    yield "ResourceClaim", claim("wanted", [])
    pools = {"name": DRA, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"g{n}", "attributes": {"model": {"string": "a"}}} for n in range(4)]
    spec = {"driver": "gpu.x", "pool": pools, "nodeName": DRA, "devices": devices}
    yield "ResourceSlice", {"metadata": {"name": "s"}, "spec": spec}
    gpus = [{"type": "gpu", "id": f"GPU-k{n}", "minor": n, "health": True, "resources": T4} for n in range(2)]
    yield "Device", {"metadata": {"name": KOORDINATOR}, "spec": {"devices": gpus}}


PROBES = {
    "one": usual_pod("one"),
    "all": usual_pod("all", {GPU: "8"}),
    "own": usual_pod("own", {}, annotations={"stowage.dev/gpus": "8"}),
    "hami": usual_pod(
        "hami", {GPU: "4", "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100"}
    ),
    "mig": usual_pod("mig", {"nvidia.com/mig-1g.10gb": "7"}),
    "koordinator": usual_pod(
        "koordinator", {"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"}
    ),
    "cpu": usual_pod("cpu", {GPU: "1", "cpu": "62"}),
    "numa": usual_pod("numa", GUARANTEED),
}
QUESTIONS = {
    name: json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ALL}).encode() for name, pod in PROBES.items()
}


class Books:
    """A cluster, and what is free in it."""

    def __init__(self, runner: asyncio.Runner, *around: tuple[Kind, Manifest], bind: bool = True) -> None:
        self.cluster = Cluster(runner, bind=bind)
        self.state = self.cluster.engine.state
        for kind, manifest in (*others(), *around):
            self.cluster.hear(kind, "ADDED", manifest)

    def hear(self, kind: Kind, change: str, text: bytes) -> None:
        self.cluster.hear_line(kind, b'{"type": "%b", "object": %b}\n' % (change.encode(), text))

    def free(self, probe: str) -> set[str]:
        """The nodes where a pod fits, or gets devices, or the pods that may be evicted."""
        if probe in QUESTIONS:
            (reply,) = self.cluster.answer_all([("filter", QUESTIONS[probe])])
            return set(json.loads(reply.body)["NodeNames"] or ())
        if probe == "claim":
            nodes = [(name, self.state.nodes.labels_of(name)) for name in ALL]
            pod = PodManifest.from_value(claiming("p", "wanted")).record()
            found = self.state.simulator.forecasts(pod, nodes)
            return {name for name, one in zip(ALL, found, strict=True) if one.devices}
        victim = self.state.pods["d/victim"]
        if probe == "budget":
            return {"victim"} - {"victim" * self.state.budgets.violations([victim])[0]}
        if probe == "gang":
            gang = self.state.gangs.gang_of(victim)
            return {"victim"} if gang is None or gang.minimum < self.state.gangs.running(gang.key) else set()
        urgent = usual_pod("urgent", {GPU: "8"}, priority=10)
        victims = {PLAIN: {"Pods": [{"UID": victim.uid}], "NumPDBViolations": 0}}
        message = {"Pod": urgent, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        (reply,) = self.cluster.answer_all([("preempt", json.dumps(message).encode())])
        return set(json.loads(reply.body)["NodeNameToMetaVictims"] or ())


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Each field, and each part of it."""
    if path:
        yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, part in entries:
        yield from paths(part, (*path, key))


def changed(manifest: Manifest, path: Path) -> Iterator[bytes]:
    """The object as JSON, with another value there."""
    copy = deepcopy(manifest)
    around: Any = copy
    for step in path[:-1]:
        around = around[step]
    was = around[path[-1]]
    for value in (7, [1], {"a": 1}, True, 10**30, "a", "x" * 5000):
        is_like_it = isinstance(value, str | int) and isinstance(was, str | int)  # and may be a valid one
        if (type(value) is not type(was) and not (is_like_it and value in (7, "a"))) or value == "x" * 5000:
            around[path[-1]] = value
            yield json.dumps(copy).encode()
    for value, deep in (("DEEP", "[" * DEEP + "]" * DEEP), ("DEEP", '{"a":' * DEEP + "0" + "}" * DEEP)):
        around[path[-1]] = {**was, "free": value} if isinstance(was, dict) else value
        yield json.dumps(copy).replace('"DEEP"', deep).encode()


def cases(manifest: Manifest) -> list[tuple[Path, bytes]]:
    """All, or some of them for ``make test``."""
    found = [(path, text) for path in paths(manifest) for text in changed(manifest, path)]
    return found if NIGHTLY else random.Random(SEED).sample(found, min(12, len(found)))


def is_readable(kind: Kind, text: bytes) -> bool:
    try:
        WATCHED[kind].manifest.from_json(text)
    except Unreadable:
        return False
    return True


POD = running("p", PLAIN, {GPU: "1"})
CASES: dict[str, tuple[Kind, Manifest, str]] = {
    "pod with GPUs": ("Pod", POD, "all"),
    "pod with CPUs": ("Pod", POD, "cpu"),
    "pod with a share": ("Pod", running("p", OWN, {}, {SHARE: "100m", INDICES: "0"}), "own"),
    "pod of HAMi": ("Pod", running("p", HAMI, PART, {HAMI_GIVEN: "GPU-0,NVIDIA,3000,0:;"}), "hami"),
    "pod with an instance": ("Pod", running("p", MIG, {"nvidia.com/mig-1g.10gb": "1"}), "mig"),
    "claim": ("ResourceClaim", claim("held", ["g0", "g1", "g2"]), "claim"),
    "taint": ("DeviceTaintRule", TAINT, "claim"),
    "topology": ("NodeResourceTopology", TOPOLOGY, "numa"),
    "budget": ("PodDisruptionBudget", BUDGET, "budget"),
    "priority class": ("PriorityClass", CLASS, "preempt"),
    "group": ("CoschedulingPodGroup", GROUP, "gang"),
}
"""What takes something, or protects it, and a question whose answer shows that."""
OFFERS: dict[str, tuple[Kind, Manifest, str]] = {
    "node": ("Node", next(one for kind, one in others() if one["metadata"]["name"] == PLAIN), "all"),
    "slice": ("ResourceSlice", next(one for kind, one in others() if kind == "ResourceSlice"), "claim"),
    "class": ("DeviceClass", next(one for kind, one in others() if kind == "DeviceClass"), "claim"),
    "device": ("Device", next(one for kind, one in others() if kind == "Device"), "koordinator"),
}
UNIDENTIFIED = {
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("spec",),
    ("spec", "nodeName"),
}
"""Without them nobody can say which object it is, or where it runs. The API server has none of these."""


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_read_counts_as_the_larger_use(runner: asyncio.Runner, name: str) -> None:
    kind, manifest, probe = CASES[name]
    victim = running("victim", PLAIN, {GPU: "8"})
    del victim["spec"]["schedulingGroup"]
    around: tuple[tuple[Kind, Manifest], ...] = () if kind == "Pod" else (("Pod", victim),)
    books, good = Books(runner, *around), json.dumps(manifest).encode()
    empty = books.free(probe)
    books.hear(kind, "ADDED", good)
    held = books.free(probe)
    assert held < empty or probe == "gang"  # without its group, all of a gang must run
    books.hear(kind, "DELETED", good)
    assert (books.free(probe), dict(books.state.problems)) == (empty, {})
    readable = cache(is_readable)
    for (path, text), known in product(cases(manifest), (False, True)):
        if known:
            books.hear(kind, "ADDED", good)
        books.hear(kind, "MODIFIED", text)
        # A topology that was never readable says nothing, as if it were not there.
        if (known or path not in UNIDENTIFIED) and (known or kind != "NodeResourceTopology"):
            assert books.free(probe) <= held, (path, text[:2000])
        if path not in UNIDENTIFIED:
            assert readable(kind, text) or books.state.problems, (path, text[:2000])
        books.hear(kind, "DELETED", text)
        if path in UNIDENTIFIED:
            books.hear(kind, "DELETED", good)
        assert (books.free(probe), dict(books.state.problems)) == (empty, {}), (path, text[:2000])


@pytest.mark.parametrize("name", OFFERS)
def test_what_cannot_be_read_offers_nothing_more(runner: asyncio.Runner, name: str) -> None:
    kind, manifest, probe = OFFERS[name]
    # Only Koordinator's scheduler assigns its GPUs.
    books, good = Books(runner, bind=name != "device"), json.dumps(manifest).encode()
    offered = books.free(probe)
    assert offered
    for path, text in cases(manifest):
        books.hear(kind, "MODIFIED", text)
        assert books.free(probe) <= offered, (path, text[:2000])
        if path not in UNIDENTIFIED:
            assert is_readable(kind, text) or books.state.problems, (path, text[:2000])
        books.hear(kind, "DELETED", text)
        books.hear(kind, "ADDED", good)
        assert (books.free(probe), dict(books.state.problems)) == (offered, {}), (path, text[:2000])


OWNERS = {"uid": {"uid": "u" * 400}, "name": {"name": "n" * 400}, "many": {"uid": "u" * 400}}


@pytest.mark.parametrize("what", OWNERS)
@pytest.mark.parametrize("name", [one for one, (kind, *_) in CASES.items() if kind == "Pod"])
def test_a_long_owner_hides_no_pod(runner: asyncio.Runner, name: str, what: str) -> None:
    """The API server limits neither. Nor does it close the node to others."""
    _, manifest, probe = CASES[name]
    books, good = Books(runner), json.dumps(manifest).encode()
    empty = books.free(probe)
    books.hear("Pod", "ADDED", good)
    held, anywhere = books.free(probe), books.free("one")
    owner = manifest["metadata"]["ownerReferences"][0] | OWNERS[what]
    long = deepcopy(manifest)
    long["metadata"]["ownerReferences"] = [owner] * (2000 if what == "many" else 1)
    for known in (True, False):
        books.hear("Pod", "MODIFIED", json.dumps(long).encode())
        assert (books.free(probe), books.free("one")) == (held, anywhere), known
        shown = books.cluster.send("GET", "/debug/problems").json()["problems"]
        assert [one["about"] for one in shown if "ownerReferences" in one["text"]] == ["d/p"]
        assert "ownerReferences" in books.cluster.send("GET", "/debug/overview").text
        assert books.cluster.send("GET", "/debug/pods/d/p").status_code == 200
        books.hear("Pod", "DELETED", json.dumps(long).encode())
        assert (books.free(probe), dict(books.state.problems)) == (empty, {})


def test_a_deep_value_hides_nothing_else() -> None:
    """Parameters of a claim are free: the decoder refused the whole list, for ever."""
    deep = json.dumps(claim("deep", ["g0"])).replace('{"a": 1}', '{"a":' * DEEP + "0" + "}" * DEEP)
    watch = ListWatch(WATCHED_KINDS["ResourceClaim"])
    watch.next_request()
    text = f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{json.dumps(claim("c", ["g1"]))}, {deep}]}}'
    *claims, _ = watch.page(text.encode())
    watch.next_request()
    claims += watch.chunk(f'{{"type": "MODIFIED", "object": {deep}}}\n'.encode())
    records = [event.obj for event in claims if isinstance(event, Upserted)]
    assert [one.key for one in records] == ["d/c", "d/deep", "d/deep"]
    assert all(isinstance(one, ResourceClaim) and one.allocation and not one.problem for one in records)
    assert watch.watching
