"""A pod whose claim has its devices already can run only where the allocation says."""

from __future__ import annotations

import pytest

from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator, Forecast, NoDevices
from extender.k8s.objects import Pod, PodClaim, PodSpec
from tests.extender.dra.nvidia import cluster
from tests.extender.dra.records import parse_claim

NODES = [("n0", {"zone": "a"}), ("n1", {"zone": "b"})]


def selector(*terms: object) -> dict[str, object]:
    return {"nodeSelector": {"nodeSelectorTerms": list(terms)}}


def one_of(kind: str, key: str, *values: str) -> dict[str, object]:
    return {kind: [{"key": key, "operator": "In", "values": list(values)}]}


def forecasts(cache: DeviceCache, *claims: str) -> list[Forecast]:
    spec = PodSpec(claims=tuple(PodClaim(f"c{number}", name) for number, name in enumerate(claims)))
    return AllocationSimulator(cache).forecasts(Pod("ml", "p", "u", spec), NODES)


def allocated(cache: DeviceCache, name: str, allocation: object) -> None:
    asks = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    cache.put(parse_claim("ml", name, asks, {"allocation": allocation} if allocation else {}))


@pytest.mark.parametrize(
    ("allocation", "fits"),
    [
        ({}, [True, True]),
        (selector(one_of("matchFields", "metadata.name", "n1")), [False, True]),
        (selector(one_of("matchExpressions", "zone", "a")), [True, False]),
        (selector(one_of("matchExpressions", "zone", "a", "b")), [True, True]),
        (selector(), [False, False]),
    ],
)
def test_where_an_allocated_claim_can_be_used(allocation: dict[str, object], fits: list[bool]) -> None:
    cache = cluster(2)
    allocated(cache, "has", {"devices": {}, **allocation})
    found = forecasts(cache, "has")
    assert [not one.problem for one in found] == fits
    assert all(one == Forecast(problem=NoDevices.ELSEWHERE, refused=True) for one in found if one.problem)


def test_a_second_claim_gets_its_devices_on_that_node() -> None:
    cache = cluster(2)
    allocated(cache, "has", {"devices": {}, **selector(one_of("matchFields", "metadata.name", "n1"))})
    allocated(cache, "wants", None)
    here, there = forecasts(cache, "wants", "has")
    assert (here.refused, here.devices) == (True, ())
    assert [one.pool for one in there.devices] == ["n1"]


@pytest.mark.parametrize("broken", [7, {"devices": {}, "nodeSelector": 7}, selector(7)])
def test_nothing_is_predicted_where_the_nodes_cannot_be_read(broken: object) -> None:
    cache = cluster(2)
    allocated(cache, "has", broken)
    assert all(one.problem and not one.refused for one in forecasts(cache, "has"))
    assert "ResourceClaim ml/has" in cache.problems
