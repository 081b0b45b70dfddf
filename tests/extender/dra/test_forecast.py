"""What kube-scheduler would give: tests/e2e/test_dra.py asks it; here are the cases one by one."""

from __future__ import annotations

import pytest

from extender.dra import forecast as dra_forecast
from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator, Forecast
from extender.k8s.objects import Pod, PodClaim, PodSpec
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice
from tests.extender.dra.nvidia import counter_set, device_cache, dynamic, forecast_for, gpu, hold, names, spec

HERE = [("node-a", {})]
ONE_GPU = "{requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}"


def mig(profile: str, **more: object) -> dict:
    selector = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    wish = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": selector}}], **more}
    return {"requests": [{"name": "mig", "exactly": wish}]}


def divided(minors: int = 1):
    gpus = [device for minor in range(minors) for device in dynamic(minor)]
    sets = [counter_set(minor) for minor in range(minors)]
    return device_cache(spec(*gpus, count=2), spec(count=2, sharedCounters=sets))


def test_a_whole_gpu_is_the_first_that_is_free():
    cache = device_cache(spec(gpu(2), gpu(0), gpu(1)))
    assert names(forecast_for(cache, ONE_GPU)) == ["gpu-2"]
    hold(cache, "gpu-2")
    assert names(forecast_for(cache, ONE_GPU)) == ["gpu-0"]
    hold(cache, "gpu-0", "gpu-1")
    assert forecast_for(cache, ONE_GPU).problem == "the node has no devices that fit"


def test_slices_go_by_name_and_pools_by_driver():
    cache = device_cache(spec(gpu(5), count=2), spec(gpu(1), count=2))
    assert names(forecast_for(cache, ONE_GPU)) == ["gpu-5"]


def test_mig_devices_avoid_each_other():
    cache = divided()
    assert names(forecast_for(cache, mig("3g.20gb"))) == ["gpu-0-mig-3g20gb-9-0"]
    hold(cache, "gpu-0-mig-1g5gb-19-2")
    assert names(forecast_for(cache, mig("3g.20gb"))) == ["gpu-0-mig-3g20gb-9-4"]
    assert names(forecast_for(cache, mig("1g.5gb", count=3))) == [
        f"gpu-0-mig-1g5gb-19-{n}" for n in (0, 1, 3)
    ]
    assert forecast_for(cache, ONE_GPU).problem
    assert forecast_for(cache, mig("7g.40gb")).problem


def test_the_documented_claim_for_parts_of_one_gpu():
    # demo/specs/quickstart/v1/gpu-test4.yaml
    claim = """
    requests:
    - name: mig-1g-5gb-0
      exactly: &small
        deviceClassName: mig.nvidia.com
        selectors:
        - cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'"}
    - name: mig-1g-5gb-1
      exactly: *small
    - name: mig-2g-10gb
      exactly:
        deviceClassName: mig.nvidia.com
        selectors:
        - cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '2g.10gb'"}
    - name: mig-3g-20gb
      exactly:
        deviceClassName: mig.nvidia.com
        selectors:
        - cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '3g.20gb'"}
    constraints:
    - requests: []
      matchAttribute: "gpu.nvidia.com/parentUUID"
    """
    cache = divided(minors=2)
    first = ["mig-1g5gb-19-0", "mig-1g5gb-19-1", "mig-2g10gb-14-2", "mig-3g20gb-9-4"]
    assert names(forecast_for(cache, claim)) == [f"gpu-0-{name}" for name in first]
    hold(cache, "gpu-0-mig-1g5gb-19-6")  # now the 3g has to start at 0, and the 2g at 4
    assert names(forecast_for(cache, claim)) == [f"gpu-1-{name}" for name in first]


def test_the_first_of_ranked_requests_that_can_be_met():
    claim = """
    requests:
    - name: any
      firstAvailable:
      - {name: whole, deviceClassName: gpu.nvidia.com, count: 2}
      - {name: one, deviceClassName: gpu.nvidia.com}
    """
    cache = device_cache(spec(gpu(0), gpu(1)))
    assert names(forecast_for(cache, claim)) == ["gpu-0", "gpu-1"]
    hold(cache, "gpu-0")
    assert names(forecast_for(cache, claim)) == ["gpu-1"]


