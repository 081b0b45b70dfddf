"""Random small clusters with devices, and pods with claims. Each case has its own nodes."""

import random
from dataclasses import dataclass, field
from uuid import UUID

from .controlplane.api import NAMESPACE, Object
from .controlplane.build import release
from .dra_devices import DRIVER, PROFILES, ROOT, devices_of, root, slice_of, slices_of
from .workload import node, pod

CASE = "e2e.stowage.dev/case"
GPUS = "nvidia.com/gpu"
A = "device.attributes['gpu.nvidia.com']"
OF_TYPE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == "
CLASSES = {
    "gpu.nvidia.com": f"{OF_TYPE}'gpu'",
    "mig.nvidia.com": f"{OF_TYPE}'mig'",
    "any.nvidia.com": 'device.driver == "gpu.nvidia.com"',
    "parts.nvidia.com": f"['parts', 'x'].exists(t, {A}.type == t) && device.allowMultipleAllocations",
    "nics": 'device.driver == "nic.example.com"',
}
WHOLE_SELECTORS = (
    "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$')",
    "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L40S'",
    "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0",
    'device.capacity["gpu.nvidia.com"].memory.isLessThan(quantity("60Gi"))',
    "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('560.0.0'))",
    "device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('9.0.0')) >= 0",
    "device.attributes['gpu.nvidia.com'].architecture in ['Hopper', 'Blackwell']",
    "device.attributes['gpu.nvidia.com'].uuid.endsWith('1')",
    "'gpu.nvidia.com' in device.attributes && has(device.attributes['gpu.nvidia.com'].uuid)",
    "!(device.attributes['gpu.nvidia.com'].index < 1)",
    "device.attributes['resource.kubernetes.io'].pcieRoot != 'pci0000:00'",
    "cel.bind(a, device.attributes['gpu.nvidia.com'], a.brand == 'Nvidia' && a.index >= 1)",
    f"['L40S', 'A100'].exists(model, {A}.productName.endsWith(model))",
    f"['NVIDIA', '80GB'].all(part, {A}.productName.contains(part))",
    f"[0, 1, 2, 3].filter(i, i % 2 == 0).exists_one(i, i == {A}.index)",
    f"[{A}.index].exists(i, {A}.nothing == i || i < 4)",
    f"['H100', 'H200'].map(m, 'NVIDIA ' + m).exists(m, {A}.productName.startsWith(m))",
    f"int({A}.uuid.split('-')[1]) % 2 == 0 && device.attributes.exists(d, d == 'resource.kubernetes.io')",
    "sign(device.capacity['gpu.nvidia.com'].memory.sub(quantity('60Gi'))) > 0",
)


@dataclass
class Case:
    """Nodes with their devices and claims, and a pod that only these nodes can take.

    ``devices`` counts the devices in complete pools on each node. ``held`` names the claims that have some.
    """

    name: str
    nodes: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    pod: Object = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)


def small_pod(name: str, scheduler: str) -> tuple[Object, Object]:
    """A pod that requests the smallest part of a GPU, and its claim."""
    selector = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    wish = claim_of(f"{name}-claim", "mig.nvidia.com", selector)
    made = pod(name, {}, scheduler=scheduler)
    made["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimName": wish["metadata"]["name"]}]
    return made, wish


