"""Gangs of Kubernetes' own PodGroup, which kube-scheduler places and preempts for as a whole (gate
GenericWorkload, beta and off by default in 1.37)."""

import time
from collections.abc import Iterator

import pytest

from .controlplane.api import Api, Object
from .controlplane.build import missing, release
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import BACKFILL, HOUR, INTERACTIVE, create_classes, present, run
from .rush import GPU, LABEL_SETS
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
        yield plane


@pytest.fixture
def api(gang_plane: ControlPlane) -> Iterator[Api]:
    create_classes(gang_plane.api)
    yield gang_plane.api
    gang_plane.api.delete_all("NativePodGroup")
    gang_plane.api.clean_up()


@pytest.fixture
def gang_stowage(gang_plane: ControlPlane, api: Api) -> Iterator[Stowage]:
    """One that remembers no evictions of other tests."""
    kubeconfig = gang_plane.kubeconfig_for("stowage", gang_plane.api.token("stowage"))
    with Stowage(gang_plane, kubeconfig) as running:
        yield running


def create_gang(api: Api, name: str, count: int, gpus: int, minimum: int = 0) -> list[str]:
    """A PodGroup of high priority and its members; their names."""
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
        member = pod(one, {GPU: gpus}, priority_class=INTERACTIVE)
        member["spec"]["schedulingGroup"] = {"podGroupName": name}
        api.create(member)
    return names


def placed(api: Api, names: list[str]) -> list[str]:
    """The nodes of those that have one."""
    nodes = (api.get("Pod", name)["spec"].get("nodeName", "") for name in names)
    return [node for node in nodes if node]


def wait_until_placed(api: Api, names: list[str]) -> list[str]:
    eventually(lambda: len(placed(api, names)) == len(names), within_s=60, what="the gang is placed")
    return placed(api, names)


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
        eventually(
            lambda: all(api.get("Pod", name)["status"].get("conditions") for name in names),
            within_s=30,
            what="the gang was tried",
        )
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
