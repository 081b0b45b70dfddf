"""Gangs of Kubernetes' own PodGroup, which kube-scheduler places and preempts for as a whole (gate
GenericWorkload, beta and off by default in 1.37)."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from .controlplane.api import Api, Object
from .controlplane.build import missing, release
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import hami_mig_node
from .queue_cases import BACKFILL, HOUR, INTERACTIVE, create_classes, present, run
from .rush import GPU, LABEL_SETS
from .sharing import PRODUCT, hami_pod, own_pod
from .stowage import Stowage, apply, scheduler_configuration
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]
GATE = "GenericWorkload=true"

pytestmark = pytest.mark.skipif(release() < "1.37", reason="1.37 has the first API of PodGroups that stays")


@pytest.fixture(scope="module")
def gang_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the gate on."""
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    served = "scheduling.k8s.io/v1beta1=true"
    directory = tmp_path_factory.mktemp("gang-plane")
    with ControlPlane(directory, feature_gates=GATE, runtime_config=served) as plane:
        apply(plane.api, "rbac.yaml")
        apply(plane.api, "rbac-bind.yaml")
        yield plane


@pytest.fixture
def api(gang_plane: ControlPlane) -> Iterator[Api]:
    create_classes(gang_plane.api)
    yield gang_plane.api
    gang_plane.api.clean_up()


@pytest.fixture
def gang_stowage(gang_plane: ControlPlane, api: Api) -> Iterator[Stowage]:
    """One that remembers no evictions of other tests."""
    kubeconfig = gang_plane.kubeconfig_for("stowage", gang_plane.api.token("stowage"))
    with Stowage(gang_plane, kubeconfig, BIND="true") as running:
        yield running


def create_gang(api: Api, name: str, count: int, gpus: int, minimum: int = 0) -> list[str]:
    """A PodGroup of high priority and its members; their names."""
    return gang_of(api, name, count, minimum, lambda one: pod(one, {GPU: gpus}, priority_class=INTERACTIVE))


def gang_of(api: Api, name: str, count: int, minimum: int, member: Callable[[str], Object]) -> list[str]:
    group: Object = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": minimum or count}},
            "priorityClassName": INTERACTIVE,
        },
    }
    api.create(group, "NativePodGroup")
    names = [f"{name}-{number}" for number in range(count)]
    for one in names:
        made = member(one)
        made["spec"] |= {"schedulingGroup": {"podGroupName": name}, "priorityClassName": INTERACTIVE}
        api.create(made)
    return names


def placed(api: Api, names: list[str]) -> list[str]:
    """The nodes of those that have one."""
    nodes = (api.get("Pod", name)["spec"].get("nodeName", "") for name in names)
    return [node for node in nodes if node]


def wait_until_placed(api: Api, names: list[str]) -> list[str]:
    eventually(lambda: len(placed(api, names)) == len(names), within_s=60, what="the gang is placed")
    return placed(api, names)


def wait_until_tried(api: Api, names: list[str]) -> None:
    eventually(
        lambda: all(api.get("Pod", name)["status"].get("conditions") for name in names),
        within_s=30,
        what="the gang was tried",
    )


def fill(api: Api, name: str, *sizes: int, priority: str = BACKFILL) -> None:
    api.create(node(name, {GPU: 8}, labels=H100))
    for number, gpus in enumerate(sizes):
        run(api, pod(f"on-{name}-{number}", {GPU: gpus}, priority_class=priority), on=name, for_s=HOUR)


def test_pods_of_low_priority_leave_for_a_gang(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage
) -> None:
    fill(api, "first-1", 4, 4)
    fill(api, "first-2", 8)
    gang_stowage.flush(api)
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url)):
        names = create_gang(api, "urgent", 2, 8)
        assert sorted(wait_until_placed(api, names)) == ["first-1", "first-2"]


def test_only_as_many_leave_as_must(gang_plane: ControlPlane, api: Api, gang_stowage: Stowage) -> None:
    """Four of seven nodes: the one that is free, and those where the fewest leave."""
    fill(api, "free")
    for number in range(3):
        fill(api, f"crowded-{number}", *[1] * 8)
    for number in range(3):
        fill(api, f"single-{number}", 8)
    gang_stowage.flush(api)
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url)):
        names = create_gang(api, "large", 4, 8)
        assert sorted(wait_until_placed(api, names)) == ["free", "single-0", "single-1", "single-2"]
    assert sum(name.startswith("on-crowded") for name in present(api)) == 24