def classes() -> list[Object]:
    """The device classes of the driver, and additional ones."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]}
            | ({"extendedResourceName": GPUS} if name == "gpu.nvidia.com" else {}),
        }
        for name, expression in CLASSES.items()
    ]


def case(name: str, rng: random.Random) -> Case:
    """One random case."""
    made = Case(name)
    kind = rng.choice(tuple(WISHES))
    with_nics = rng.random() < 0.3
    for number in range(rng.choice((1, 1, 2, 2, 3))):
        node_name = f"{name}-n{number}"
        made.nodes.append(node(node_name, {}, labels={CASE: name}))
        devices, counters = devices_of(kind, rng)
        missing = not counters and rng.random() < 0.05  # with counters "All" devices could never be allocated
        made.slices += slices_of(node_name, devices, counters, rng, missing=missing)
        made.devices[node_name] = len(devices) * (not missing) + 4 * with_nics
        give = _shared if kind == "parts" else _taken
        taken = give(node_name, devices, counters, rng)
        made.claims += taken
        made.held |= {one["metadata"]["name"] for one in taken if not missing}
        if with_nics:
            nics = [{"name": f"nic-{n}", "attributes": {ROOT: {"string": root(n)}}} for n in range(4)]
            rng.shuffle(nics)
            made.slices += [slice_of(f"{node_name}-nics", "nic.example.com", node_name, 1, {"devices": nics})]
    kinds = WISHES[kind] + ("nic",) * with_nics
    wanted = [claim(f"{name}-c{n}", _wish(kinds, rng)) for n in range(rng.choice((1, 1, 1, 2)))]
    made.claims += wanted
    made.pod = pod(f"{name}-pod", {}, scheduler="default-scheduler")
    made.pod["spec"]["nodeSelector"] = {CASE: name}
    # kube-scheduler 1.34 reads these in containers only, and by extendedResourceName only.
    if kind in ("whole", "both") and release() >= "1.36" and rng.random() < 0.3:
        _ask_by_resource(made.pod["spec"], rng)
    made.pod["spec"]["resourceClaims"] = [
        {"name": f"claim-{n}", "resourceClaimName": one["metadata"]["name"]} for n, one in enumerate(wanted)
    ]
    return made


def _taken(node_name: str, devices: list[Object], counters: list[Object], rng: random.Random) -> list[Object]:
    """Claims that hold devices, of which all can be allocated at the same time."""
    left = {
        (one["name"], counter): _number(amount["value"])
        for one in counters
        for counter, amount in one["counters"].items()
    }
    held: list[str] = []
    for device in rng.sample(devices, min(len(devices), rng.randrange(6))):
        takes = {
            (one["counterSet"], counter): _number(amount["value"])
            for one in device.get("consumesCounters", ())
            for counter, amount in one["counters"].items()
        }
        if len(held) < len(devices) * 0.3 and all(left[key] >= amount for key, amount in takes.items()):
            left |= {key: left[key] - amount for key, amount in takes.items()}
            held.append(device["name"])
    return [_held(f"{node_name}-h{number}", node_name, name) for number, name in enumerate(held)]


def _number(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _shared(
    node_name: str, devices: list[Object], counters: list[Object], rng: random.Random
) -> list[Object]:
    """Claims that hold parts of devices, of which all can be allocated at the same time."""
    held: list[Object] = []
    for device in rng.sample(devices, rng.randrange(1 + min(len(devices), 2 if counters else 3))):
        parts = [
            {
                "shareID": str(UUID(int=rng.getrandbits(128), version=4)),
                "consumedCapacity": {
                    "cores": rng.choice(("10", "30")),
                    "memory": rng.choice(("10Gi", "20Gi")),
                },
            }
            for _ in range(rng.choice((1, 1, 2)))
        ]
        held.append(_held(f"{node_name}-h{len(held)}", node_name, device["name"], *parts))
    return held


def _held(name: str, node_name: str, device: str, *parts: Object) -> Object:
    """A claim with an allocated device, or with parts of it."""
    held = claim(name)
    result = {"request": "r", "driver": DRIVER, "pool": node_name, "device": device}
    here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    held["status"] = {
        "allocation": {
            "devices": {"results": [result | part for part in parts or ({},)]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
    }
    return held


def claim(name: str, devices: Object | None = None) -> Object:
    """A claim for ``devices``, by default for one device of the driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": devices or {"requests": [_request("r", "any.nvidia.com")]}},
    }


def claim_of(name: str, device_class: str, selector: str) -> Object:
    """A claim with the request `part`, for a device of this class that the selector selects."""
    return claim(name, {"requests": [_request("part", device_class, selector)]})


