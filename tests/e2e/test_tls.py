"""Mutual TLS between kube-scheduler and Stowage: who is refused, and how certificates and CAs change."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority, Secret

from . import workload
from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .stowage import applied
from .tls import TlsStowage, tls_configuration

CA, OTHER_CA = Authority("stowage-ca"), Authority("other-ca")
NAME = "stowage.stowage-system.svc"  # serverName in the shipped configuration
STREAM = 80  # pods, on as many GPUs


@pytest.fixture
def server(tmp_path: Path) -> Secret:
    """What Stowage mounts."""
    secret = Secret(tmp_path / "server")
    secret.certify(CA.server(NAME), CA.pem)
    return secret


@pytest.fixture
def client(tmp_path: Path) -> Secret:
    """What kube-scheduler mounts."""
    secret = Secret(tmp_path / "client")
    secret.certify(CA.client("system:kube-scheduler"), CA.pem)
    return secret


@pytest.fixture
def stowage(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, server: Secret
) -> Iterator[TlsStowage]:
    """It binds, and the cluster has 80 GPUs."""
    for number in range(10):
        api.create(workload.node(f"node-{number}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        one = TlsStowage(cluster, stowage_kubeconfig, server, CA, BIND="true")
        yield stack.enter_context(one)


def create(api: Api, name: str) -> None:
    api.create(workload.pod(name, {GPU: 1}))


def run_all(api: Api, count: int) -> None:
    def all_run() -> bool:
        pods = api.list("Pod")["items"]
        return len(pods) == count and all(map(runs, pods))

    try:
        eventually(all_run, within_s=120, what=f"{count} pods run", every_s=0.2)
    except TimeoutError as problem:
        for one in api.list("Pod")["items"]:
            if not runs(one):
                problem.add_note(f"{one['metadata']['name']}: {one['spec'].get('nodeName')} {one['status']}")
        raise


def failures(api: Api, pod: str) -> list[Object]:
    """Events about attempts to place the pod that failed."""
    found: list[Object] = api.list("Event", fieldSelector=f"involvedObject.name={pod}")["items"]
    return [event for event in found if event["reason"] == "FailedScheduling"]


def waits(api: Api, pod: str, why: str) -> None:
    """Waits until kube-scheduler has said `why` of this pod, which is not bound."""

    def said() -> bool:
        return any(why in (event.get("note") or event.get("message") or "") for event in failures(api, pod))

    eventually(said, within_s=60, what=f"{pod} waits because of {why}", every_s=0.2)
    assert "nodeName" not in api.get("Pod", pod)["spec"]


def test_certificates_are_rotated_under_a_stream_of_pods(
    cluster: ControlPlane, api: Api, stowage: TlsStowage, server: Secret, client: Secret
) -> None:
    with Audit(api) as audit, cluster.scheduler(tls_configuration(stowage.verbs_url, client)):
        started, created = time.monotonic(), 0
        for most in (STREAM // 4, STREAM // 2, STREAM * 3 // 4):  # until the end of each rotation
            for _ in range(STREAM // 8):
                create(api, f"pod-{created}")
                created += 1
                time.sleep(0.1)
            new = CA.server(NAME)
            server.certify(new, CA.pem)
            client.certify(CA.client("system:kube-scheduler"), CA.pem)
            while not stowage.serves(new):
                if created < most:
                    create(api, f"pod-{created}")
                    created += 1
                time.sleep(0.2)
                assert time.monotonic() - started < 300
        while created < STREAM:
            create(api, f"pod-{created}")
            created += 1
        run_all(api, STREAM)
        print(f"{STREAM} pods in {time.monotonic() - started:.1f} s, with three rotations")
        assert audit.findings == []
    assert [event for event in api.list("Event")["items"] if event["reason"] == "FailedScheduling"] == []
    assert stowage.metric('stowage_verb_results_total{result="bound",verb="bind"}') == STREAM
    assert stowage.metric("stowage_tls_reload_failed") == 0
    assert stowage.metric('stowage_tls_handshake_failures_total{reason="client_certificate"}') == 0


def test_nobody_calls_without_a_certificate_of_the_client_ca(
    cluster: ControlPlane, api: Api, stowage: TlsStowage, tmp_path: Path
) -> None:
    create(api, "one")
    binding = {"PodName": "one", "PodNamespace": "default", "PodUID": "?", "Node": "node-0"}
    with pytest.raises(httpx.TransportError, match="certificate required"):
        httpx.post(
            f"{stowage.verbs_url}/scheduler/bind", json=binding, trust_env=False, verify=stowage.verify
        )
    assert httpx.get(f"{stowage.url}/readyz", trust_env=False, verify=stowage.verify).text == "ok"
    with pytest.raises(httpx.TransportError):  # plain HTTP
        httpx.post(stowage.verbs_url.replace("https:", "http:"), json=binding, trust_env=False)
    stranger = Secret(tmp_path / "stranger")
    stranger.certify(OTHER_CA.client("system:kube-scheduler"), CA.pem)
    with cluster.scheduler(tls_configuration(stowage.verbs_url, stranger)):
        waits(api, "one", "tls: unknown certificate authority")
    assert stowage.metric('stowage_tls_handshake_failures_total{reason="client_certificate"}') >= 2
    assert stowage.metric('stowage_tls_handshake_failures_total{reason="no_tls"}') == 1
    assert stowage.metric('stowage_verb_results_total{result="bound",verb="bind"}') == 0


def test_kube_scheduler_without_a_ca_trusts_anybody(
    cluster: ControlPlane, api: Api, stowage: TlsStowage, server: Secret, client: Secret
) -> None:
    """Why no shipped configuration may leave it out (tests/test_deploy.py)."""
    new = OTHER_CA.server(NAME)
    server.certify(new, CA.pem)
    stowage.follows(new)
    configuration = tls_configuration(stowage.verbs_url, client)
    create(api, "one")
    with cluster.scheduler(configuration):
        waits(api, "one", "x509: certificate signed by unknown authority")
    del configuration["extenders"][0]["tlsConfig"]["caFile"]
    with cluster.scheduler(configuration):
        run_all(api, 1)


def test_a_change_of_the_ca_takes_an_overlap_and_a_restart(
    cluster: ControlPlane, api: Api, stowage: TlsStowage, server: Secret, client: Secret
) -> None:
    mine = CA.client("system:kube-scheduler")
    with cluster.scheduler(tls_configuration(stowage.verbs_url, client)) as scheduler:
        create(api, "one")
        run_all(api, 1)
        server.certify(OTHER_CA.server(NAME), CA.pem)
        stowage.verify = False  # this test asks kube-scheduler only
        stowage.process.restart()  # so that kube-scheduler connects again
        create(api, "two")
        waits(api, "two", "x509: certificate signed by unknown authority")
        client.certify(mine, CA.pem + OTHER_CA.pem)
        create(api, "three")  # it has read the CA at its start
        waits(api, "three", "x509: certificate signed by unknown authority")
        scheduler.restart()
        run_all(api, 3)
        server.certify(CA.server(NAME), CA.pem)  # with both CAs in the bundle either certificate is good
        stowage.process.restart()
        create(api, "four")
        run_all(api, 4)
        assert failures(api, "four") == []
