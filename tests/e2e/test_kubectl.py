"""`kubectl stowage` asks the running Stowage through the real API server (deploy/rbac-kubectl.yaml)."""

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority, Secret

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import free_port
from .rush import GPU
from .stowage import PROGRAM, Stowage, applied, manifests
from .workload import node, pod

NAMESPACE = "stowage-system"
PLUGIN = PROGRAM.with_name("kubectl-stowage")


@pytest.fixture(scope="module")
def address() -> str:
    """Of this machine. The API server proxies to no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            found: str = probe.getsockname()[0]
        except OSError:
            found = "127.0.0.1"
    if found.startswith("127."):
        pytest.skip("this machine has only loopback addresses")
    return found


@pytest.fixture
def person(api: Api, cluster: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Path]:
    """The kubeconfig of somebody who may read nodes and pods, and has the Role of deploy/."""
    group = "rbac.authorization.k8s.io"
    who = [{"kind": "ServiceAccount", "name": "person", "namespace": NAMESPACE}]

    def binding(kind: str, role: Object, **where: str) -> Object:
        metadata = {"name": "person", **where}
        return {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": group, **role},
            "subjects": who,
        }

    metadata = {"name": "person", "namespace": NAMESPACE}
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    with applied(api, "rbac-kubectl.yaml"):
        api.create(binding("ClusterRoleBinding", {"kind": "ClusterRole", "name": "stowage"}))
        api.create(binding("RoleBinding", {"kind": "Role", "name": "stowage-kubectl"}, namespace=NAMESPACE))
        yield cluster.kubeconfig_for("person", api.token("person"))
        api.delete("RoleBinding", "person")
        api.delete("ClusterRoleBinding", "person")
    api.delete("ServiceAccount", "person")


SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


def publish(api: Api, layout: str, address: str, port: int) -> list[Object]:
    """The Service of a layout in deploy/ with one endpoint: a pod that has the address of this machine."""
    (service,) = [
        one for one in manifests(f"{layout}.yaml") if one["kind"] == "Service" and "labels" in one["metadata"]
    ]
    del service["spec"]["selector"]
    where = {"name": "stowage-0", "namespace": NAMESPACE}
    spec = {"containers": [{"name": "stowage", "image": "none"}]}
    api.create(service)
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": where, "spec": spec})
    api.request(
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/pods/stowage-0/status",
        {"status": {"podIP": address, "podIPs": [{"ip": address}]}},
    )
    target = {"kind": "Pod", **where}
    subset = {
        "addresses": [{"ip": address, "targetRef": target}],
        "ports": [{"name": "debug", "port": port}],
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": service["metadata"]["name"], "namespace": NAMESPACE},
        "subsets": [subset],
    }
    api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/endpoints", endpoints)
    name = service["metadata"]["name"]
    endpoint = {"addresses": [address], "targetRef": target, "conditions": {"ready": True}}
    part = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",  # what kube-apiserver reads from 1.37 on
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4" if ":" not in address else "IPv6",
        "endpoints": [endpoint],
        "ports": [{"name": "debug", "port": port}],
    }
    api.request("POST", SLICES, part)
    return [service]


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PLUGIN), *arguments]
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOWAGE_")}
    environment = others | {"KUBECONFIG": str(kubeconfig)}  # it warns of names that are no setting
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def running(plane: ControlPlane, kubeconfig: Path, arguments: Sequence[str], secrets: Path | None) -> Stowage:
    """With TLS where there is a directory for its `secrets`."""
    if secrets is None:
        return Stowage(plane, kubeconfig, name="stowage-debug", arguments=arguments)
    authority, secret = Authority(), Secret(secrets / "tls")
    secret.certify(authority.server())
    files = [f"--tls-cert={secret.path('tls_crt')}", f"--tls-key={secret.path('tls_key')}"]
    stowage = Stowage(plane, kubeconfig, name="stowage-debug", arguments=[*arguments, *files])
    stowage.url = stowage.url.replace("http://", "https://")
    stowage.verify = ssl.create_default_context(cadata=authority.pem.decode())
    return stowage


@pytest.mark.parametrize("layout", ["beside-kube-scheduler", "behind-a-service"])
def test_the_service_is_found_and_answers(
    cluster: ControlPlane,
    api: Api,
    stowage_kubeconfig: Path,
    person: Path,
    address: str,
    layout: str,
    tmp_path: Path,
) -> None:
    port, has_tls = free_port(), layout == "behind-a-service"
    api.create(node("n1", {GPU: 8}))
    api.create(pod("p1", {GPU: 1}))
    debug = [f"--debug-host={address}", f"--debug-port={port}"]
    with running(cluster, stowage_kubeconfig, debug, tmp_path if has_tls else None) as stowage:
        message = {"Pod": api.get("Pod", "p1"), "Nodes": None, "NodeNames": ["n1"]}
        httpx.post(
            f"{stowage.url}/scheduler/filter", json=message, trust_env=False, verify=stowage.verify
        ).raise_for_status()
        alone = run(person, "explain", "default/p1")
        assert "because no Service in namespace 'stowage-system' has the label" in alone.stderr
        assert "It fits on 1 of 1 nodes" in alone.stdout
        publish(api, layout, address, port)
        try:
            asked = run(person, "explain", "default/p1")
            said = "asking the cluster", "answered by service stowage-system/stowage-debug"
            assert asked.stderr == "".join(f"stowage explain: {text}\n" for text in said)
            assert asked.stdout.startswith(alone.stdout.rstrip())
            assert "filter  1 of 1 nodes fit" in asked.stdout
            top = run(person, "top")
            assert "answered by service" in top.stderr
            assert "1 node with 8 GPUs" in top.stdout
            with cluster.client(api.token("person")) as client:
                for path in ("services/http:stowage-debug:8080", "pods/http:stowage-0:8080"):
                    with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
                        client.request("POST", f"/api/v1/namespaces/{NAMESPACE}/{path}/proxy/scheduler/bind")
        finally:
            api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/endpoints/stowage-debug")
            api.request("DELETE", f"{SLICES}/stowage-debug")
            api.delete("Service", "stowage-debug")
            api.delete("Pod", "stowage-0", NAMESPACE)
