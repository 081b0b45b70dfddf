"""The real API server says who may read `/debug` and `/metrics` (deploy/rbac-debug-auth.yaml)."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .stowage import Stowage, applied

READER = "prometheus"
SUBJECT = {"kind": "ServiceAccount", "name": READER, "namespace": "stowage-system"}


@pytest.fixture
def reader(api: Api, stowage_kubeconfig: Path) -> Iterator[str]:
    """The token of a service account that may read `/metrics`, as soon as the role for that exists."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "stowage-metrics",
        },
        "subjects": [SUBJECT],
    }
    metadata = {"name": READER, "namespace": "stowage-system"}
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    api.create(binding)
    yield api.token(READER)  # for the API server, as the one in Prometheus' pod
    api.delete("ClusterRoleBinding", "reader")
    api.delete("ServiceAccount", READER)


def test_rbac_decides_who_reads_metrics(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, reader: str
) -> None:
    with Stowage(cluster, stowage_kubeconfig, name="stowage-auth", DEBUG_TOKEN_REVIEW="true") as stowage:

        def get(path: str, token: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return httpx.get(stowage.url + path, headers=headers, trust_env=False, timeout=10)

        refused = get("/metrics", reader)
        assert refused.status_code == 503  # Stowage itself has no right to ask
        assert "forbidden" in refused.json()["detail"]
        with applied(api, "rbac-debug-auth.yaml"):
            eventually(lambda: get("/metrics", reader).status_code == 200, within_s=30, what="metrics")
            assert "stowage_nodes" in get("/metrics", reader).text
            assert get("/debug/nodes", reader).status_code == 401
            assert get("/metrics", "").status_code == 401
            assert get("/metrics", reader[:-4]).status_code == 401
            assert get("/readyz", "").status_code == 200
            with (
                cluster.client(api.token("stowage")) as own,
                pytest.raises(httpx.HTTPStatusError, match="403"),
            ):
                own.list("ConfigMap")