def test_all_devices():
    claim = "{requests: [{name: all, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]}"
    cache = device_cache(spec(gpu(0), gpu(1)))
    assert names(forecast_for(cache, claim)) == ["gpu-0", "gpu-1"]
    hold(cache, "gpu-1")
    assert forecast_for(cache, claim).problem == "the node has no devices that fit"


def test_devices_on_different_roots():
    claim = """
    requests:
    - {name: a, exactly: {deviceClassName: gpu.nvidia.com}}
    - {name: b, exactly: {deviceClassName: gpu.nvidia.com}}
    constraints: [{distinctAttribute: resource.kubernetes.io/pcieRoot}]
    """
    twin = gpu(1)
    twin["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": "pci0000:00"}
    assert names(forecast_for(device_cache(spec(gpu(0), twin, gpu(2))), claim)) == ["gpu-0", "gpu-2"]


@pytest.mark.parametrize(
    ("tolerations", "first"), [([], "gpu-1"), ([{"key": "unhealthy", "operator": "Exists"}], "gpu-0")]
)
def test_taints(tolerations, first):
    cache = device_cache(spec(gpu(0, taints=[{"key": "unhealthy", "effect": "NoSchedule"}]), gpu(1)))
    wish = {"deviceClassName": "gpu.nvidia.com", "tolerations": tolerations}
    assert names(forecast_for(cache, {"requests": [{"name": "r", "exactly": wish}]})) == [first]


def test_a_capacity_that_is_asked_for_must_be_there():
    cache = device_cache(spec(gpu(0, capacity={"memory": {"value": "24Gi"}}), gpu(1)))
    wish = {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": "30Gi"}}}
    assert names(forecast_for(cache, {"requests": [{"name": "r", "exactly": wish}]})) == ["gpu-1"]


def test_nobody_has_what_is_only_watched():
    cache = device_cache(spec(gpu(0)))
    result = {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0", "adminAccess": True}
    status = {"allocation": {"devices": {"results": [result]}}}
    cache.put(parse_claim("ml", "monitor", {"devices": {}}, status))
    assert names(forecast_for(cache, ONE_GPU)) == ["gpu-0"]


def test_devices_of_all_nodes_and_of_some():
    everywhere = spec(gpu(0)) | {"nodeName": None, "allNodes": True}
    assert names(forecast_for(device_cache(everywhere), ONE_GPU, "node-b")) == ["gpu-0"]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}]
    some = spec(gpu(0)) | {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": terms}}
    assert names(forecast_for(device_cache(some), ONE_GPU, "node-b")) == ["gpu-0"]
    assert forecast_for(device_cache(some), ONE_GPU, "node-a").problem == "the node has no devices that fit"
    each = spec(gpu(0, nodeName="node-a"), gpu(1, nodeName="node-b"), perDeviceNodeSelection=True)
    assert names(forecast_for(device_cache({**each, "nodeName": None}), ONE_GPU, "node-b")) == ["gpu-1"]


def request(**more: object) -> dict:
    return {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **more}}]}


@pytest.mark.parametrize(
    "claim",
    [
        request(deviceClassName="nobody.knows"),
        request(selectors=[{"cel": {"expression": "dyn(true)"}}]),
        request(selectors=[{"cel": {"expression": "device.attributes['gpu.nvidia.com'].nothing == 1"}}]),
        request(allocationMode="Some"),
        request(count=0),
        request(newField=1),
        request(capacity={"requests": {"memory": "-1"}}),
        {"requests": [{"name": "r"}]},
        {"requests": [], "newField": 1},
        {"requests": 7},
        request() | {"constraints": [{"newConstraint": "x"}]},
    ],
)
def test_nothing_is_foreseen_where_something_is_not_understood(claim):
    forecast = forecast_for(device_cache(spec(gpu(0))), claim)
    assert not forecast.devices
    assert forecast.problem not in ("", "the node has no devices that fit")


def cores(minor: int, **policy: object) -> dict:
    """A GPU of which parts are given out."""
    capacity = {"cores": {"value": "100"} | ({"requestPolicy": policy} if policy else {})}
    return gpu(minor, allowMultipleAllocations=True, capacity=capacity)


