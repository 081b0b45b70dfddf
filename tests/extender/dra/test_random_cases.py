"""Random nodes with whole and partitioned GPUs: what is forecast could really be allocated."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator
from extender.k8s.pod_manifest import PodManifest
from tests.e2e.dra_cases import case, classes
from tests.extender.dra.records import parse_claim, parse_class, parse_slice


def amount(text: str) -> int:
    return int(text.removesuffix("Gi"))


@given(st.randoms(use_true_random=False))
def test_no_device_is_given_twice_and_no_counter_is_overdrawn(rng):
    one = case("c", rng)
    assume("adminAccess" not in str(one.claims))  # admin access gets devices that others have
    cache = DeviceCache()
    for raw in classes():
        cache.put(parse_class(raw["metadata"]["name"], raw["spec"]))
    for raw in one.slices:
        cache.put(parse_slice(raw["metadata"]["name"], raw["spec"]))
    held = []
    for raw in one.claims:
        cache.put(parse_claim("default", raw["metadata"]["name"], raw["spec"], raw.get("status")))
        if "status" in raw:
            held += raw["status"]["allocation"]["devices"]["results"]
    nodes = [(node["metadata"]["name"], node["metadata"]["labels"]) for node in one.nodes]
    cache.refresh(dict(nodes).__getitem__)
    for (node, _), forecast in zip(
        nodes,
        AllocationSimulator(cache).forecasts(PodManifest.from_value(one.pod).record(), nodes),
        strict=True,
    ):
        assert forecast.cost >= 0
        given_out = [(d["driver"], d["pool"], d["device"]) for d in held if d["pool"] == node]
        given_out += map(tuple, forecast.devices)
        current = [raw["spec"] for raw in one.slices if not raw["metadata"]["name"].endswith("-old")]
        there = {
            (spec["driver"], spec["pool"]["name"], device["name"]): device
            for spec in current
            for device in spec.get("devices", ())
        }
        whole = [name for name in given_out if not there[name].get("allowMultipleAllocations")]
        assert len(set(whole)) == len(whole)
        used: Counter[tuple[str, str]] = Counter()
        for name in set(given_out):
            for part in there[name].get("consumesCounters", ()):
                for counter, value in part["counters"].items():
                    used[part["counterSet"], counter] += amount(value["value"])
        sets = [s for spec in current if spec["nodeName"] == node for s in spec.get("sharedCounters", ())]
        left = {(s["name"], c): amount(value["value"]) for s in sets for c, value in s["counters"].items()}
        assert all(left[counter] >= taken for counter, taken in used.items())
