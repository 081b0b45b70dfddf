"""Each limit on what an object contains: what reaches it is read, one more is a problem with a short text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Kind
from extender.untrusted import limits
from extender.untrusted.limits import PROBLEM
from tests.extender.builders import make_node, make_state
from tests.extender.dra.claims import allocated, many, request, selectors
from tests.extender.dra.nvidia import gpu
from tests.hostile.cluster import GPU, WATCHED, Manifest, usual_node, usual_pod
from tests.hostile.objects import budget, claim, containers, device_slice, reported, resources

Make = Callable[[int], Manifest]


def pod(**spec: Any) -> Manifest:
    return usual_pod("p", **spec)


def claimed(status: Manifest) -> Manifest:
    return claim("c", {"requests": [request()]}) | {"status": status}


def one_device(**more: Any) -> Manifest:
    return device_slice("n", devices=[gpu(0) | more])


def topology(zones: int, amounts: int) -> Manifest:
    rows = [{"name": f"r{n}", "capacity": "1", "allocatable": "1", "available": "1"} for n in range(amounts)]
    made = [{"name": f"node-{n}", "type": "Node", "resources": rows} for n in range(zones)]
    policy = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
    return {"metadata": {"name": "n"}, "attributes": policy, "zones": made}


def capacity(count: int) -> Manifest:
    policy = {"default": "1", "validValues": [f"{n + 1}" for n in range(count)]}
    return one_device(capacity={"memory": {"value": "80Gi", "requestPolicy": policy}})


CASES: dict[str, tuple[Kind, Make]] = {
    "CONTAINERS": ("Pod", lambda count: pod(containers=containers(count))),
    "RESOURCES": ("Pod", lambda count: usual_pod("p", resources(count - 2))),
    "POD_RESOURCES": (
        "Pod",
        lambda count: pod(
            containers=[*containers(7, **resources(48)), *containers(1, **resources(count - 336))]
        ),
    ),
    "SELECTOR_ITEMS": ("Pod", lambda count: pod(nodeSelector={f"k{n}": "v" for n in range(count)})),
    "POD_CLAIMS": (
        "Pod",
        lambda count: pod(resourceClaims=[{"name": f"c{n}", "resourceClaimName": "x"} for n in range(count)]),
    ),
    "REPORTED_DEVICES": ("Pod", lambda count: pod() | {"status": reported(count)}),
    "KEY": ("Pod", lambda count: usual_pod("p", {GPU: "1", "example.com/r": f"{1:0{count}}"})),
    "NODE_TAINTS": (
        "Node",
        lambda count: (
            usual_node("n", {}, {}) | {"spec": {"taints": [{"key": f"k{n}"} for n in range(count)]}}
        ),
    ),
    "CLAIM_REQUESTS": ("ResourceClaim", lambda count: claim("c", many(*[request()] * count))),
    "CLAIM_ALTERNATIVES": (
        "ResourceClaim",
        lambda count: claim(
            "c",
            many({"firstAvailable": [request()["exactly"] | {"name": f"s{n}"} for n in range(count)]}),
        ),
    ),
    "CLAIM_CONSTRAINTS": (
        "ResourceClaim",
        lambda count: claim(
            "c", many(request(), constraints=[{"matchAttribute": "gpu.nvidia.com/type"}] * count)
        ),
    ),
    "CLAIM_RESULTS": (
        "ResourceClaim",
        lambda count: claimed(allocated(*({"device": f"gpu-{n}"} for n in range(count)))),
    ),
    "CLAIM_USERS": (
        "ResourceClaim",
        lambda count: claimed({"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}] * count}),
    ),
    "SELECTORS": ("ResourceClaim", lambda count: claim("c", many(request(**selectors(*["true"] * count))))),
    "SELECTOR": ("ResourceClaim", lambda count: claim("c", many(request(**selectors(f"{'true':{count}}"))))),
    "CLAIM_TEXT": (
        "ResourceClaim",
        lambda count: claim(
            "c",
            many(
                *[request(**selectors(f"{'true':8192}"))] * 7,
                request(**selectors(f"{'true':{count - 57344}}")),
            ),
        ),
    ),
    "DEVICE_TOLERATIONS": (
        "ResourceClaim",
        lambda count: claim("c", many(request(tolerations=[{"operator": "Exists"}] * count))),
    ),
    "SLICE_DEVICES": (
        "ResourceSlice",
        lambda count: device_slice("n", devices=[gpu(n) for n in range(count)]),
    ),
    "DEVICE_ATTRIBUTES": (
        "ResourceSlice",
        lambda count: one_device(attributes={f"a{n}": {"int": n} for n in range(count)}),
    ),
    "DEVICE_TAINTS": (
        "ResourceSlice",
        lambda count: one_device(taints=[{"key": "k", "effect": "NoSchedule"}] * count),
    ),
    "COUNTER_SETS": (
        "ResourceSlice",
        lambda count: device_slice(
            "n", sharedCounters=[{"name": f"s{n}", "counters": {}} for n in range(count)], devices=[]
        ),
    ),
    "COUNTERS": (
        "ResourceSlice",
        lambda count: device_slice(
            "n",
            sharedCounters=[{"name": "s", "counters": {f"c{n}": {"value": "1"} for n in range(count)}}],
            devices=[],
        ),
    ),
    "POLICY_VALUES": ("ResourceSlice", capacity),
    "OBJECT_NAME": ("ResourceSlice", lambda count: one_device(name="x" * count)),
    "NUMA_ZONES": ("NodeResourceTopology", lambda count: topology(count, 1)),
    "NUMA_RESOURCES": ("NodeResourceTopology", lambda count: topology(1, count)),
    "BUDGET_SELECTOR": (
        "PodDisruptionBudget",
        lambda count: budget({"matchLabels": {f"k{n}": "v" for n in range(count)}}),
    ),
    "DISRUPTED_PODS": (
        "PodDisruptionBudget",
        lambda count: budget({}, disruptedPods={f"p{n}": "2026-01-01T00:00:00Z" for n in range(count)}),
    ),
}


def record(kind: Kind, manifest: Manifest) -> Any:
    return WATCHED[kind].read(json.dumps(manifest).encode())[0]


@pytest.mark.parametrize("name", CASES)
def test_what_reaches_a_limit_is_read_and_one_more_is_not(name: str) -> None:
    kind, make = CASES[name]
    limit = getattr(limits, name)
    assert record(kind, make(limit)).problem == ""
    beyond = record(kind, make(limit + 1))
    assert 0 < len(beyond.problem) <= PROBLEM
    if kind == "Pod":
        with pytest.raises(RequestError, match=f"^{re.escape(beyond.problem)}$"):
            request_of(beyond)
        state = make_state(make_node("n"), beyond)
        assert (beyond.key in state.pods, state.learner.learned) == (True, 0)
        assert len(repr(beyond)) < 64 << 10
