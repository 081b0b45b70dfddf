"""Beside cluster-autoscaler and Karpenter: what they look at, nodes that come, nodes that go.

Neither of them runs here. The test does what they do to pods and nodes, in their words: it finds the pods
that they would help, and creates, taints and deletes nodes. docs/autoscalers.md names the sources.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import workload
from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .evidence import message, stays
from .queue_cases import BACKFILL, INTERACTIVE, ago, create_classes, present, run, wait_until_running
from .rush import GPU, LABEL_SETS
from .sharing import PRODUCT, own_pod
from .stowage import Stowage, applied, scheduler_configuration
from .test_evictor import SHARED, evicting, share

H100 = LABEL_SETS["h100-sxm-8-whole"]
SHARING = {"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"} | PRODUCT
KARPENTER = {"karpenter.sh/nodepool": "gpu", "karpenter.sh/registered": "true"}
STARTUP = {"key": "example.com/gpu-driver", "value": "installing", "effect": "NoSchedule"}
UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
LEAVING = {
    "cluster-autoscaler": {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"},
    "Karpenter": {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"},
}
TOLERATES_ALL = [{"operator": "Exists"}]
DEFAULT = "default-scheduler"
ANNOUNCED = {
    "cluster-autoscaler": ("TriggeredScaleUp", "pod triggered scale-up: [{gpu-nodes 1->2 (max: 8)}]"),
    "Karpenter": ("Nominated", "Pod should schedule on: nodeclaim/gpu-x7k2p"),
}


@pytest.fixture
def schedulers(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[None]:
    """A kube-scheduler with Stowage, which also binds parts of GPUs, and a default one."""
    plain = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
    }
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        stowage = stack.enter_context(Stowage(cluster, stowage_kubeconfig, name="stowage-binds", BIND="true"))
        stack.enter_context(cluster.scheduler(scheduler_configuration(stowage.url, "shared-gpus.yaml")))
        stack.enter_context(cluster.scheduler(plain, DEFAULT))
        yield


def needs_a_node(pod: Object) -> bool:
    """Whether both look for a node for this pod: cluster-autoscaler's list of unschedulable pods has it, and
    Karpenter's IsProvisionable, which leaves out nominated pods, holds."""
    (condition,) = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"] or [
        {}
    ]
    unschedulable = condition.get("status") == "False" and condition.get("reason") == "Unschedulable"
    return unschedulable and "nodeName" not in pod["spec"] and not pod["status"].get("nominatedNodeName")


def asks_for_a_node(api: Api, name: str) -> None:
    eventually(lambda: needs_a_node(api.get("Pod", name)), within_s=60, what=f"{name} asks for a node")


def taint(api: Api, node: str, *taints: Object) -> None:
    api.patch("Node", node, {"spec": {"taints": list(taints)}})


def test_a_pod_that_waits_is_one_that_they_help(api: Api, schedulers: None) -> None:
    """Whether kube-scheduler or only Stowage refuses: the same condition, and its message says why."""
    api.create(workload.node("full", {GPU: 8}, labels=H100))
    api.create(workload.node("shared", {}, labels=SHARING | {f"{GPU}.count": "1"}))
    api.create(workload.pod("all", {GPU: 8}))
    api.create(own_pod("part", "600m", "30Gi"))
    for name in ("all", "part"):
        wait_until_running(api, name)
    api.create(workload.pod("more", {GPU: 1}))
    api.create(own_pod("large", "600m", "30Gi"))
    for name, text in {
        "more": f"Insufficient {GPU}",
        "large": "1 not enough free GPUs",
    }.items():
        asks_for_a_node(api, name)
        assert text in message(api, name)


