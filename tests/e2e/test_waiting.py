"""Pods that only Stowage refuses wait, have an event that says why, and run as soon as there is room."""

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
GPU_MEMORY, GPU_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
ON_GPU = "ALIYUN_COM_GPU_MEM_IDX"
SECONDS = 15  # "within seconds": kube-scheduler itself may hold a pod back for 10 s


def test_nodes_with_room_are_being_re_partitioned(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    api.create(node("full", {GPU: 8}, labels=H100))
    for name, state in {"changing-1": "rebooting", "changing-2": "pending"}.items():  # of the MIG manager
        api.create(node(name, {GPU: 8}, labels=H100 | {STATE: state}))
    api.create(pod("trains", {GPU: 8}, on="full"))
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("waits-for-labels", {GPU: 2}))
        message = why_unscheduled(api, "waits-for-labels")
        assert message.startswith(
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 MIG reconfiguration in progress."
        )
        check_no_errors(api, "waits-for-labels")
        told = stowage.json("/debug/pods/default/waits-for-labels")
        (refusal,) = told["decisions"][0]["explanation"]["refusals"]
        assert (refusal["reason"], refusal["nodes"]) == ("MIG reconfiguration in progress", 2)
        assert refusal["nearest"] in ("changing-1", "changing-2")
        api.patch("Node", "changing-2", {"metadata": {"labels": {STATE: "success"}}})
        runs_soon(api, "waits-for-labels", on="changing-2")
    stowage.flush(api)
    assert stowage.json("/debug/pods/default/waits-for-labels")["node"] == "changing-2"


def test_free_memory_is_in_crumbs(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """Two GPUs with 6 of 16 GiB free each have 12 GiB together, and kube-scheduler counts the sum."""
    api.create(node("n1", {GPU_MEMORY: 32, GPU_COUNT: 2}))
    for index in ("0", "1"):
        api.create(pod(f"infers-{index}", {GPU_MEMORY: 10}, on="n1", annotations={ON_GPU: index}))
    stowage.flush(api)
    managed = [{"name": GPU_MEMORY, "ignoredByScheduler": False}]
    with cluster.scheduler(scheduler_configuration(stowage.url, managedResources=managed)):
        api.create(pod("waits-for-memory", {GPU_MEMORY: 10}))
        message = why_unscheduled(api, "waits-for-memory")
        assert message.startswith(
            "0/1 nodes are available: 1 no single GPU has enough free compute and memory."
        )
        check_no_errors(api, "waits-for-memory")
        api.delete("Pod", "infers-0")
        runs_soon(api, "waits-for-memory", on="n1")


def test_wake_ups_are_not_lost(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """kube-scheduler retries once, at the event that makes room. Stowage, which gets the event on its own
    watch, must not be late. One miss in ten is allowed, for a machine without free CPU."""
    api.create(node("n1", {GPU: 8}, labels=H100))
    stowage.flush(api)
    missed = []
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        for name in (f"woken-{number}" for number in range(10)):
            api.patch("Node", "n1", {"metadata": {"labels": {STATE: "pending"}}})
            eventually(lambda: takes_nothing(stowage, "n1"), within_s=15, what="Stowage sees the label")
            api.create(pod(name, {GPU: 8}))
            why_unscheduled(api, name)
            time.sleep(0.5)  # until no other event can wake the pod up
            api.patch("Node", "n1", {"metadata": {"labels": {STATE: "success"}}})
            try:
                runs_soon(api, name, on="n1")
            except TimeoutError:
                missed.append(name)
            api.delete("Pod", name)
    assert len(missed) <= 1


def test_the_only_room_is_on_a_node_that_holds_too_much(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """A node's MIG configuration changed under running pods, so one MIG device too many is in use.
    kube-scheduler counts each profile by itself, and sees free devices of another profile."""
    api.create(node("n1", DEVICES, labels=PARTITIONED))
    for number in range(DEVICES[SMALL] + 1):
        api.create(pod(f"small-{number}", {SMALL: 1}, on="n1"))
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("waits-for-a-device", {MEDIUM: 1}))
        message = why_unscheduled(api, "waits-for-a-device")
        assert message.startswith("0/1 nodes are available: 1 node is over-committed.")
        check_no_errors(api, "waits-for-a-device")
        api.delete("Pod", "small-0")
        runs_soon(api, "waits-for-a-device", on="n1")


def test_a_pod_that_kube_scheduler_never_brings(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """kube-scheduler finds no node in tree and does not call Stowage, which explains the present state."""
    for name in ("full-1", "full-2"):
        api.create(node(name, {GPU: 8}, labels=H100))
        api.create(pod(f"trains-on-{name}", {GPU: 6}, on=name))
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("is-never-brought", {GPU: 3}))
        message = why_unscheduled(api, "is-never-brought")
        assert message.startswith("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    eventually(
        lambda: stowage.status("/debug/pods/default/is-never-brought") == 200, within_s=30, what="it is known"
    )
    told = stowage.json("/debug/pods/default/is-never-brought")
    assert told["decisions"] == []
    assert "Insufficient nvidia.com/gpu" in told["note"]
    (refusal,) = told["now"]["refusals"]
    assert (refusal["reason"], refusal["nodes"]) == ("not enough free GPUs", 2)
    text = f"needs 3 {GPU}, 2 of 8 are free"
    (lack,) = refusal["lacks"]
    assert lack.items() >= {"what": GPU, "asked": 3, "free": 2, "total": 8, "text": text}.items()


def why_unscheduled(api: Api, name: str) -> str:
    """The text of the pod's FailedScheduling event, once there is one."""
    eventually(lambda: bool(failures(api, name)), within_s=30, what=f"an event says why {name} waits")
    return str(failures(api, name)[0]["message"])


def failures(api: Api, name: str) -> list[Object]:
    selector = f"involvedObject.name={name},reason=FailedScheduling"
    events: list[Object] = api.list("Event", fieldSelector=selector)["items"]
    return events


def check_no_errors(api: Api, name: str) -> None:
    """Preemption found no candidates, and no error."""
    for event in failures(api, name):
        assert "Preemption is not helpful" in event["message"]
        assert "victim pod" not in event["message"]
        assert "error" not in event["message"].lower()


def takes_nothing(stowage: Stowage, node: str) -> bool:
    return bool(stowage.json(f"/debug/nodes/{node}")["takes_nothing"])


def runs_soon(api: Api, name: str, *, on: str) -> None:
    since = time.monotonic()
    eventually(
        lambda: api.get("Pod", name)["status"]["phase"] == "Running", within_s=SECONDS, what=f"{name} runs"
    )
    print(f"{name} runs {time.monotonic() - since:.2f} s after there was room")
    assert api.get("Pod", name)["spec"]["nodeName"] == on
