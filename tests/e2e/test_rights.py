"""The rights of deploy/ are enough for Stowage, as all tests here show, and allow nothing else."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .dra_cases import claim
from .recorder import Recorder
from .rush import GPU, LABEL_SETS, LARGE, MEDIUM, SMALL
from .stowage import Stowage, applied, apply, scheduler_configuration
from .test_waiting import why_unscheduled
from .workload import budget, node, pod

FORBIDDEN: dict[str, Callable[[Api], object]] = {
    "create a pod": lambda api: api.create(pod("other", {GPU: 1})),
    "change a pod": lambda api: api.patch("Pod", "p1", {"metadata": {"annotations": {"a": "b"}}}),
    "delete a pod": lambda api: api.delete("Pod", "p1"),
    "bind a pod": lambda api: api.bind("p1", "n1"),
    "change a node": lambda api: api.patch("Node", "n1", {"metadata": {"labels": {"a": "b"}}}),
    "read events": lambda api: api.list("Event"),
    "create a resource claim": lambda api: api.create(claim("c1")),
    "evict a pod": lambda api: api.evict("p1"),
    "nominate a node": lambda api: nominate(api, "p1"),
    "change a budget": lambda api: api.create(budget("b1", {}, min_available=1)),
}
EVICTOR_MAY = ("nominate a node", "evict a pod")  # test_evictor.py shows that this is enough


def nominate(api: Api, name: str) -> None:
    api.patch("Pod", name, {"status": {"nominatedNodeName": "n1"}}, subresource="status")


@pytest.mark.parametrize("action", FORBIDDEN)
def test_stowage_may_only_read(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, action: str
) -> None:
    api.create(node("n1", {GPU: 8}))
    api.create(pod("p1", {GPU: 1}))
    with cluster.client(api.token("stowage")) as stowage:
        assert stowage.list("Node")["items"]
        assert stowage.get("Pod", "p1")
        assert stowage.list("PriorityClass")["items"]
        for kind in ("DeviceClass", "ResourceSlice", "ResourceClaim", "PodDisruptionBudget"):
            assert stowage.list(kind)["items"] == []
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
            FORBIDDEN[action](stowage)


def test_the_evictor_may_evict_and_nominate(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """It may not delete pods, which would pass by the budgets, nor change anything else of them."""
    api.create(node("n1", {GPU: 8}))
    api.create(pod("p1", {GPU: 1}))
    with applied(api, "rbac-evictor.yaml"), cluster.client(api.token("stowage")) as stowage:
        for action in FORBIDDEN.keys() - EVICTOR_MAY - {"read events"}:
            with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
                FORBIDDEN[action](stowage)
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
            stowage.get("Lease", "another", "stowage-system")
        for action in EVICTOR_MAY:
            FORBIDDEN[action](stowage)


def test_stowage_binds_with_one_more_right(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    api.create(node("n1", {GPU: 8}))
    with (
        Stowage(cluster, stowage_kubeconfig, BIND="true") as stowage,
        Recorder(stowage.url) as recorder,
        cluster.scheduler(scheduler_configuration(recorder.url, bindVerb="bind")),
    ):
        api.create(pod("p1", {GPU: 1}))
        assert "forbidden" in why_unscheduled(api, "p1")
        apply(api, "rbac-bind.yaml")
        try:
            eventually(
                lambda: api.get("Pod", "p1")["status"]["phase"] == "Running", within_s=60, what="p1 runs"
            )
        finally:
            api.delete("ClusterRoleBinding", "stowage-bind")
    replies = [exchange.reply["Error"] for exchange in recorder.exchanges() if exchange.verb == "bind"]
    assert "forbidden" in replies[0]
    assert replies[-1] == ""


LAYOUTS = """
version: v1
mig-configs:
  first-two:
  - {devices: [0, 1], mig-enabled: true, mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}}
  - {devices: [2, 3, 4, 5, 6, 7], mig-enabled: false}
"""


def config_map(name: str) -> Object:
    metadata = {"name": name, "namespace": "gpu-operator"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yaml": LAYOUTS}}


def test_stowage_follows_the_one_configmap_of_the_mig_manager(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """The Role names the GPU operator's default. Without the ConfigMap Stowage guesses: whole GPUs first."""
    name = "default-mig-parted-config"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}})
    labels = {"nvidia.com/mig.config": "first-two", "nvidia.com/mig.config.state": "success"}
    devices = {GPU: 6, SMALL: 4, MEDIUM: 2, LARGE: 2}
    api.create(node("n1", devices, labels=LABEL_SETS["h100-8-mixed-2-of-8"] | labels))
    with (
        applied(api, "rbac-mig-manager.yaml"),
        cluster.client(api.token("stowage")) as client,
        Stowage(cluster, stowage_kubeconfig, MIG_MANAGER=f"gpu-operator/{name}") as stowage,
    ):
        eventually(lambda: bool(small(stowage)), within_s=30, what="Stowage knows the node")
        assert small(stowage) == ([6, 7], [])
        api.create(config_map(name))
        eventually(lambda: small(stowage) == ([0, 1], [2, 2]), within_s=30, what="Stowage knows the layout")
        api.delete("ConfigMap", name, "gpu-operator")
        eventually(lambda: small(stowage) == ([6, 7], []), within_s=30, what="Stowage guesses again")
        for forbidden in (
            partial(client.get, "ConfigMap", "another", "gpu-operator"),
            partial(client.list, "ConfigMap"),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
                forbidden()


def small(stowage: Stowage) -> tuple[list[int], list[int]]:
    """The GPUs of the node that have small instances, and how many each has."""
    pools = stowage.json("/debug/nodes/n1")["pools"]
    (pool,) = [one for one in pools if one["resource"] == SMALL]
    return pool["gpus"], pool["each"]