def part(amount: str | None, **more: object) -> dict:
    asked = {} if amount is None else {"capacity": {"requests": {"cores": amount}}}
    return request(**asked, **more)


def hold_part(cache, device: str, claim: str, *amounts: str) -> None:
    results = [
        {"driver": "gpu.nvidia.com", "pool": "node-a", "device": device}
        | {"shareID": f"{claim}-{number}", "consumedCapacity": {"cores": amount}}
        for number, amount in enumerate(amounts)
    ]
    cache.put(parse_claim("ml", claim, {"devices": {}}, {"allocation": {"devices": {"results": results}}}))


def test_parts_of_a_device_are_given_out_until_it_is_full():
    cache = device_cache(spec(cores(0), cores(1)))
    hold_part(cache, "gpu-0", "one", "30", "20")
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    assert names(forecast_for(cache, part("51"))) == ["gpu-1"]
    assert names(forecast_for(cache, part(None))) == ["gpu-1"]  # which is all of it
    hold_part(cache, "gpu-0", "two", "50")
    assert names(forecast_for(cache, part("1"))) == ["gpu-1"]
    cache.remove("ResourceClaim", "ml/one")
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    hold(cache, "gpu-0")
    assert names(forecast_for(cache, part("1"))) == ["gpu-1"]


def test_requests_of_a_claim_share_a_device_but_those_for_several_do_not():
    cache = device_cache(spec(cores(0), cores(1)))
    twice = {"requests": [one | {"name": f"r{n}"} for n in range(2) for one in part("60")["requests"]]}
    assert names(forecast_for(cache, twice)) == ["gpu-0", "gpu-1"]
    twice = {"requests": [one | {"name": f"r{n}"} for n in range(2) for one in part("50")["requests"]]}
    assert names(forecast_for(cache, twice)) == ["gpu-0", "gpu-0"]
    assert names(forecast_for(cache, part("50", count=2))) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("policy", "asked", "fits"),
    [
        ({"default": "25"}, None, 4),
        ({"default": "25", "validValues": ["25", "50"]}, "26", 2),
        ({"default": "25", "validValues": ["25", "50"]}, "51", 0),
        ({"default": "20", "validRange": {"min": "20"}}, "1", 5),
        ({"default": "20", "validRange": {"min": "20", "step": "15"}}, "21", 2),
        ({"default": "20", "validRange": {"min": "20", "step": "15"}}, "35", 2),
        ({"default": "20", "validRange": {"min": "20", "max": "30"}}, "31", 0),
        ({"default": "20", "validRange": {"min": "20", "max": "30"}}, "24", 4),
    ],
)
def test_parts_come_in_the_portions_of_the_policy(policy, asked, fits):
    cache = device_cache(spec(cores(0, **policy)))

    def wanted(count: int) -> dict:
        return {
            "requests": [one | {"name": f"r{n}"} for n in range(count) for one in part(asked)["requests"]]
        }

    assert fits == 0 or names(forecast_for(cache, wanted(fits))) == ["gpu-0"] * fits
    assert forecast_for(cache, wanted(fits + 1)).problem == "the node has no devices that fit"


def test_counters_are_taken_by_the_first_part_of_a_device_alone():
    consumed = [{"counterSet": "s", "counters": {"slices": {"value": "4"}}}]
    devices = [one | {"consumesCounters": consumed} for one in (cores(0), cores(1))]
    sets = {"sharedCounters": [{"name": "s", "counters": {"slices": {"value": "7"}}}]}
    cache = device_cache(spec(*devices, count=2), spec(count=2, **sets))
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    hold_part(cache, "gpu-0", "one", "50")
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    assert forecast_for(cache, part("60")).problem == "the node has no devices that fit"


def test_a_device_that_is_shared_already_is_cheaper_than_a_whole_one():
    cache = device_cache(spec(cores(0), node="whole"), spec(cores(0)))
    hold_part(cache, "gpu-0", "one", "50")
    assert forecast_for(cache, part("10")).cost < forecast_for(cache, part("10"), "whole").cost