def _request(name: str, device_class: str, *selectors: str, **more: object) -> Object:
    wish: Object = {"deviceClassName": device_class, **more}
    if selectors:
        wish["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    return {"name": name, "exactly": wish}


WISHES = {
    "whole": ("gpu", "gpu", "any", "ranked"),
    "mig": ("mig", "mig", "mig", "any", "ranked", "gpu"),
    "both": ("gpu", "mig", "any", "ranked"),
    "parts": ("part", "part", "part", "any"),
}
if release() < "1.36":
    # With the gate DRAConsumableCapacity kube-scheduler 1.34.12 crashes: "index out of range" in
    # CmpRequestOverCapacity.
    del WISHES["parts"], CLASSES["parts.nvidia.com"]


def _ask_by_resource(spec: Object, rng: random.Random) -> None:
    """Add containers that request GPUs by an extended resource of a device class."""
    resource = rng.choice((GPUS, "deviceclass.resource.kubernetes.io/gpu.nvidia.com"))

    def containers(kind: str, most: int, **more: object) -> list[Object]:
        made = []
        for number in range(rng.randrange(most + 1)):
            amounts = {"cpu": "1"} | ({resource: rng.choice("112")} if rng.random() < 0.5 else {})
            asks = {"requests": amounts, "limits": amounts}
            made.append({"name": f"{kind}-{number}", "image": "work", "resources": asks, **more})
        return made

    spec["containers"] += containers("beside", 2)
    spec["initContainers"] = containers("early", 1) + containers("sidecar", 1, restartPolicy="Always")
    spec["initContainers"] += containers("later", 1)


def _wish(kinds: tuple[str, ...], rng: random.Random) -> Object:
    """The spec of a claim: one request or two, and sometimes a constraint."""
    requests = [_one_wish(f"r{number}", kinds, rng) for number in range(rng.choice((1, 1, 2)))]
    wish: Object = {"requests": requests}
    if rng.random() < 0.2:
        kind, attribute = rng.choice(
            (
                ("matchAttribute", f"{DRIVER}/productName"),
                ("matchAttribute", ROOT),
                ("distinctAttribute", ROOT),
            )
        )
        wish["constraints"] = [{kind: attribute}]
        if rng.random() < 0.5:
            wish["constraints"][0]["requests"] = [requests[0]["name"]]
    return wish


def _one_wish(name: str, kinds: tuple[str, ...], rng: random.Random) -> Object:
    more = _details(rng)
    profile = rng.choice(PROFILES[:5])[0]
    of_profile = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    match rng.choice(kinds):
        case "gpu":
            selectors = rng.sample(WHOLE_SELECTORS, rng.choice((0, 0, 1, 1, 1, 2)))
            return _request(name, "gpu.nvidia.com", *selectors, **more)
        case "mig":
            return _request(name, "mig.nvidia.com", of_profile, **more)
        case "part":
            return _request(name, "parts.nvidia.com", capacity={"requests": _portions(rng)}, **more)
        case "any":
            size = rng.choice(("10Gi", "20Gi", "40Gi"))
            if rng.random() < 0.3:
                return _request(name, "any.nvidia.com", capacity={"requests": {"memory": size}}, **more)
            selector = f"device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('{size}'))"
            return _request(name, "any.nvidia.com", selector, **more)
        case "ranked":
            first = _request("first", "gpu.nvidia.com", rng.choice(WHOLE_SELECTORS))
            second = _request("second", "mig.nvidia.com", of_profile)
            options = [{"name": one["name"], **one["exactly"]} for one in (first, second)]
            return {"name": name, "firstAvailable": options}
        case _:
            return _request(name, "nics")


def _details(rng: random.Random) -> Object:
    """Random fields of a request: how many devices, and which."""
    more: Object = {}
    if rng.random() < 0.3:
        more["count"] = rng.choice((1, 2, 2, 3))
    elif rng.random() < 0.05:
        more["allocationMode"] = "All"
    if rng.random() < 0.08:
        more["adminAccess"] = True
    if rng.random() < 0.1:
        more["tolerations"] = [{"key": "gpu.nvidia.com/unhealthy", "operator": "Exists"}]
    return more


def _portions(rng: random.Random) -> Object:
    """A random request for a part of a device."""
    asked = {
        "cores": rng.choice(("5", "25", "60", "100")),
        "memory": rng.choice(("5Gi", "15Gi", "40Gi", "100Gi")),
    }
    if rng.random() < 0.4:
        del asked[rng.choice(("cores", "memory"))]
    return asked
