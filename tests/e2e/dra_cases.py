"""Random small clusters with devices, in the form in which NVIDIA's DRA driver publishes them.

The form is that of kubernetes-sigs/dra-driver-nvidia-gpu at 95932046 (``cmd/gpu-kubelet-plugin``): devices
``gpu-<minor>``, and for each placement of each MIG profile ``gpu-<minor>-mig-<profile>-<id>-<start>``, which
take the memory slices and multiprocessors of their GPU's counter set. Each case has nodes of its own.
"""

import random
from dataclasses import dataclass, field

from .controlplane.api import NAMESPACE, Object
from .workload import node, pod

DRIVER = "gpu.nvidia.com"
CASE = "e2e.stowage.dev/case"
H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
# Profile, its id, memory slices, multiprocessors, starts: of an H100 with 80 GB.
PROFILES = (
    ("1g.10gb", 19, 1, 16, range(7)),
    ("1g.20gb", 15, 2, 26, (0, 2, 4, 6)),
    ("2g.20gb", 14, 2, 32, (0, 2, 4)),
    ("3g.40gb", 9, 4, 60, (0, 4)),
    ("4g.40gb", 5, 4, 64, (0,)),
    ("7g.80gb", 0, 8, 132, (0,)),
)
OF_TYPE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == "
CLASSES = {
    "gpu.nvidia.com": f"{OF_TYPE}'gpu'",
    "mig.nvidia.com": f"{OF_TYPE}'mig'",
    "any.nvidia.com": 'device.driver == "gpu.nvidia.com"',
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
)
PARENT = "parentUUID"
ROOT = "resource.kubernetes.io/pcieRoot"


@dataclass
class Case:
    """Nodes and what is on them, and a pod that only they can take.

    ``devices`` is how many each node has in complete pools, ``held`` the claims that have some there.
    """

    name: str
    nodes: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    pod: Object = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)


def divided_node(name: str) -> tuple[Object, list[Object]]:
    """A node with one H100 that is divided on demand, and its slices."""
    rng = random.Random(name)
    counters = [{"name": "gpu-0-counter-set", "counters": _all_of_it()}]
    devices = _gpu(0, rng, divided=True)
    return node(name, {}), _slices(name, devices, counters, rng, missing=False)


def whole_node(name: str, gpus: int) -> tuple[Object, Object]:
    """A node with so many L40S or H100, which are not in its allocatable, and their slice."""
    rng = random.Random(name)
    devices = [device for minor in range(gpus) for device in _gpu(minor, rng, divided=False)]
    return node(name, {}), _slice(f"{name}-gpus", DRIVER, name, 1, {"devices": devices})


def small_pod(name: str, scheduler: str) -> tuple[Object, Object]:
    """A pod that asks for the smallest part of a GPU, and its claim."""
    selector = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    wish = claim(f"{name}-claim", {"requests": [_request("part", "mig.nvidia.com", selector)]})
    made = pod(name, {}, scheduler=scheduler)
    made["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimName": wish["metadata"]["name"]}]
    return made, wish


