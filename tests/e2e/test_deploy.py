"""The real API server accepts the manifests of deploy/, and their rights suffice."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .stowage import Stowage, applied, manifests

NAMESPACE = "stowage-system"
LAYOUTS = ["behind-a-service.yaml", "beside-kube-scheduler.yaml"]


@pytest.mark.parametrize("file", LAYOUTS)
def test_the_api_server_takes_every_field(api: Api, stowage_kubeconfig: Path, file: str) -> None:
    """`stowage_kubeconfig` has applied rbac.yaml first, as a user does."""
    with applied(api, file):
        for document in manifests(file):
            metadata = document["metadata"]
            assert api.get(document["kind"], metadata["name"], metadata.get("namespace", ""))


@pytest.mark.parametrize("file", LAYOUTS)
def test_pods_are_admitted_where_the_restricted_profile_is_enforced(
    api: Api, stowage_kubeconfig: Path, file: str
) -> None:
    enforce = "pod-security.kubernetes.io/enforce"
    (deployment,) = [one for one in manifests(file) if one["kind"] == "Deployment"]
    api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {enforce: "restricted"}}})
    try:
        pod = pod_of(deployment)
        assert api.create(pod, dryRun="All", fieldValidation="Strict")["spec"]["priority"] > 10**9
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
            api.create(pod, dryRun="All")
    finally:
        api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {enforce: None}}})


def pod_of(deployment: Object) -> Object:
    template = deployment["spec"]["template"]
    metadata = template["metadata"] | {"name": "one", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def lease(name: str, namespace: str = NAMESPACE) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
    }


FORBIDDEN: dict[str, Callable[[Api], object]] = {
    "read another Lease": lambda api: api.get("Lease", "other", NAMESPACE),
    "change another Lease": lambda api: api.replace(lease("other")),
    "create one elsewhere": lambda api: api.create(lease("stowage", "kube-system")),
    "delete its own": lambda api: api.delete("Lease", "stowage", NAMESPACE),
}


@pytest.mark.parametrize("action", FORBIDDEN)
def test_one_lease_may_be_used(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, action: str
) -> None:
    api.create(lease("other"))
    try:
        with (
            applied(api, "behind-a-service.yaml"),
            cluster.client(api.token("stowage")) as stowage,
            pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"),
        ):
            FORBIDDEN[action](stowage)
    finally:
        api.delete("Lease", "other", NAMESPACE)


def test_stowage_leads_with_these_rights_and_leaves_the_lease_free(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    with applied(api, "behind-a-service.yaml"):
        election = {"LEADER_ELECTION": f"{NAMESPACE}/stowage"}
        with Stowage(cluster, stowage_kubeconfig, name="leader", **election) as stowage:
            held = api.get("Lease", "stowage", NAMESPACE)["spec"]
            assert held["leaseDurationSeconds"] == 15
            eventually(lambda: renewed(api) != held["renewTime"], within_s=30, what="the Lease is renewed")
            assert stowage.process.stop() == 0
        spec = api.get("Lease", "stowage", NAMESPACE)["spec"]
        assert not spec.get("holderIdentity")
        api.delete("Lease", "stowage", NAMESPACE)


def test_without_them_it_is_not_ready_and_says_why(cluster: ControlPlane, stowage_kubeconfig: Path) -> None:
    election = {"LEADER_ELECTION": f"{NAMESPACE}/stowage"}
    with Stowage(cluster, stowage_kubeconfig, name="no-rights", awaits="/debug/nodes", **election) as stowage:
        said = lambda: "forbidden" in stowage.process.log.read_text()  # noqa: E731
        eventually(said, within_s=30, what="the log says that the Lease is forbidden")
        assert stowage.status("/readyz") == 503


def renewed(api: Api) -> str:
    return str(api.get("Lease", "stowage", NAMESPACE)["spec"]["renewTime"])
