"""Pods that only Stowage refuses: they wait, their events say why, and they run as soon as there is room."""

import time

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS, LARGE, MEDIUM, SMALL
from .stowage import Stowage, scheduler_configuration
from .workload import node, pod

STATE = "nvidia.com/mig.config.state"
H100 = LABEL_SETS["h100-sxm-8-whole"]
PARTITIONED = LABEL_SETS["h100-8-mixed-2-of-8"]
DEVICES = {GPU: 6, SMALL: 4, MEDIUM: 2, LARGE: 2}
SECONDS = 15  # "within seconds": kube-scheduler itself may hold a pod back for 10 s


def test_nodes_with_room_are_being_re_partitioned(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    api.create(node("full", {GPU: 8}, labels=H100))
    for name in ("changing-1", "changing-2"):
        api.create(node(name, {GPU: 8}, labels=H100 | {STATE: "pending"}))
    api.create(pod("trains", {GPU: 8}, on="full"))
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("waits", {GPU: 2}))
        message = why_unscheduled(api, "waits")
        assert message.startswith(
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 GPUs are being re-partitioned."
        )
        check_no_errors(api, "waits")
        api.patch("Node", "changing-2", {"metadata": {"labels": {STATE: "success"}}})
        runs_soon(api, "waits", on="changing-2")


def test_the_only_room_is_on_a_node_that_holds_too_much(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """A node was re-partitioned under running pods: one MIG device too many is in use, yet kube-scheduler,
    which counts each profile by itself, sees free ones of another profile."""
    api.create(node("n1", DEVICES, labels=PARTITIONED))
    for number in range(DEVICES[SMALL] + 1):
        api.create(pod(f"small-{number}", {SMALL: 1}, on="n1"))
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("waits", {MEDIUM: 1}))
        message = why_unscheduled(api, "waits")
        assert message.startswith("0/1 nodes are available: 1 node holds more GPU than it has.")
        check_no_errors(api, "waits")
        api.delete("Pod", "small-0")
        runs_soon(api, "waits", on="n1")


def why_unscheduled(api: Api, name: str) -> str:
    """The text of the pod's FailedScheduling event, once there is one."""
    eventually(lambda: bool(failures(api, name)), within_s=30, what=f"an event says why {name} waits")
    return str(failures(api, name)[0]["message"])


def failures(api: Api, name: str) -> list[Object]:
    selector = f"involvedObject.name={name},reason=FailedScheduling"
    events: list[Object] = api.list("Event", fieldSelector=selector)["items"]
    return events


def check_no_errors(api: Api, name: str) -> None:
    """Preemption found nothing to do, and did not stumble."""
    for event in failures(api, name):
        assert "Preemption is not helpful" in event["message"]
        assert "victim pod" not in event["message"]
        assert "error" not in event["message"].lower()


def runs_soon(api: Api, name: str, *, on: str) -> None:
    since = time.monotonic()
    eventually(
        lambda: api.get("Pod", name)["status"]["phase"] == "Running", within_s=SECONDS, what=f"{name} runs"
    )
    print(f"{name} runs {time.monotonic() - since:.2f} s after there was room")
    assert api.get("Pod", name)["spec"]["nodeName"] == on
