"""`kubectl stowage` asks the running Stowage of a default installation through the real API server.

Its users log in with client certificates, of a kubeconfig or of an exec plugin, and RBAC is on.
"""

import json
import os
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
import yaml

from tests.certificates import Authority, Secret

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually, free_port
from .rush import GPU
from .stowage import PROGRAM, Stowage
from .tools import Tools, commands, program
from .workload import node, pod

NAMESPACE = "stowage-system"
TEAM = "my-namespace"
PLUGIN = PROGRAM.with_name("kubectl-stowage")
# As in the recommendations of Kubernetes: bodies with tokens are not logged, all others are.
AUDIT: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {
            "level": "Metadata",
            "resources": [
                {"group": "", "resources": ["serviceaccounts/token"]},
                {"group": "authentication.k8s.io", "resources": ["tokenreviews"]},
            ],
        },
        {"level": "RequestResponse", "resources": [{"group": ""}]},
    ],
}
LOST = "reading the cluster directly, without decisions, expected start and learned demand, because"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("kubernetes-ca")


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def control_plane(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, audit_log: Path
) -> Iterator[ControlPlane]:
    """One that accepts client certificates, and logs requests."""
    ca, policy = audit_log.with_name("ca.crt"), audit_log.with_name("policy.yaml")
    ca.write_bytes(authority.pem)
    policy.write_text(yaml.safe_dump(AUDIT))
    audit = {"audit_policy_file": policy, "audit_log_path": audit_log}
    with ControlPlane(tmp_path_factory.mktemp("kubectl"), client_ca_file=ca, **audit) as plane:
        yield plane


@pytest.fixture(scope="module")
def tools(control_plane: ControlPlane) -> Tools:
    """The chart is installed with its default settings."""
    tools = Tools(control_plane)
    mine = f"namespaceViewers.{TEAM}[0]"
    tools.install(
        "viewers[0].kind=User,viewers[0].name=viewer", f"{mine}.kind=User,{mine}.name=guest", wait=False
    )
    admin = "--clusterrole=cluster-admin", "--user=admin"
    tools.kubectl("create", "clusterrolebinding", "admin", *admin)
    half = "--resource=services/proxy", "--resource-name=http:stowage-debug:debug"
    tools.kubectl("create", "role", "half", f"-n={NAMESPACE}", "--verb=get,create", *half)
    tools.kubectl("create", "rolebinding", "half", f"-n={NAMESPACE}", "--role=half", "--user=half")
    return tools


@pytest.fixture(scope="module")
def stowage_kubeconfig(control_plane: ControlPlane, tools: Tools) -> Path:
    return control_plane.kubeconfig_for("stowage", control_plane.api.token("stowage"))


@pytest.fixture(scope="module")
def person(control_plane: ControlPlane, authority: Authority) -> Callable[[str], Path]:
    """The kubeconfig of a user with this name. That of the viewer has an exec plugin."""

    def kubeconfig(name: str) -> Path:
        pair = authority.client(name)
        file = control_plane.kubeconfig_for(name, "")
        content = yaml.safe_load(file.read_text())
        encoded = [b64encode(text).decode() for text in (pair.certificate, pair.key)]
        user: Object = dict(zip(("client-certificate-data", "client-key-data"), encoded, strict=True))
        if name == "viewer":
            status = {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
            version = "client.authentication.k8s.io/v1"
            credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
            answer = file.with_suffix(".json")
            answer.write_text(json.dumps(credential))
            plugin = {"apiVersion": version, "command": "cat", "args": [str(answer)]}
            user = {"exec": plugin | {"interactiveMode": "Never"}}
        content["users"][0]["user"] = user
        file.write_text(yaml.safe_dump(content))
        return file

    return kubeconfig


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


def publish(api: Api, service: str, namespace: str, address: str, port: int) -> None:
    """An endpoint of a Service: a pod that has the address of this machine."""
    where = {"name": f"{service}-0", "namespace": namespace}
    spec = {"containers": [{"name": "stowage", "image": "none"}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": where, "spec": spec})
    api.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/pods/{service}-0/status",
        {"status": {"podIP": address, "podIPs": [{"ip": address}]}},
    )
    target, ports = {"kind": "Pod", **where}, [{"name": "debug", "port": port}]
    subset = {"addresses": [{"ip": address, "targetRef": target}], "ports": ports}
    metadata = {"name": service, "namespace": namespace}
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}
    api.request("POST", f"/api/v1/namespaces/{namespace}/endpoints", endpoints)
    part = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",  # what kube-apiserver reads from 1.37 on
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4" if ":" not in address else "IPv6",
        "endpoints": [{"addresses": [address], "targetRef": target, "conditions": {"ready": True}}],
        "ports": ports,
    }
    api.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", part)


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PLUGIN), *arguments]
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOWAGE_")}
    environment = others | {"KUBECONFIG": str(kubeconfig)}  # it warns of names that are no setting
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.fixture(scope="module")
def debug_url(address: str) -> str:
    return f"http://{address}:{free_port()}"


