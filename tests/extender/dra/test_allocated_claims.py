"""A pod whose claim has its devices already can run only where the allocation says."""

from __future__ import annotations

import pytest

from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator, Forecast
from extender.k8s.objects import Pod, PodClaim, PodSpec
from tests.extender.dra.nvidia import cluster
from tests.extender.dra.records import parse_claim

NODES = [("n0", {"zone": "a"}), ("n1", {"zone": "b"})]


def selector(*terms: object) -> dict[str, object]:
    return {"nodeSelector": {"nodeSelectorTerms": list(terms)}}


def forecasts(cache: DeviceCache, *claims: str) -> list[Forecast]:
    spec = PodSpec(claims=tuple(PodClaim(f"c{number}", name) for number, name in enumerate(claims)))
    return AllocationSimulator(cache).forecasts(Pod("ml", "p", "u", spec), NODES)


def allocated(cache: DeviceCache, name: str, allocation: object) -> None:
    asks = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    cache.put(parse_claim("ml", name, asks, {"allocation": allocation} if allocation else {}))


@pytest.mark.parametrize("broken", [7, {"devices": {}, "nodeSelector": 7}, selector(7)])
def test_nothing_is_predicted_where_the_nodes_cannot_be_read(broken: object) -> None:
    cache = cluster(2)
    allocated(cache, "has", broken)
    assert all(one.problem and not one.refused for one in forecasts(cache, "has"))
    assert "ResourceClaim ml/has" in cache.problems
