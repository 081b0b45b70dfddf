"""A pod of higher priority preempts others on a node where Stowage finds that this makes room."""

import pytest

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import wait_until_running
from .recorder import Recorder
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .workload import node, pod, priority_class

H100 = LABEL_SETS["h100-sxm-8-whole"]


@pytest.fixture
def stowage(new_stowage: Stowage) -> Stowage:
    return new_stowage


def test_victims_go_where_it_helps(
    cluster: ControlPlane, api: Api, stowage: Stowage, recorder: Recorder
) -> None:
    """kube-scheduler alone would evict the one pod on the node whose MIG configuration changes, in vain."""
    api.create(node("busy", {GPU: 8}, labels=H100))
    api.create(node("changing", {GPU: 8}, labels=H100 | {"nvidia.com/mig.config.state": "pending"}))
    api.create(priority_class("urgent", 1000))
    api.create(pod("large", {GPU: 8}, on="changing"))
    small = {
        api.create(pod(f"small-{number}", {GPU: 1}, on="busy"))["metadata"]["uid"] for number in range(8)
    }
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(recorder.url)):
        api.create(pod("urgent", {GPU: 8}, priority_class="urgent"))
        eventually(
            lambda: api.get("Pod", "urgent")["status"]["phase"] == "Running",
            within_s=60,
            what="the urgent pod runs",
        )
    assert api.get("Pod", "urgent")["spec"]["nodeName"] == "busy"
    assert {pod["metadata"]["name"] for pod in api.list("Pod")["items"]} == {"urgent", "large"}
    asked = [exchange for exchange in recorder.exchanges() if exchange.verb == "preempt"]
    assert set(asked[0].request["NodeNameToMetaVictims"]) == {"busy", "changing"}
    (chosen,) = asked[0].reply["NodeNameToMetaVictims"].items()
    assert chosen[0] == "busy"
    assert {victim["UID"] for victim in chosen[1]["Pods"]} == small


def test_a_pod_that_hangs_in_terminating_starves_nobody(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """A finalizer that nobody removes: its place is no room that comes."""
    api.create(priority_class("urgent", 1000))
    not_kwoks = {"e2e.stowage.dev/runs-as-process": "true"}  # nobody ends it
    for name, labels in (("hangs", not_kwoks), ("runs", None)):
        api.create(node(name, {GPU: 8}, labels=H100))
        api.create(pod(f"on-{name}", {GPU: 8}, on=name, labels=labels))
    stowage.flush(api)
    api.patch("Pod", "on-hangs", {"metadata": {"finalizers": ["example.com/hold"]}})
    api.delete("Pod", "on-hangs")
    try:
        with cluster.scheduler(scheduler_configuration(stowage.url)):
            api.create(pod("urgent", {GPU: 8}, priority_class="urgent"))
            assert wait_until_running(api, "urgent", within_s=40) == "runs"
    finally:
        api.patch("Pod", "on-hangs", {"metadata": {"finalizers": []}})