def test_who_watches_has_what_others_have_and_costs_nothing():
    cache = device_cache(spec(gpu(0), gpu(1)))
    hold(cache, "gpu-0")
    watching = forecast_for(cache, request(adminAccess=True, allocationMode="All"))
    assert names(watching) == ["gpu-0", "gpu-1"]
    assert watching.cost == 0
    assert names(forecast_for(cache, request(adminAccess=False))) == ["gpu-1"]


def test_claims_that_have_devices_or_are_not_made_yet():
    cache = device_cache(spec(gpu(0)))
    hold(cache, "gpu-0")
    simulator = AllocationSimulator(cache)
    has = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "has-node-a-gpu-0"),)))
    assert simulator.forecasts(has, HERE) == [Forecast()]
    waits = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", template="t"),)))
    assert "not created yet" in simulator.forecasts(waits, HERE)[0].problem
    unknown = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", template="t"),)), claims=(("c", "p-c-x"),))
    missing = simulator.forecasts(unknown, HERE)[0]
    assert (missing.problem, missing.refused) == ("claim 'p-c-x' does not exist", True)


def test_a_forecast_is_made_anew_when_what_it_rests_on_changes():
    cache = device_cache(spec(gpu(0), gpu(1)))
    cache.put(parse_claim("ml", "wanted", {"devices": request()}, None))
    pod, simulator = (
        Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "wanted"),))),
        AllocationSimulator(cache),
    )

    def now() -> list[str]:
        cache.refresh(lambda name: {})
        return names(simulator.forecasts(pod, HERE)[0])

    assert now() == ["gpu-0"]
    hold(cache, "gpu-0")
    assert now() == ["gpu-1"]
    cache.remove("ResourceClaim", "ml/has-node-a-gpu-0")
    assert now() == ["gpu-0"]
    cache.put(parse_class("gpu.nvidia.com", {"selectors": [{"cel": {"expression": "false"}}]}))
    assert now() == []
    cache.remove("DeviceClass", "gpu.nvidia.com")
    assert "'gpu.nvidia.com' does not exist" in simulator.forecasts(pod, HERE)[0].problem


def test_the_gpu_that_is_divided_already_is_cheaper_than_a_whole_one():
    sets = {"sharedCounters": [counter_set()]}
    cache = device_cache(
        *(spec(*dynamic(), count=2, node="used"), spec(count=2, node="used", **sets)),
        *(spec(*dynamic(), count=2, node="whole"), spec(count=2, node="whole", **sets)),
    )
    hold(cache, "gpu-0-mig-1g5gb-19-0", node="used")
    small = mig("1g.5gb")
    assert forecast_for(cache, small, "used").cost < forecast_for(cache, small, "whole").cost
    assert names(forecast_for(cache, small, "used")) == ["gpu-0-mig-1g5gb-19-1"]


def test_nodes_are_kept_whole():
    cache = device_cache(spec(*map(gpu, range(8)), node="whole"), spec(*map(gpu, range(8)), node="used"))
    hold(cache, "gpu-3", node="used")
    assert forecast_for(cache, ONE_GPU, "used").cost < forecast_for(cache, ONE_GPU, "whole").cost


def test_a_question_that_takes_too_long_is_cut_short_and_goes_on_when_it_is_asked_again(monkeypatch):
    nodes = [f"n{number}" for number in range(4)]
    cache = device_cache(*(spec(*map(gpu, range(3)), node=node) for node in nodes))
    cache.put(parse_claim("ml", "wanted", {"devices": request(count=3)}, None))
    pod, simulator = (
        Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "wanted"),))),
        AllocationSimulator(cache),
    )
    forecast_for(device_cache(spec(gpu(0))), request())  # the selectors are compiled
    monkeypatch.setattr(dra_forecast, "MOST_STEPS", 150)  # for about two nodes
    asked = [[bool(one.devices) for one in simulator.forecasts(pod, [(n, {}) for n in nodes])] for _ in "abc"]
    assert asked[0][0]
    assert not asked[0][-1]
    assert asked[-1] == [True] * 4


