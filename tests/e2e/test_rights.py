"""The rights of deploy/: enough for Stowage to work (as it does in every test here), and no more."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .dra_cases import claim
from .recorder import Recorder
from .rush import GPU
from .stowage import Stowage, apply, scheduler_configuration
from .test_waiting import why_unscheduled
from .workload import node, pod

FORBIDDEN: dict[str, Callable[[Api], object]] = {
    "create a pod": lambda api: api.create(pod("other", {GPU: 1})),
    "change a pod": lambda api: api.patch("Pod", "p1", {"metadata": {"annotations": {"a": "b"}}}),
    "delete a pod": lambda api: api.delete("Pod", "p1"),
    "bind a pod": lambda api: api.bind("p1", "n1"),
    "change a node": lambda api: api.patch("Node", "n1", {"metadata": {"labels": {"a": "b"}}}),
    "read events": lambda api: api.list("Event"),
    "create a resource claim": lambda api: api.create(claim("c1")),
    "read templates of claims": lambda api: api.list("ResourceClaimTemplate"),
}


@pytest.mark.parametrize("action", FORBIDDEN)
def test_stowage_may_only_read(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, action: str
) -> None:
    api.create(node("n1", {GPU: 8}))
    api.create(pod("p1", {GPU: 1}))
    with cluster.client(api.token("stowage")) as stowage:
        assert stowage.list("Node")["items"]
        assert stowage.get("Pod", "p1")
        for kind in ("DeviceClass", "ResourceSlice", "ResourceClaim"):
            assert stowage.list(kind)["items"] == []
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
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
