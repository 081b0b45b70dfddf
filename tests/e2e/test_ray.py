"""Pods as KubeRay labels them (ray-operator/controllers/ray/common/pod.go, labelPod): who starts together."""

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import BATCH, create_classes, present, wait_until_running
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .test_waiting import why_unscheduled
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]


def ray_pod(name: str, kind: str, gpus: int, labels: dict[str, str] | None = None) -> Object:
    written = {"ray.io/is-ray-node": "yes", "ray.io/cluster": "c", "ray.io/node-type": kind}
    written |= {"ray.io/group": "headgroup" if kind == "head" else "gpu", "ray.io/identifier": f"c-{kind}"}
    resources = {GPU: gpus} if gpus else {}
    return pod(name, resources, priority_class=BATCH, labels=written | (labels or {}))


def running(api: Api) -> set[str]:
    pods = api.list("Pod")["items"]
    return {one["metadata"]["name"] for one in pods if one["spec"].get("nodeName")}


def test_workers_start_together_and_the_autoscaler_adds_more(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    create_classes(api)
    api.create(node("n1", {GPU: 6}, labels=H100))
    gang = {"stowage.dev/gang": "c-gpu", "stowage.dev/gang-min": "4"}
    workers = [f"worker-{number}" for number in range(4)]
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(ray_pod("head", "head", 0))
        wait_until_running(api, "head")
        api.create_all(ray_pod(name, "worker", 2, gang) for name in workers)
        for name in workers:
            assert "the pod's gang does not fit as a whole" in why_unscheduled(api, name)
        assert running(api) == {"head"}
        api.create(node("n2", {GPU: 4}, labels=H100))
        for name in workers:
            wait_until_running(api, name)
        api.create(ray_pod("worker-4", "worker", 2, gang))  # by the autoscaler, with room for one
        wait_until_running(api, "worker-4")
    assert present(api) == {"head", "worker-4", *workers}


def test_without_a_gang_every_worker_starts_by_itself(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    create_classes(api)
    api.create(node("n1", {GPU: 2}, labels=H100))
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(ray_pod("head", "head", 0))
        wait_until_running(api, "head")
        api.create_all(ray_pod(f"alone-{number}", "worker", 2) for number in range(2))
        (waits,) = {"alone-0", "alone-1"} - {first_to_run(api)}
        why_unscheduled(api, waits)
    assert len(running(api)) == 2


def first_to_run(api: Api) -> str:
    eventually(lambda: bool(running(api) - {"head"}), within_s=30, what="a worker runs")
    (name,) = running(api) - {"head"}
    return name