def test_a_pod_with_more_devices_than_can_be_searched():
    cache = device_cache(*(spec(*map(gpu, range(100 * n, 100 * n + 100)), count=4) for n in range(4)))
    wishes = {"requests": [{**request()["requests"][0], "name": f"r{number}"} for number in range(30)]}
    claims = [f"c{number}" for number in range(10)]
    for name in claims:
        cache.put(parse_claim("ml", name, {"devices": wishes}, None))
    pod = Pod("ml", "p", "u", PodSpec(claims=tuple(PodClaim(name, name) for name in claims)))
    (found,) = AllocationSimulator(cache).forecasts(pod, HERE)
    assert found.problem == "too many devices are requested at once"
    assert not found.refused


def several(*options: dict) -> dict:
    """A claim of one request with these alternatives."""
    named = [one["requests"][0]["exactly"] | {"name": f"s{n}"} for n, one in enumerate(options)]
    return {"requests": [{"name": "r", "firstAvailable": named}]}


BROKEN = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].nothing == 1"}}]
UNKNOWN = [{"cel": {"expression": "dyn(true)"}}]


@pytest.mark.parametrize(
    ("claim", "why", "refused"),
    [
        (request(count=3), "no devices that fit", True),
        (request(selectors=[{"cel": {"expression": "false"}}]), "no devices that fit", True),
        (request(deviceClassName="nobody.knows"), "'nobody.knows' does not exist", True),
        (several(request(), request(deviceClassName="nobody.knows")), "'nobody.knows' does not exist", True),
        (request(count=33), "more than 32 devices", True),
        ({"requests": [request(count=20)["requests"][0] | {"name": n} for n in "ab"]}, "more than 32", True),
        (several(request(count=33), request(count=40)), "more than 32 devices", True),
        (request(selectors=BROKEN), "no such key", True),
        (request(selectors=UNKNOWN), "dyn", False),
        (request(newField=1), "newField", False),
    ],
)
def test_what_kube_scheduler_will_refuse(claim, why, refused):
    found = forecast_for(device_cache(spec(gpu(0), gpu(1))), claim)
    assert why in found.problem
    assert (found.devices, found.refused) == ((), refused)


def test_an_alternative_for_fewer_devices_is_no_refusal():
    assert names(forecast_for(device_cache(spec(gpu(0))), several(request(count=33), request()))) == ["gpu-0"]


def test_a_pool_that_is_being_renewed_is_no_refusal():
    cache = device_cache(spec(gpu(0), count=2))
    assert (forecast_for(cache, ONE_GPU).devices, forecast_for(cache, ONE_GPU).refused) == ((), False)
    cache.put(parse_slice("s1", spec(gpu(1), count=2)))
    hold(cache, "gpu-0", "gpu-1")
    assert forecast_for(cache, ONE_GPU).refused


def test_a_device_that_is_not_understood_is_no_refusal():
    cache = device_cache(spec(gpu(0, newField=1)))
    assert (forecast_for(cache, ONE_GPU).devices, forecast_for(cache, ONE_GPU).refused) == ((), False)


def test_a_search_that_takes_too_long_is_no_refusal():
    cache = device_cache(*(spec(*map(gpu, range(100 * n, 100 * n + 100)), count=3) for n in range(3)))
    apart = {"constraints": [{"distinctAttribute": "gpu.nvidia.com/type"}]}
    wishes = [request()["requests"][0] | {"name": f"r{number}"} for number in range(8)]
    found = forecast_for(cache, {"requests": wishes} | apart)
    assert found.problem
    late = {"constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": ["r6", "r7"]}]}
    found = forecast_for(cache, {"requests": wishes} | late)
    assert found.problem in ("the search for devices takes too long", "there is too much to search at once")
    assert not found.refused


def test_a_missing_claim_is_unknown_where_nothing_is_known_of_devices():
    pod = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "wanted"),)))
    (found,) = AllocationSimulator(DeviceCache()).forecasts(pod, HERE)
    assert (found.problem, found.refused) == ("claim 'wanted' is not known", False)
    (found,) = AllocationSimulator(device_cache(spec(gpu(0)))).forecasts(pod, HERE)
    assert (found.problem, found.refused) == ("claim 'wanted' does not exist", True)