def classes() -> list[Object]:
    """The device classes of the driver, and two more."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
        for name, expression in CLASSES.items()
    ]


def case(name: str, rng: random.Random) -> Case:
    """One random case."""
    made = Case(name)
    kind = rng.choice(("whole", "mig", "both"))
    with_nics = rng.random() < 0.3
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        node_name = f"{name}-n{number}"
        made.nodes.append(node(node_name, {}, labels={CASE: name}))
        devices, counters = _devices(kind, rng)
        missing = not counters and rng.random() < 0.05  # with counters nobody could have "All" devices
        made.slices += _slices(node_name, devices, counters, rng, missing=missing)
        made.devices[node_name] = len(devices) * (not missing) + 4 * with_nics
        taken = _taken(node_name, devices, counters, rng)
        made.claims += taken
        made.held |= {one["metadata"]["name"] for one in taken if not missing}
        if with_nics:
            nics = [{"name": f"nic-{n}", "attributes": {ROOT: {"string": _root(n)}}} for n in range(4)]
            rng.shuffle(nics)
            made.slices += [_slice(f"{node_name}-nics", "nic.example.com", node_name, 1, {"devices": nics})]
    kinds = WISHES[kind] + ("nic",) * with_nics
    wanted = [claim(f"{name}-c{n}", _wish(kinds, rng)) for n in range(rng.choice((1, 1, 1, 2)))]
    made.claims += wanted
    made.pod = pod(f"{name}-pod", {}, scheduler="default-scheduler")
    made.pod["spec"]["nodeSelector"] = {CASE: name}
    made.pod["spec"]["resourceClaims"] = [
        {"name": f"claim-{n}", "resourceClaimName": one["metadata"]["name"]} for n, one in enumerate(wanted)
    ]
    return made


def _devices(kind: str, rng: random.Random) -> tuple[list[Object], list[Object]]:
    """Devices of a node and their counter sets."""
    devices: list[Object] = []
    counters: list[Object] = []
    for minor in range(rng.choice((2, 4, 6)) if kind == "whole" else rng.choice((1, 2, 3))):
        divided = kind == "mig" or (kind == "both" and minor % 2 == 1)
        devices += _gpu(minor, rng, divided=divided)
        if divided:
            counters.append({"name": f"gpu-{minor}-counter-set", "counters": _all_of_it()})
    if rng.random() < 0.5:
        rng.shuffle(devices)
    if rng.random() < 0.2:
        tainted = rng.choice(devices)
        tainted["taints"] = [
            {"key": "gpu.nvidia.com/unhealthy", "value": "yes", "effect": rng.choice(EFFECTS)}
        ]
    return devices, counters


EFFECTS = ("NoSchedule", "NoExecute", "None")


def _gpu(minor: int, rng: random.Random, *, divided: bool) -> list[Object]:
    product = H100 if divided else rng.choice((H100, L40S))
    memory = "80Gi" if product == H100 else "48Gi"
    common = {
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper" if product == H100 else "Ada Lovelace"},
        "cudaComputeCapability": {"version": "9.0.0" if product == H100 else "8.9.0"},
        "driverVersion": {"version": rng.choice(("550.54.15", "570.86.15"))},
        "cudaDriverVersion": {"version": "12.8.0"},
        ROOT: {"string": _root(minor)},
        "index": {"int": minor},
    }
    uuid = {"string": f"GPU-{minor}"}
    whole: Object = {
        "name": f"gpu-{minor}",
        "attributes": common | {"type": {"string": "gpu"}, "uuid": uuid},
        "capacity": {"memory": {"value": memory}},
    }
    if not divided:
        return [whole]
    source = f"gpu-{minor}-counter-set"
    whole["consumesCounters"] = [{"counterSet": source, "counters": _all_of_it()}]
    parts = [
        {
            "name": f"gpu-{minor}-mig-{profile.replace('.', '')}-{number}-{start}",
            "attributes": common
            | {"type": {"string": "mig"}, "profile": {"string": profile}, "parentUUID": uuid},
            "capacity": {"memory": {"value": f"{profile.partition('.')[2].removesuffix('gb')}Gi"}},
            "consumesCounters": [{"counterSet": source, "counters": _window(start, size, sms)}],
        }
        for profile, number, size, sms, starts in PROFILES
        for start in starts
    ]
    return [whole, *parts]


def _window(start: int, size: int, multiprocessors: int) -> Object:
    taken = {f"memory-slice-{n}": {"value": "1"} for n in range(start, start + size)}
    return taken | {"multiprocessors": {"value": str(multiprocessors)}, "memory": {"value": f"{size * 10}Gi"}}


def _all_of_it() -> Object:
    return _window(0, 8, 132)


def _root(number: int) -> str:
    return f"pci0000:0{number // 2}"


def _slices(
    node_name: str, devices: list[Object], counters: list[Object], rng: random.Random, *, missing: bool
) -> list[Object]:
    """Slices of at most so many devices, sometimes one too few, or one of an older generation besides."""
    size = rng.choice((3, 8, 60)) if len(devices) < 20 else 60
    parts: list[Object] = [{"devices": devices[n : n + size]} for n in range(0, len(devices), size)]
    if counters:
        parts.insert(rng.randrange(len(parts) + 1), {"sharedCounters": counters})
    letters = rng.sample("abcdefghijklmnop", len(parts))
    made = [
        _slice(f"{node_name}-{letter}", DRIVER, node_name, len(parts) + missing, part, generation=2)
        for letter, part in zip(letters, parts, strict=True)
    ]
    if rng.random() < 0.1:
        made.append(_slice(f"{node_name}-old", DRIVER, node_name, 1, {"devices": [{"name": "gpu-0"}]}))
    return made


def _slice(
    name: str, driver: str, node_name: str, count: int, part: Object, *, generation: int = 1
) -> Object:
    pool = {"name": node_name, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node_name, "pool": pool} | part,
    }


def _taken(node_name: str, devices: list[Object], counters: list[Object], rng: random.Random) -> list[Object]:
    """Claims that hold devices which may be held at the same time."""
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


def _held(name: str, node_name: str, device: str) -> Object:
    held = claim(name)
    result = {"request": "r", "driver": DRIVER, "pool": node_name, "device": device}
    here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    held["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
    }
    return held


def claim(name: str, devices: Object | None = None) -> Object:
    """A claim; without ``devices`` for one device of the driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": devices or {"requests": [_request("r", "any.nvidia.com")]}},
    }


def _request(name: str, device_class: str, *selectors: str, **more: object) -> Object:
    wish: Object = {"deviceClassName": device_class, **more}
    if selectors:
        wish["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    return {"name": name, "exactly": wish}


WISHES = {
    "whole": ("gpu", "gpu", "any", "ranked"),
    "mig": ("mig", "mig", "mig", "any", "ranked", "gpu"),
    "both": ("gpu", "mig", "any", "ranked"),
}


def _wish(kinds: tuple[str, ...], rng: random.Random) -> Object:
    """What a claim asks for: one request or two, and sometimes a constraint between them."""
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
    more: Object = {}
    if rng.random() < 0.3:
        more["count"] = rng.choice((1, 2, 2, 3))
    elif rng.random() < 0.05:
        more["allocationMode"] = "All"
    if rng.random() < 0.1:
        more["tolerations"] = [{"key": "gpu.nvidia.com/unhealthy", "operator": "Exists"}]
    profile = rng.choice(PROFILES[:5])[0]
    of_profile = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    match rng.choice(kinds):
        case "gpu":
            selectors = rng.sample(WHOLE_SELECTORS, rng.choice((0, 0, 1, 1, 1, 2)))
            return _request(name, "gpu.nvidia.com", *selectors, **more)
        case "mig":
            return _request(name, "mig.nvidia.com", of_profile, **more)
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