@pytest.fixture(scope="module")
def stowage(
    control_plane: ControlPlane, tools: Tools, stowage_kubeconfig: Path, address: str, debug_url: str
) -> Iterator[Stowage]:
    """It has answered `filter` about a pod of the team."""
    api = control_plane.api
    configured = tools.get("configmap", "stowage-scheduler-settings", f"-n={NAMESPACE}")
    settings = yaml.safe_load(configured["data"]["settings.yaml"])
    assert settings["debug_token_review"] is True
    port = int(debug_url.rpartition(":")[2])
    debug = [f"--debug-host={address}", f"--debug-port={port}"]
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    api.create(node("n1", {GPU: 8}))
    mine = pod("my-pod", {GPU: 1})
    mine["metadata"]["namespace"] = TEAM
    api.create(mine)
    started = Stowage(
        control_plane, stowage_kubeconfig, name="stowage-debug", arguments=debug, DEBUG_TOKEN_REVIEW="true"
    )
    with started:
        message = {"Pod": api.get("Pod", "my-pod", TEAM), "Nodes": None, "NodeNames": ["n1"]}
        httpx.post(f"{started.url}/scheduler/filter", json=message, trust_env=False).raise_for_status()
        publish(api, "stowage-debug", NAMESPACE, address, port)
        yield started


@pytest.mark.parametrize("user", ["admin", "viewer"])
def test_who_may_ask_gets_the_answer_of_the_service(
    stowage: Stowage, person: Callable[[str], Path], user: str
) -> None:
    kubeconfig = person(user)
    asked = run(kubeconfig, "explain", f"{TEAM}/my-pod")
    said = "asking the cluster", f"answered by service {NAMESPACE}/stowage-debug"
    assert asked.stderr == "".join(f"stowage explain: {text}\n" for text in said)
    assert "It fits on 1 of 1 node" in asked.stdout
    assert "filter  1 of 1 nodes fit" in asked.stdout  # a decision, which only the service knows
    top = run(kubeconfig, "top", "-n", TEAM)
    assert "answered by service" in top.stderr
    assert "1 node with 8 GPUs" in top.stdout
    assert f"{TEAM}/my-pod" in top.stdout
    manifest = run(kubeconfig, "explain", str(PROGRAM.parents[2] / "deploy" / "examples" / "first-pod.yaml"))
    assert "answered by service" in manifest.stderr


