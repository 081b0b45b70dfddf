"""Input that authors of claims, classes and ResourceSlices control: CEL, counts, constraints, lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples import some
from tests.hostile.cluster import EVENT, HAMI, PLAIN, SAID, Budget, Cluster, Manifest, steps, usual_pod

DRIVER = "gpu.nvidia.com"
LONGEST_CEL = 10 * 1024
"""Characters that the API server accepts in a CEL expression."""
NODES_ASKED = 4


def nested(name: str) -> str:
    inner = "true"
    for n in range(30):
        inner = f"[1,2,3,4,5,6,7,8].{name}(x{n}, {inner})"
    return inner


def filled(part: str, joint: str) -> str:
    return joint.join([part] * (LONGEST_CEL // (len(part) + len(joint))))


SELECTORS = {
    "exists": nested("exists"),
    "all": nested("all"),
    "filter": nested("filter"),
    "map": nested("map").replace(", true)", ", 1)"),
    "long lists": "[" + filled("1", ",") + "].all(x, [" + "1," * 100 + "1].all(y, x == y))",
    "or": filled("false", "||"),
    "and": filled("true", "&&"),
    "not": "!" * (LONGEST_CEL - 4) + "true",
    "minus": "-" * (LONGEST_CEL - 4) + "1 == 1",
    "plus": filled("'aaaaaaaaa'", "+") + ".size() > 0",
    "parentheses": "(" * 5000 + "true" + ")" * 5000,
    "brackets": "[" * 5000 + "1" + "]" * 5000,
    "conditions": filled("true ? true", " : ") + " : true",
    "members": "device" + ".a" * 5000,
    "indices": "device" + "['a']" * 2000,
    "calls": "'a'" + ".lowerAscii()" * 700 + " == 'a'",
    "pattern": f"'{'a' * 5000}'.matches('(a+)+$')",
    "patterns": filled("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'.matches('(a|a)*$')", "||"),
    "long pattern": f"'a'.matches('{'(a?){30}' * 900}')",
    "digits": "9" * 9000 + " > 1",
    "power": "1" + "*9223372036854775807" * 400 + " > 0",
    "text": "'" + "x" * 10_000 + "' == ''",
    "version": f"semver('{'9' * 5000}.0.0').isGreaterThan(semver('1.0.0'))",
    "quantity": f"quantity('{'9' * 5000}').isGreaterThan(quantity('1'))",
    "split": f"'{',' * 9000}'.split(',').size() > 1",
    "controls": "\x00\x1b[31m" * 1000,
    "unicode": "'" + "\U0001f600" * 2000 + "' != ''",
    "comments": "//" * 5000,
    "nothing": "",
}


def selector(expression: str) -> dict[str, Any]:
    return {"cel": {"expression": expression}}


def claim(name: str, requests: list[Any], **devices: Any) -> Manifest:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": {"devices": {"requests": requests} | devices}}


def wish(name: str = "r", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1} | more,
    }


def gpus(count: int, node: str, pool: str) -> Manifest:
    devices = [
        {
            "name": f"gpu-{n}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{n}"}, "n": {"int": n}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for n in range(count)
    ]
    spec = {"driver": DRIVER, "nodeName": node, "devices": devices}
    pool_of = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": f"slice-{pool}"}, "spec": spec | {"pool": pool_of}}


def asking(claim_name: str) -> Manifest:
    claims = [{"name": "c", "resourceClaimName": claim_name}]
    return usual_pod(f"asks-{claim_name}", {}, resourceClaims=claims)


@pytest.fixture
def devices(cluster: Cluster) -> Cluster:
    """Eight devices on each of two nodes, a class, and a claim for one device."""
    cluster.hear("DeviceClass", "ADDED", {"metadata": {"name": "gpu"}, "spec": {}})
    for node in (PLAIN, HAMI):
        cluster.hear("ResourceSlice", "ADDED", gpus(8, node, node))
    usual = [selector(f"device.attributes['{DRIVER}'].type == 'gpu'")]
    cluster.hear("ResourceClaim", "ADDED", claim("usual", [wish(selectors=usual)]))
    return cluster


REQUESTS: dict[str, Callable[[], Manifest]] = {
    **{
        f"CEL {name}": lambda text=text: claim("hostile", [wish(selectors=[selector(text)])])
        for name, text in SELECTORS.items()
    },
    "selectors": lambda: claim("hostile", [wish(selectors=[selector(nested("exists"))] * 32)]),
    "count": lambda: claim("hostile", [wish(count=1 << 60)]),
    "count of nothing": lambda: claim("hostile", [wish(count=-1)]),
    "requests": lambda: claim("hostile", [wish(f"r{n}", count=8) for n in range(32)]),
    "alternatives": lambda: claim(
        "hostile",
        [
            {"name": f"r{n}", "firstAvailable": [wish(f"s{k}", count=8)["exactly"] for k in range(8)]}
            for n in range(32)
        ],
    ),
    "a search without an end": lambda: claim(
        "hostile",
        [wish(f"r{n}") for n in range(8)],
        constraints=[{"requests": ["r0", "r7"], "matchAttribute": f"{DRIVER}/uuid"}],
    ),
    "constraints": lambda: claim(
        "hostile",
        [wish(f"r{n}") for n in range(8)],
        constraints=[{"requests": [f"r{n % 8}"], "matchAttribute": f"{DRIVER}/type"} for n in range(32)],
    ),
    "tolerations": lambda: claim("hostile", [wish(tolerations=[{"key": f"k{n}"} for n in range(9000)])]),
    "capacity": lambda: claim(
        "hostile", [wish(capacity={"requests": {f"c{n}": "9" * 99 for n in range(5000)}})]
    ),
    "more than the API accepts": lambda: claim("hostile", [wish(f"r{n}") for n in range(10_000)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", some(REQUESTS))
def test_a_hostile_claim(devices: Cluster, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    budget, hostile = Budget(devices), REQUESTS[kind]()
    normal = claim("normal", [wish(f"r{n}", selectors=[selector("true")]) for n in range(4)])
    caplog.clear()
    assert budget.of_event("ResourceClaim", "ADDED", hostile, normal) == ""
    usual = steps(lambda: devices.ask_all(asking("usual")))
    # A search has limits of its own for each node, not a multiple of the simplest search.
    steps(lambda: devices.ask_all(asking("hostile")), NODES_ASKED * EVENT * usual)
    for text in (one.get("Error", "") for one in devices.ask_all(asking("hostile")) if isinstance(one, dict)):
        assert len(text) <= SAID
    assert len(devices.send("GET", "/debug/pods/d/asks-hostile").content) < 20_000
    assert len(caplog.text) <= 2 * SAID
    assert set(devices.filter(asking("usual"))["NodeNames"]) >= {PLAIN, HAMI}
    devices.alive()


SLICES: dict[str, Callable[[], Any]] = {
    "devices": lambda: gpus(128, PLAIN, "hostile")["spec"],
    "more than the API accepts": lambda: gpus(6000, PLAIN, "hostile")["spec"],
    "attributes": lambda: (
        gpus(1, PLAIN, "hostile")["spec"]
        | {"devices": [{"name": "g", "attributes": {f"a{n}": {"string": "x" * 64} for n in range(10_000)}}]}
    ),
    "versions": lambda: (
        gpus(1, PLAIN, "hostile")["spec"]
        | {"devices": [{"name": "g", "attributes": {"v": {"version": "9" * 100_000}}}]}
    ),
    "capacities": lambda: (
        gpus(1, PLAIN, "hostile")["spec"]
        | {"devices": [{"name": "g", "capacity": {f"c{n}": {"value": "9" * 99} for n in range(5000)}}]}
    ),
    "counters": lambda: (
        gpus(1, PLAIN, "hostile")["spec"]
        | {
            "sharedCounters": [
                {"name": f"s{n}", "counters": {f"c{k}": {"value": "1"} for k in range(32)}}
                for n in range(300)
            ]
        }
    ),
    "generation": lambda: (
        gpus(1, PLAIN, "hostile")["spec"]
        | {"pool": {"name": "plain", "generation": 1 << 70, "resourceSliceCount": -1}}
    ),
    "nothing": lambda: None,
    "a list": lambda: [[]] * 1000,
}


@pytest.mark.parametrize("kind", some(SLICES))
def test_a_hostile_slice(devices: Cluster, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    budget = Budget(devices)
    hostile = {"metadata": {"name": "hostile"}, "spec": SLICES[kind]()}
    caplog.clear()
    assert budget.of_event("ResourceSlice", "ADDED", hostile, gpus(8, PLAIN, "normal")) == ""
    devices.ask_all(asking("usual"))
    assert len(caplog.text) <= 2 * SAID
    devices.hear("ResourceSlice", "DELETED", hostile)
    assert HAMI in devices.filter(asking("usual"))["NodeNames"]
    devices.alive()


@pytest.mark.parametrize("name", some(SELECTORS))
def test_a_hostile_class(runner: asyncio.Runner, devices: Cluster, name: str) -> None:
    spec = {"selectors": [selector(SELECTORS[name])], "extendedResourceName": "example.com/gpu"}
    hostile = {"metadata": {"name": "hostile"}, "spec": spec}
    assert Budget(devices).of_event("DeviceClass", "ADDED", hostile) == ""
    usual = steps(lambda: devices.ask_all(asking("usual")))
    pod = usual_pod("by-class", {"example.com/gpu": "1"})
    steps(lambda: devices.ask_all(pod), NODES_ASKED * EVENT * usual)
    devices.alive()