def test_nobody_leaves_for_a_gang_that_does_not_fit_even_then(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage
) -> None:
    fill(api, "n1", 8)
    fill(api, "n2", 8, priority=INTERACTIVE)
    gang_stowage.flush(api)
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url)):
        names = create_gang(api, "too-large", 2, 8)
        wait_until_tried(api, names)
        time.sleep(3)  # evictions take a moment
    assert placed(api, names) == []
    assert {"on-n1-0", "on-n2-0"} <= present(api)


def test_a_gang_with_room_evicts_nobody_and_stays_together(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage
) -> None:
    """Members beyond the minimum are placed as far as there is room."""
    fill(api, "n1", 8)
    for number in range(2, 4):
        fill(api, f"n{number}")
    gang_stowage.flush(api)
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url)):
        names = create_gang(api, "pairs", 4, 4, minimum=2)
        assert sorted(wait_until_placed(api, names)) == ["n2", "n2", "n3", "n3"]
    assert "on-n1-0" in present(api)


def test_two_gangs_at_once(gang_plane: ControlPlane, api: Api, gang_stowage: Stowage) -> None:
    for number in range(4):
        fill(api, f"both-{number}", 8)
    gang_stowage.flush(api)
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url)):
        names = create_gang(api, "one", 2, 8) + create_gang(api, "two", 2, 8)
        assert sorted(wait_until_placed(api, names)) == [f"both-{number}" for number in range(4)]


# Nodes of one GPU, and pods that take half of one.
HALVES: dict[str, tuple[Callable[[str], Object], Callable[[str], Object]]] = {
    "shares": (
        lambda name: node(
            name, {}, labels={"stowage.dev/gpu-sharing": "true", GPU + ".count": "1"} | PRODUCT
        ),
        lambda name: own_pod(name, "500m", "30Gi"),
    ),
    "MIG": (lambda name: hami_mig_node(name, 1), lambda name: hami_pod(name, 0, 15_360)),
}


@pytest.fixture(params=HALVES)
def half(request: pytest.FixtureRequest, api: Api, gang_stowage: Stowage) -> Callable[[str], Object]:
    """A pod that takes half of a GPU, of which there are three on three nodes."""
    one_gpu, pod_of = HALVES[request.param]
    for number in range(3):
        api.create(one_gpu(f"n{number}"))
    gang_stowage.flush(api)
    return pod_of


def test_no_half_of_a_gpu_is_promised_twice(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage, half: Callable[[str], Object]
) -> None:
    """kube-scheduler counts no halves, and asks about all members before it binds one. They share as few GPUs
    as can be, and no binding is refused."""
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url, "shared-gpus.yaml")):
        names = gang_of(api, "halves", 5, 5, half)
        nodes = wait_until_placed(api, names)
    assert sorted(Counter(nodes).values()) == [1, 2, 2]
    assert refusals(api) == []


def test_a_gang_of_more_halves_than_there_are_gets_none(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage, half: Callable[[str], Object]
) -> None:
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url, "shared-gpus.yaml")):
        names = gang_of(api, "seven", 7, 7, half)
        wait_until_tried(api, names)
        time.sleep(3)
    assert placed(api, names) == []


def test_of_two_gangs_on_halves_one_waits_as_a_whole(
    gang_plane: ControlPlane, api: Api, gang_stowage: Stowage, half: Callable[[str], Object]
) -> None:
    with gang_plane.scheduler(scheduler_configuration(gang_stowage.url, "shared-gpus.yaml")):
        gangs = [gang_of(api, name, 4, 4, half) for name in ("one", "two")]
        for names in gangs:
            wait_until_tried(api, names)
        time.sleep(3)
    assert sorted(len(placed(api, names)) for names in gangs) == [0, 4]


def refusals(api: Api) -> list[str]:
    """Why attempts failed, apart from calls that took too long on a busy machine."""
    failed = (one for one in api.list("Event")["items"] if one["reason"] == "FailedScheduling")
    return [one["message"] for one in failed if "deadline" not in one["message"]]