def test_a_new_node_gets_no_pods_until_its_device_plugin_is_up(api: Api, schedulers: None) -> None:
    """Scale-up as Karpenter does it: the node registers, starts up, and only then has its GPUs."""
    api.create(workload.pod("waits", {GPU: 4}))
    asks_for_a_node(api, "waits")
    api.create(workload.node("new", {}, labels=H100 | KARPENTER))
    taint(api, "new", UNREGISTERED, STARTUP)
    stays(api, "waits", "untolerated taint")
    taint(api, "new", STARTUP)
    tolerant = workload.pod("tolerates-all", {GPU: 1})
    tolerant["spec"]["tolerations"] = TOLERATES_ALL
    api.create(tolerant)
    stays(api, "tolerates-all", f"Insufficient {GPU}")
    taint(api, "new")
    stays(api, "waits", f"Insufficient {GPU}")  # GPU feature discovery has labelled it, the plugin is late
    amounts = {GPU: "8"}
    api.patch("Node", "new", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
    assert wait_until_running(api, "waits") == wait_until_running(api, "tolerates-all") == "new"


def test_nor_do_parts_of_its_gpus_before_it_says_what_they_are(api: Api, schedulers: None) -> None:
    """kube-scheduler would place these pods on any node: they request no resource that it knows."""
    api.create(own_pod("part", "500m", "30Gi"))
    asks_for_a_node(api, "part")
    api.create(workload.node("new", {}, labels=KARPENTER))
    stays(api, "part", "node does not offer the requested GPU resource")
    api.patch("Node", "new", {"metadata": {"labels": SHARING}})
    assert wait_until_running(api, "part") == "new"


@pytest.mark.parametrize("who", LEAVING)
def test_a_node_that_is_about_to_go_gets_no_pods(api: Api, schedulers: None, who: str) -> None:
    """Not even a pod that tolerates every taint, which the default scheduler places there."""
    api.create(workload.node("goes", {GPU: 8}, labels=H100))
    api.create(workload.pod("first", {GPU: 6}))
    wait_until_running(api, "first")
    taint(api, "goes", LEAVING[who])
    waiting = workload.pod("waits", {GPU: 2})
    waiting["spec"]["tolerations"] = TOLERATES_ALL
    api.create(waiting)
    stays(api, "waits", "node is about to be terminated")
    asks_for_a_node(api, "waits")
    other = workload.pod("careless", {GPU: 1}, scheduler=DEFAULT)
    other["spec"]["tolerations"] = TOLERATES_ALL
    api.create(other)
    assert wait_until_running(api, "careless") == "goes"
    api.create(workload.node("stays", {GPU: 8}, labels=H100))
    assert wait_until_running(api, "waits") == "stays"


def churn(api: Api, scheduler: str) -> list[str]:
    """40 pods on 10 nodes of 8 GPUs, of which half are replaced twice. The nodes that have no pod then."""

    def mine() -> list[Object]:
        pods = [one for one in api.list("Pod")["items"] if one["spec"]["schedulerName"] == scheduler]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    for round_, first in enumerate((0, 40, 60)):
        for number in range(first, first + (40 if round_ == 0 else 20)):
            api.create(workload.pod(f"{scheduler}-{number:02}", {GPU: 1}, scheduler=scheduler))
        eventually(lambda: all(map(runs, mine())), within_s=60, what="all run")
        if round_ < 2:
            for one in mine()[:20]:
                api.delete("Pod", one["metadata"]["name"])
            eventually(lambda: len(mine()) == 20, within_s=30, what="half of them are gone")

    used = {one["spec"]["nodeName"] for one in mine()}
    return [
        one["metadata"]["name"] for one in api.list("Node")["items"] if one["metadata"]["name"] not in used
    ]


def test_nodes_become_empty_so_that_they_can_go(api: Api, schedulers: None) -> None:
    """Both remove empty nodes first. 40 GPUs of work fill 5 nodes at least."""
    for number in range(10):
        api.create(workload.node(f"node-{number}", {GPU: 8}, labels=H100))
    empty = {}
    with Audit(api) as audit:
        empty[DEFAULT] = churn(api, DEFAULT)
        api.delete_all("Pod")
        eventually(lambda: not api.list("Pod")["items"], within_s=30, what="the pods are gone")
        empty["stowage"] = churn(api, "stowage")
    assert audit.findings == []
    print({name: len(nodes) for name, nodes in empty.items()})
    assert len(empty["stowage"]) == 5
    assert not empty[DEFAULT]
    for name in empty["stowage"]:
        taint(api, name, LEAVING["cluster-autoscaler"])
        api.delete("Node", name)
    api.create(workload.pod("too-much", {GPU: 1}))
    asks_for_a_node(api, "too-much")
    api.create(workload.node("again", {GPU: 8}, labels=H100))
    assert wait_until_running(api, "too-much") == "again"


def announce(api: Api, name: str, who: str) -> None:
    """The Event that this autoscaler writes when it makes a node for the pod."""
    reason, text = ANNOUNCED[who]
    uid = api.get("Pod", name)["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": name, "uid": uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.announced", "namespace": "default"},
        "involvedObject": about,
        **{"type": "Normal", "reason": reason, "message": text, "count": 1},
        **{"source": {"component": who.lower()}, "firstTimestamp": ago(0), "lastTimestamp": ago(0)},
    }
    api.create(event)


@pytest.mark.parametrize("who", ANNOUNCED)
def test_the_evictor_waits_for_a_node_that_was_announced(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, who: str
) -> None:
    """Without the Event it evicts within seconds (test_evictor.py). Here the new node comes first."""
    create_classes(api)
    api.create(workload.node("n1", {}, labels=SHARED))
    run(api, share("backfill", priority_class=BACKFILL, holds=True), on="n1", for_s=7200)
    with evicting(cluster, stowage_kubeconfig) as stowage:
        api.create(share("notebook", priority_class=INTERACTIVE))
        announce(api, "notebook", who)
        asks_for_a_node(api, "notebook")
        skips = lambda: stowage.metric('stowage_evictor_skipped{reason="scale_up"}') == 1  # noqa: E731
        eventually(skips, within_s=60, what="the evictor waits for the node", every_s=0.2)
        assert present(api) == {"backfill", "notebook"}
        api.create(workload.node("n2", {}, labels=SHARED | KARPENTER))
        assert wait_until_running(api, "notebook") == "n2"
        assert present(api) == {"backfill", "notebook"}
