"""Devices of claims: Stowage predicts what kube-scheduler allocates, and its scores keep GPUs whole."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .controlplane.__main__ import PLAIN
from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.build import release
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually, free_port
from .dra_cases import Case, case, classes, small_pod
from .dra_devices import divided_node, whole_node
from .rush import GPU
from .stowage import Stowage, scheduler_configuration, service_account
from .workload import pod

pytestmark = pytest.mark.skipif(release() < "1.34", reason="1.34 has the first resource.k8s.io/v1")

GATES = ("DRADeviceTaints", "DRAExtendedResource", "DRAPartitionableDevices")
"""On by default from 1.36. In 1.34 kube-scheduler then needs the API of DeviceTaintRules, too."""
CASES, SEED = 200, 20
CLAIMS_ONLY = "resource-claims.yaml"
RATE = 0.95
FAST: Object = PLAIN | {"clientConnection": {"qps": 1000, "burst": 2000}}


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    flags = {
        "feature_gates": ",".join(f"{gate}=true" for gate in GATES),
        "runtime_config": "resource.k8s.io/v1alpha3=true",
    }
    with ControlPlane(tmp_path_factory.mktemp("dra"), **flags if release() < "1.36" else {}) as plane:
        yield plane


@pytest.fixture(scope="module")
def stowage_kubeconfig(control_plane: ControlPlane) -> Path:
    return service_account(control_plane)


@pytest.fixture(scope="module")
def running_stowage(control_plane: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Stowage]:
    with Stowage(control_plane, stowage_kubeconfig) as stowage:
        yield stowage


def test_kube_scheduler_allocates_what_is_predicted(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    rng = random.Random(SEED)
    cases = [case(f"case-{number}", rng) for number in range(CASES)]
    create(api, cases)
    eventually(lambda: knows(stowage, cases), within_s=60, what="Stowage knows all devices and claims")
    predicted = settled(lambda: {one.name: options(stowage, one) for one in cases})
    with cluster.scheduler(FAST):
        eventually(lambda: all(map(tried, api.list("Pod")["items"])), within_s=120, what="all pods are tried")
    pods = {pod["metadata"]["name"]: pod for pod in api.list("Pod")["items"]}
    claims = {claim["metadata"]["name"]: claim for claim in api.list("ResourceClaim")["items"]}
    outcomes: Counter[str] = Counter()
    for one in cases:
        outcome, told = judged(predicted[one.name], pods[f"{one.name}-pod"], claims)
        outcomes[outcome] += 1
        if outcome not in ("right", "rightly none"):
            print(f"{one.name}: {outcome}: {told}")
    right = outcomes["right"] + outcomes["rightly none"]
    print(f"{right} of {CASES} cases predicted ({right / CASES:.1%}): {dict(outcomes)}")
    assert right / CASES >= RATE
    # Enough pods get devices, and the rate holds among these pods, too: else the test would show nothing.
    assert outcomes["right"] >= 0.5 * CASES
    assert outcomes["right"] >= RATE * (CASES - outcomes["rightly none"])


def test_small_parts_are_put_together(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """Of four GPUs that can be divided, all seven small parts get on one. kube-scheduler alone takes any
    node, and leaves fewer whole GPUs."""
    api.create_all(classes())
    names = [f"n{number}" for number in range(4)]
    for node, slices in map(divided_node, names):
        api.create(node)
        api.create_all(slices)
    wait_for_devices(stowage, names)
    with cluster.scheduler(scheduler_configuration(stowage.url, CLAIMS_ONLY)):
        for number in range(7):
            small, claim = small_pod(f"small-{number}", "stowage")
            api.create(claim)
            api.create(small)
            wait_until_held(stowage, f"small-{number}", names)
    nodes = Counter(pod["spec"]["nodeName"] for pod in api.list("Pod")["items"])
    assert list(nodes.values()) == [7]
    (full,) = nodes
    told = devices(stowage, full)
    parts = [device for device in told if device["pods"]]
    assert sorted(device["device"] for device in parts) == [
        f"gpu.nvidia.com/{full}/gpu-0-mig-1g10gb-19-{start}" for start in range(7)
    ]
    assert {pod for device in parts for pod in device["pods"]} == {f"default/small-{n}" for n in range(7)}
    assert not any(device["free"] for device in told if device["device"].endswith("/gpu-0"))


def test_claims_do_not_wait_for_stowage(cluster: ControlPlane, api: Api) -> None:
    api.create_all(classes())
    node, slices = divided_node("n0")
    api.create(node)
    api.create_all(slices)
    small, claim = small_pod("small", "stowage")
    api.create(claim)
    api.create(small)
    with cluster.scheduler(scheduler_configuration(f"http://127.0.0.1:{free_port()}", CLAIMS_ONLY)):
        eventually(
            lambda: api.get("Pod", "small")["spec"].get("nodeName") == "n0", within_s=60, what="it is placed"
        )


def test_gpus_that_no_node_advertises(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """A device class replaces nvidia.com/gpu. Pods that request it go to the nodes with such devices, and
    fill the used node first."""
    standing = next(one for one in classes() if one["metadata"]["name"] == "gpu.nvidia.com")
    standing["spec"]["extendedResourceName"] = GPU
    api.create(standing)
    names = ["n0", "n1"]
    for node, gpus in (whole_node(name, 4) for name in names):
        api.create(node)
        api.create(gpus)
    wait_for_devices(stowage, names)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        for number in range(3):
            api.create(pod(f"trains-{number}", {GPU: 2}))
            wait_until_held(stowage, f"trains-{number}", names)
    nodes = Counter(one["spec"]["nodeName"] for one in api.list("Pod")["items"])
    assert sorted(nodes.values()) == [1, 2]
    holders = [one["pods"] for name in names for one in devices(stowage, name) if one["pods"]]
    assert sorted(holders) == sorted([[f"default/trains-{n}"] for n in range(3)] * 2)
    assert stowage.json(f"/debug/nodes/{max(nodes, key=lambda name: nodes[name])}")["takes_nothing"] == ""


def create(api: Api, cases: list[Case]) -> None:
    """Create the cases, with their allocated claims."""
    claims = [claim for one in cases for claim in one.claims]
    api.patch(
        "Namespace", NAMESPACE, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    )
    api.create_all(classes())
    api.create_all(node for one in cases for node in one.nodes)
    api.create_all(part for one in cases for part in one.slices)
    api.create_all({key: claim[key] for key in claim.keys() - {"status"}} for claim in claims)
    given = [claim for claim in claims if "status" in claim]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda claim: give(api, claim), given):
            pass
    api.create_all(one.pod for one in cases)


def give(api: Api, claim: Object) -> None:
    """Allocate a claim as a scheduler does."""
    api.patch("ResourceClaim", f"{claim['metadata']['name']}/status", {"status": claim["status"]})


def knows(stowage: Stowage, cases: list[Case]) -> bool:
    """Whether Stowage knows every device, the claims that hold it, and every waiting pod and claim."""
    nodes = {node["name"]: node["devices"] for node in stowage.json("/debug/nodes")["nodes"]}
    expected = {name: count for one in cases for name, count in one.devices.items()}
    if {name: len(devices) for name, devices in nodes.items()} != expected:
        return False
    told = {claim for devices in nodes.values() for device in devices for claim in device["claims"]}
    given = {f"default/{name}" for one in cases for name in one.held}
    if told != given or stowage.status(f"/debug/pods/default/{cases[-1].name}-pod") != 200:
        return False
    return all(explained(stowage, one)["nodes"] == len(one.nodes) for one in cases)


def settled(look: Callable[[], dict[str, list[Object]]]) -> dict[str, list[Object]]:
    """The first result that is the same a second later: missing claims look like deleted ones."""
    seen = look()
    while True:
        time.sleep(1)
        before, seen = seen, look()
        if before == seen:
            return seen


def explained(stowage: Stowage, one: Case) -> Object:
    """Stowage's present explanation for the pod of a case."""
    now: Object = stowage.json(f"/debug/pods/default/{one.name}-pod")["now"]
    return now


