"""docs/numa.md on a real control plane: where kubelet could not align a pod, it is not bound."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .custom_kinds import served
from .evidence import stays
from .queue_cases import wait_until_running
from .rush import GPU
from .stowage import Stowage, scheduler_configuration
from .tools import Tools
from .workload import node, pod, priority_class

FREE = {"split": (2, 2), "whole": (0, 4)}
"""GPUs that are free on each of two NUMA nodes."""


@pytest.fixture
def informed(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, tools: Tools) -> Iterator[Stowage]:
    """Two nodes with 4 of 8 GPUs free, as reported after Stowage has started."""
    with served(api, "NodeResourceTopology"):
        for name in FREE:
            api.create(node(name, {GPU: 8}))
            tools.kubectl("apply", "--validate=strict", "--filename=-", stdin=report(name, 4, 4))
            api.create(pod(f"on-{name}", {GPU: 4}, on=name))
        with Stowage(cluster, stowage_kubeconfig, name="stowage-numa") as stowage:
            stowage.flush(api)
            time.sleep(7)  # A report that comes within 5 s of a pod may not have it yet.
            for name, free in FREE.items():
                tools.kubectl("apply", "--validate=strict", "--filename=-", stdin=report(name, *free))
            yield stowage


def test_a_pod_gets_the_gpus_of_others_on_one_numa_node(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, tools: Tools
) -> None:
    """The report still shows no GPU as free when the victim is gone."""
    api.create(priority_class("urgent", 1000))
    api.create(node("full", {GPU: 8}))
    for number in range(4):
        api.create(pod(f"low-{number}", {GPU: 2}, on="full"))
    with served(api, "NodeResourceTopology"):
        tools.kubectl("apply", "--validate=strict", "--filename=-", stdin=report("full", 4, 4))
        with Stowage(cluster, stowage_kubeconfig, name="stowage-numa") as stowage:
            stowage.flush(api)
            time.sleep(7)  # A report that comes within 5 s of a pod may not have it yet.
            tools.kubectl("apply", "--validate=strict", "--filename=-", stdin=report("full", 0, 0))
            with cluster.scheduler(scheduler_configuration(stowage.url)):
                api.create(pod("urgent", {GPU: 1}, priority_class="urgent"))
                assert wait_until_running(api, "urgent", within_s=40) == "full"
    assert len(api.list("Pod")["items"]) == 4


def report(node: str, *free: int) -> str:
    """What NFD's topology updater writes of a node with 4 GPUs on each NUMA node."""
    zones = "".join(
        f"- name: node-{number}\n  type: Node\n  resources:\n"
        f"  - {{name: {GPU}, capacity: 4, allocatable: 4, available: {gpus}}}\n"
        for number, gpus in enumerate(free)
    )
    return (
        f"apiVersion: topology.node.k8s.io/v1alpha2\nkind: NodeResourceTopology\nmetadata: {{name: {node}}}\n"
        "attributes:\n- {name: topologyManagerPolicy, value: single-numa-node}\n"
        f"- {{name: topologyManagerScope, value: container}}\nzones:\n{zones}"
    )


def test_a_pod_goes_where_kubelet_can_align_it(cluster: ControlPlane, api: Api, informed: Stowage) -> None:
    with cluster.scheduler(scheduler_configuration(informed.url)):
        api.create(pod("three", {GPU: 3}))
        assert wait_until_running(api, "three") == "whole"
        api.create(pod("three-more", {GPU: 3}))
        stays(api, "three-more", f"1 Insufficient {GPU}, 1 kubelet would reject the pod")
        api.create(pod("two", {GPU: 2}))
        assert wait_until_running(api, "two") == "split"
    why = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Pod was rejected"}  # as kubelet
    api.patch("Pod", "two", {"status": why}, subresource="status")
    eventually(lambda: "TopologyAffinityError" in told(informed, "two"), within_s=30, what="explain says why")
    assert "the node could align it now" in told(informed, "two").lower()


def told(stowage: Stowage, name: str) -> str:
    """The first remark of explain about a pod."""
    found = stowage.json(f"/debug/pods/default/{name}?explained=true")["now"]
    return " ".join(found["hints"][:1])
