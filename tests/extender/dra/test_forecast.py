"""What kube-scheduler would give: tests/e2e/test_dra.py asks it; here are the cases one by one."""

from __future__ import annotations

import pytest

from extender.dra.forecast import POOL_INCOMPLETE, AllocationSimulator
from extender.k8s.objects import Pod, PodClaim, PodSpec
from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import counter_set, device_cache, dynamic, forecast_for, gpu, hold, names, spec
from tests.extender.dra.records import parse_claim, parse_slice

HERE = [("node-a", {})]
ONE_GPU = "{requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}"


def mig(profile: str, **more: object) -> dict:
    selector = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    wish = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": selector}}], **more}
    return {"requests": [{"name": "mig", "exactly": wish}]}


def partitioned(minors: int = 1):
    gpus = [device for minor in range(minors) for device in dynamic(minor)]
    sets = [counter_set(minor) for minor in range(minors)]
    return device_cache(spec(*gpus, count=2), spec(count=2, sharedCounters=sets))


def test_the_documented_claim_for_partitions_of_one_gpu():
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
    cache = partitioned(minors=2)
    first = ["mig-1g5gb-19-0", "mig-1g5gb-19-1", "mig-2g10gb-14-2", "mig-3g20gb-9-4"]
    assert names(forecast_for(cache, claim)) == [f"gpu-0-{name}" for name in first]
    hold(cache, "gpu-0-mig-1g5gb-19-6")  # now the 3g has to start at 0, and the 2g at 4
    assert names(forecast_for(cache, claim)) == [f"gpu-1-{name}" for name in first]


def test_first_available():
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


def test_allocation_mode_all():
    claim = "{requests: [{name: all, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]}"
    cache = device_cache(spec(gpu(0), gpu(1)))
    assert names(forecast_for(cache, claim)) == ["gpu-0", "gpu-1"]
    hold(cache, "gpu-1")
    assert forecast_for(cache, claim).problem == "the node has no devices that fit"


def test_all_devices_can_be_had_while_no_pool_with_counters_is_incomplete_anywhere():
    cache = device_cache(spec(gpu(0)))
    cache.put(parse_claim("ml", "wanted", {"devices": gpu_claim(allocationMode="All")}, None))
    pod = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "wanted"),)))
    simulator = AllocationSimulator(cache)
    assert names(simulator.forecasts(pod, HERE)[0]) == ["gpu-0"]
    for _ in range(2):
        cache.put(parse_slice("b0", spec(count=2, node="node-b", sharedCounters=[counter_set()])))
        assert simulator.forecasts(pod, HERE)[0].problem == POOL_INCOMPLETE
        cache.put(parse_slice("b1", spec(*dynamic(), count=2, node="node-b")))
        assert names(simulator.forecasts(pod, HERE)[0]) == ["gpu-0"]
        cache.remove("ResourceSlice", "b1")


def test_distinct_attribute():
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


def test_devices_of_all_nodes_and_of_some():
    everywhere = spec(gpu(0)) | {"nodeName": None, "allNodes": True}
    assert names(forecast_for(device_cache(everywhere), ONE_GPU, "node-b")) == ["gpu-0"]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}]
    some = spec(gpu(0)) | {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": terms}}
    assert names(forecast_for(device_cache(some), ONE_GPU, "node-b")) == ["gpu-0"]
    assert forecast_for(device_cache(some), ONE_GPU, "node-a").problem == "the node has no devices that fit"
    each = spec(gpu(0, nodeName="node-a"), gpu(1, nodeName="node-b"), perDeviceNodeSelection=True)
    assert names(forecast_for(device_cache({**each, "nodeName": None}), ONE_GPU, "node-b")) == ["gpu-1"]


@pytest.mark.parametrize(
    "claim",
    [
        gpu_claim(deviceClassName="nobody.knows"),
        gpu_claim(selectors=[{"cel": {"expression": "dyn(true)"}}]),
        gpu_claim(selectors=[{"cel": {"expression": "device.attributes['gpu.nvidia.com'].nothing == 1"}}]),
        gpu_claim(allocationMode="Some"),
        gpu_claim(count=0),
        gpu_claim(newField=1),
        gpu_claim(capacity={"requests": {"memory": "-1"}}),
        {"requests": [{"name": "r"}]},
        {"requests": [], "newField": 1},
        {"requests": 7},
        gpu_claim() | {"constraints": [{"newConstraint": "x"}]},
    ],
)
def test_no_forecast_if_something_is_not_supported(claim):
    forecast = forecast_for(device_cache(spec(gpu(0))), claim)
    assert not forecast.devices
    assert forecast.problem not in ("", "the node has no devices that fit")


def test_admin_access_gets_allocated_devices_and_costs_nothing():
    cache = device_cache(spec(gpu(0), gpu(1)))
    hold(cache, "gpu-0")
    admin = forecast_for(cache, gpu_claim(adminAccess=True, allocationMode="All"))
    assert names(admin) == ["gpu-0", "gpu-1"]
    assert admin.cost == 0
    assert names(forecast_for(cache, gpu_claim(adminAccess=False))) == ["gpu-1"]


def test_a_pod_with_more_devices_than_can_be_searched():
    cache = device_cache(*(spec(*map(gpu, range(100 * n, 100 * n + 100)), count=4) for n in range(4)))
    (eight,) = gpu_claim(count=8)["requests"]
    wishes = {"requests": [{**eight, "name": f"r{number}"} for number in range(4)]}
    claims = [f"c{number}" for number in range(10)]
    for name in claims:
        cache.put(parse_claim("ml", name, {"devices": wishes}, None))
    pod = Pod("ml", "p", "u", PodSpec(claims=tuple(PodClaim(name, name) for name in claims)))
    (found,) = AllocationSimulator(cache).forecasts(pod, HERE)
    assert found.problem == "too many devices are requested at once"
    assert not found.refused
