"""The audit finds over-committed nodes, and nothing else."""

from .audit import Audit
from .books import Books, needs
from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU
from .workload import node, pod


def test_too_many_pods_on_a_node_are_found(cluster: ControlPlane, api: Api) -> None:
    api.create(node("n1", {GPU: 2}))
    with Audit(api) as audit:
        api.create(pod("one", {GPU: 1}, on="n1"))
        api.create(pod("two", {GPU: 1}, on="n1"))
        eventually(lambda: len(audit.bound) == 2, within_s=60, what="both are seen")
        assert audit.findings == []
        api.create(pod("three", {GPU: 1}, on="n1"))
        eventually(lambda: bool(audit.findings), within_s=60, what="there is a finding")
    assert audit.findings == ["n1 is over-committed with three: {'nvidia.com/gpu': '3 of 2'}"]


def test_the_audit_goes_on_when_the_api_server_was_away(cluster: ControlPlane, api: Api) -> None:
    api.create(node("n1", {GPU: 1}))
    with Audit(api) as audit:
        api.create(pod("one", {GPU: 1}, on="n1"))
        cluster.apiserver.restart()
        api.create(pod("two", {GPU: 1}, on="n1"))
        eventually(lambda: bool(audit.findings), within_s=60, what="there is a finding")


def test_pods_that_have_ended_or_gone_hold_nothing(cluster: ControlPlane, api: Api) -> None:
    api.create(node("n1", {GPU: 1}))
    with Audit(api) as audit:
        api.create(pod("ends", {GPU: 1}, on="n1", runs_for="100ms"))
        eventually(lambda: phases(audit) == {"Succeeded"}, within_s=60, what="the pod has ended")
        api.create(pod("goes", {GPU: 1}, on="n1"))
        api.delete("Pod", "goes")
        eventually(
            lambda: len(audit.bound) == 2 and len(audit.pods) == 1, within_s=60, what="the pod has gone"
        )
        api.create(pod("stays", {GPU: 1}, on="n1"))
        eventually(lambda: len(audit.bound) == 3, within_s=60, what="the last one is seen")
    assert audit.findings == []


def test_a_pod_needs_the_peak_of_its_init_container(api: Api) -> None:
    made = api.create(pod("p1", {GPU: 1}, cpu="500m", prepares_with={GPU: 2}))
    assert needs(made) == {"pods": 1000, "cpu": 500, "memory": 1000 << 30, GPU: 2000}
    nodes = [api.create(node(name, {GPU: gpus})) for name, gpus in (("n1", 1), ("n2", 2))]
    assert Books(nodes).fitting(made) == ["n2"]


def phases(audit: Audit) -> set[str]:
    return {pod["status"]["phase"] for pod in list(audit.pods.values())}