def test_a_viewer_of_one_namespace_sees_no_names_of_others(
    stowage: Stowage, person: Callable[[str], Path], api: Api
) -> None:
    theirs = pod("secret", {GPU: 8}, on="n1")
    theirs["metadata"]["namespace"] = "other"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    api.create(theirs)
    guest, urgent = person("guest"), person("viewer")
    eventually(
        lambda: "fits on none" in run(guest, "explain", f"{TEAM}/my-pod").stdout, within_s=30, what="full"
    )
    for command in ("explain", f"{TEAM}/my-pod"), ("top", "-n", TEAM):
        asked = run(guest, *command)
        assert "answered by service" in asked.stderr
        assert "my-pod" in asked.stdout
        assert "secret" not in asked.stdout
    for refused in (["explain", "other/secret"], ["top", "-n", "other"], ["top"]):
        first = run(guest, *refused).stderr.splitlines()[1]
        assert 'serviceaccounts "stowage-viewer" is forbidden: User "guest" cannot create resource' in first
    assert "other/secret" in run(urgent, "explain", "other/secret").stdout
    api.delete("Pod", "secret", "other")


def test_the_recipe_of_the_page(
    stowage: Stowage, person: Callable[[str], Path], tools: Tools, tmp_path: Path
) -> None:
    bind, *asks = commands("pending.md", "viewers")
    member = person("member")
    for command in asks:
        assert "requires a token" not in (before := run(member, *command.split()[2:]).stderr)
        assert 'User "member" cannot get resource "services/proxy"' in before
    tools.kubectl("delete", "rolebinding", "stowage-viewers", f"-n={NAMESPACE}")  # of the chart
    tools.shell(bind.replace("--group my-team", "--user member"), tmp_path)
    for command in asks:
        assert command.startswith("kubectl stowage ")
        asked = run(member, *command.split()[2:])
        assert "answered by service" in asked.stderr
        assert "my-pod" in asked.stdout
    kubectl = str(program("kubectl")), f"--kubeconfig={member}"
    create = "create", "token", "stowage-viewer", "--namespace", NAMESPACE, "--audience", "stowage"
    token = subprocess.run([*kubectl, *create], capture_output=True, text=True, check=True).stdout.strip()
    with subprocess.Popen([*kubectl, "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().split()[-1]
            page = f"http://{address}/api/v1/namespaces/{NAMESPACE}/services/http:stowage-debug:debug/proxy"
            sent = {"X-Stowage-Authorization": f"Bearer {token}"}
            for path, headers in ("/", {}), ("/page/main.js", {}), ("/debug/fleet", sent):
                answer = httpx.get(f"{page}{path}", headers=headers, trust_env=False)
                assert answer.status_code == 200, path
            assert "my-pod" in answer.text
        finally:
            proxy.terminate()


def test_nobody_is_told_first_which_right_is_missing_and_what_the_answer_lacks(
    stowage: Stowage, person: Callable[[str], Path]
) -> None:
    for command in ("explain", f"{TEAM}/my-pod"), ("top",):
        name = f"stowage {command[0]}"
        _, first, *rest = run(person("nobody"), *command).stderr.splitlines()
        assert first.startswith(f"{name}: {LOST} service {NAMESPACE}/stowage-debug: 403 services ")
        assert 'User "nobody" cannot get resource "services/proxy"' in first
        assert 'User "nobody" cannot list resource "nodes"' in " ".join(rest)
        first = run(person("half"), *command).stderr.splitlines()[1]
        assert first.startswith(f"{name}: {LOST} service {NAMESPACE}/stowage-debug requires a token: 403 ")
        assert 'serviceaccounts "stowage-viewer" is forbidden: User "half" cannot create resource' in first
        assert "needed: the Role stowage-kubectl of namespace stowage-system" in first


def test_tokens_are_for_stowage_only(
    stowage: Stowage, debug_url: str, control_plane: ControlPlane, tools: Tools
) -> None:
    create = "create", "token", "stowage-viewer", "--namespace", NAMESPACE
    token, other = tools.kubectl(*create, "--audience", "stowage").strip(), tools.kubectl(*create).strip()

    def get(path: str, token: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return httpx.get(f"{debug_url}{path}", headers=headers, trust_env=False)

    assert "my-pod" in get("/debug/overview", token).text
    for path in ("/debug/fleet", "/debug/fleet/history", f"/debug/pods/{TEAM}/my-pod", "/version"):
        assert get(path, token).status_code == 200  # what the page reads
    for path in ("/debug/state", "/configz", "/metrics", "/debug/decisions"):
        assert get(path, token).status_code == 403
    refused = get("/debug/overview", other)
    assert (refused.status_code, "--audience stowage" in refused.text) == (401, True)
    with control_plane.client(token) as client, pytest.raises(httpx.HTTPStatusError, match="401"):
        client.list("Node")


def test_a_service_elsewhere_gets_no_token(
    stowage: Stowage, person: Callable[[str], Path], tools: Tools, control_plane: ControlPlane, address: str
) -> None:
    """A tenant's Service with the label is found while Stowage's own has none."""
    sent: list[str] = []

    class Fake(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.extend(self.headers)
            body = b'{"detail": "a bearer token is needed"}'
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    label = "label", "service", "stowage-debug", f"-n={NAMESPACE}"
    server = HTTPServer((address, 0), Fake)
    Thread(target=server.serve_forever, daemon=True).start()
    metadata = {"name": "fake", "namespace": TEAM, "labels": {"stowage.dev/debug": "true"}}
    spec = {"ports": [{"name": "debug", "port": 8081}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    tools.kubectl(*label, "stowage.dev/debug-")
    try:
        tools.kubectl("create", "-f", "-", stdin=json.dumps(service))
        publish(control_plane.api, "fake", TEAM, address, server.server_port)
        asked = run(person("admin"), "top")
        assert f"because service {TEAM}/fake answers 401 a bearer token is needed" in asked.stderr
        names = {name.lower() for name in sent}
        assert "host" in names
        assert not {"authorization", "x-stowage-authorization"} & names
    finally:
        server.shutdown()
        server.server_close()
        tools.kubectl(*label, "stowage.dev/debug=true")
        tools.kubectl("delete", "service", "fake", f"-n={TEAM}")


def test_no_log_has_a_token(
    stowage: Stowage, person: Callable[[str], Path], control_plane: ControlPlane, audit_log: Path
) -> None:
    assert "answered by service" in run(person("guest"), "top", "-n", TEAM).stderr
    assert "/services/http:stowage-debug:debug/proxy/" in audit_log.read_text()
    for log in (audit_log, *control_plane.logs.glob("*.log")):
        assert "eyJ" not in log.read_text(errors="replace"), log  # as every token begins


def test_with_tls_the_proxy_asks_by_https(
    stowage: Stowage,
    control_plane: ControlPlane,
    tools: Tools,
    stowage_kubeconfig: Path,
    person: Callable[[str], Path],
    address: str,
    tmp_path: Path,
) -> None:
    authority, secret, port = Authority(), Secret(tmp_path / "tls"), free_port()
    secret.certify(authority.server())
    files = [f"--tls-cert={secret.path('tls_crt')}", f"--tls-key={secret.path('tls_key')}"]
    debug = [f"--debug-host={address}", f"--debug-port={port}"]
    tls = Stowage(
        control_plane,
        stowage_kubeconfig,
        name="stowage-tls",
        arguments=[*debug, *files],
        DEBUG_TOKEN_REVIEW="true",
    )
    tls.url = tls.url.replace("http://", "https://")
    tls.verify = ssl.create_default_context(cadata=authority.pem.decode())
    changes = {
        "service": ("/spec/ports/0/appProtocol", "https"),  # as in the shape separate
        "endpointslice": ("/ports/0/port", port),
        "endpoints": ("/subsets/0/ports/0/port", port),
    }
    with tls:
        for kind, (path, value) in changes.items():
            change = json.dumps([{"op": "add", "path": path, "value": value}])
            tools.kubectl("patch", kind, "stowage-debug", f"-n={NAMESPACE}", "--type=json", f"-p={change}")
        asked = run(person("guest"), "top", "-n", TEAM)
        assert "answered by service" in asked.stderr
        assert "my-pod" in asked.stdout