def options(stowage: Stowage, one: Case) -> list[Object]:
    """The nodes of a case that have the devices, according to Stowage."""
    best: list[Object] = explained(stowage, one)["best"]
    return best


def tried(pod: Object) -> bool:
    """Whether kube-scheduler has placed the pod, or has reported that it cannot."""
    conditions = pod["status"].get("conditions", ())
    return bool(pod["spec"].get("nodeName")) or any(
        one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions
    )


def judged(options: list[Object], pod: Object, claims: dict[str, Object]) -> tuple[str, object]:
    """How the prediction compares with the allocation: the outcome, and the details."""
    node = pod["spec"].get("nodeName")
    predicted = {option["node"]: option["devices"] for option in options}
    if not node:
        why = [one["message"] for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
        return ("wrongly some", (predicted, why)) if any(predicted.values()) else ("rightly none", why)
    names = [entry["resourceClaimName"] for entry in pod["spec"]["resourceClaims"]]
    if made := pod["status"].get("extendedResourceClaimStatus"):
        names.append(made["resourceClaimName"])
    given = [
        "/".join((result["driver"], result["pool"], result["device"]))
        for name in names
        for result in claims[name]["status"]["allocation"]["devices"]["results"]
    ]
    if predicted.get(node) == given:
        return "right", given
    return ("other devices" if predicted.get(node) else "wrongly none"), (predicted, given)


def devices(stowage: Stowage, node: str) -> list[Object]:
    """The devices of a node, according to Stowage."""
    told: list[Object] = stowage.json(f"/debug/nodes/{node}")["devices"]
    return told


def wait_for_devices(stowage: Stowage, names: list[str]) -> None:
    eventually(
        lambda: all(stowage.status(f"/debug/nodes/{n}") == 200 and devices(stowage, n) for n in names),
        within_s=30,
        what="Stowage knows all devices",
    )


def wait_until_held(stowage: Stowage, pod: str, nodes: list[str]) -> None:
    eventually(lambda: held(stowage, pod, nodes), within_s=60, what=f"the devices of {pod} are known")


def held(stowage: Stowage, pod: str, nodes: list[str]) -> bool:
    """Whether Stowage knows the device of the pod's claim."""
    return any(f"default/{pod}" in device["pods"] for node in nodes for device in devices(stowage, node))
