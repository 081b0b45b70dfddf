"""Certificates, rollouts, drains and rollbacks under a stream of pods, with the chart in both shapes.

helm, kubectl, kube-controller-manager and the kube-schedulers are real; `kubelet.py` runs the pods of the
Deployment as processes, and kwok plays the kubelets of the GPU nodes.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair, Secret

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .kubelet import LABEL, Kubelet
from .service import Service
from .stream import Pace, Stream, nodes, unfinished
from .tls import CHECK_S, serves, tls_configuration
from .tools import NAMESPACE, Tools
from .workload import node

CONTROLLERS = [
    f"{name}-controller" for name in ("deployment", "replicaset", "job", "disruption", "garbage-collector")
]
DEFAULT = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}
VALUES = ("settings.bind=true", "nodeSelector.stowage=here", LABEL)
RATE = 3.0  # pods a second
CALM_S = 12
CA = Authority()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("rollout")))
        stack.enter_context(plane.controller_manager(CONTROLLERS))
        stack.enter_context(plane.scheduler(DEFAULT, "default-scheduler"))
        yield plane


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """Three nodes for Stowage, and nodes with GPUs."""
    for number in range(3):
        plane.api.create(node(f"cp-{number}", {}, labels={"stowage": "here"}))
    plane.api.create_all(nodes())
    yield plane.api
    plane.api.clean_up()


@pytest.fixture
def tools(plane: ControlPlane, api: Api) -> Tools:
    return Tools(plane)


def left(tools: Tools) -> bool:
    """Whether there are ReplicaSets."""
    return "replicaset" in tools.kubectl("get", "rs", f"-n={NAMESPACE}", "-o=name")


@pytest.fixture
def kubelet(plane: ControlPlane, tools: Tools) -> Iterator[Kubelet]:
    with Kubelet(plane, tools) as kubelet:
        yield kubelet
        tools.helm("uninstall", "stowage", f"-n={NAMESPACE}", "--ignore-not-found")
        eventually(lambda: not left(tools), within_s=60, what="the ReplicaSets are gone", every_s=0.5)
        tools.kubectl("delete", "pods", "--all", f"-n={NAMESPACE}", "--grace-period=0", "--force")


def certify(tools: Tools, name: str, mounted: Secret) -> Pair:
    """A new certificate for Stowage, as a Secret, and one for kube-scheduler, as mounted files."""
    pair = CA.server(f"stowage.{NAMESPACE}.svc")
    mounted.certify(CA.client("system:kube-scheduler"), CA.pem)
    texts = {"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode(), "ca.crt": CA.pem.decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}}
    tools.kubectl("apply", "-f-", stdin=json.dumps(secret | {"stringData": texts}))
    return pair


def rolls_out(tools: Tools, kubelet: Kubelet, *command: str) -> None:
    """A helm command that replaces the pods; waits until the former ones have ended and another is ready."""
    before = kubelet.pods()

    def replaced() -> bool:
        now = kubelet.pods()
        return len(kubelet.replicas) == len(now) == len(before) and not set(now) & set(before)

    tools.helm(*command)
    eventually(replaced, within_s=200, what="the pods are replaced", every_s=0.2)
    eventually(lambda: bool(kubelet.leader()), within_s=60, what="a new pod is ready", every_s=0.2)
    time.sleep(CALM_S / 2)


def fullest(api: Api) -> str:
    pods = [str(one["spec"].get("nodeName", "")) for one in api.list("Pod")["items"]]
    return max((name for name in set(pods) if name.startswith("gpu-")), key=pods.count)


def drain(tools: Tools, name: str) -> None:
    tools.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")


def upgrade(*values: str) -> list[str]:
    sets = [f"--set={value}" for value in values]
    return ["upgrade", "stowage", "deploy/chart", f"-n={NAMESPACE}", "--reuse-values", *sets]


def nothing_is_lost(api: Api, pace: Pace, stream: Stream) -> None:
    eventually(
        lambda: not unfinished(api, stream.created), within_s=90, what="all Jobs complete", every_s=0.5
    )
    print(pace.report())
    assert pace.findings == []


def drains_nodes(api: Api, tools: Tools, kubelet: Kubelet, pace: Pace) -> None:
    """A node with GPUs, and then the node of the replica that leads."""
    with pace.phase("drain of a node with GPUs"):
        emptied = fullest(api)
        drain(tools, emptied)
        bound = len(pace.bound)
        time.sleep(CALM_S / 2)
        later = list(pace.bound.values())[bound:]
        assert later
        assert emptied not in later
    tools.kubectl("uncordon", emptied)
    with pace.phase("drain of the leader's node"):
        leads = kubelet.leader()
        drain(tools, leads)
        eventually(lambda: kubelet.leader() not in ("", leads), within_s=90, what="another leads")
        eventually(lambda: len(kubelet.pods()) == 2, within_s=90, what="its replacement runs")
        time.sleep(CALM_S / 2)
    tools.kubectl("uncordon", leads)


def drains_replicas(tools: Tools, kubelet: Kubelet) -> None:
    """The nodes of both replicas, one after the other. The budget keeps one of them."""
    for name in kubelet.nodes():
        drain(tools, name)
        eventually(
            lambda: len(kubelet.nodes()) == 2, within_s=90, what="its replacement is ready", every_s=0.2
        )
        tools.kubectl("uncordon", name)


def test_behind_a_service(
    plane: ControlPlane, api: Api, tools: Tools, kubelet: Kubelet, tmp_path: Path
) -> None:
    client = Secret(tmp_path / "client")
    tools.kubectl("create", "namespace", NAMESPACE)
    certify(tools, "stowage-tls", client)
    tools.install("shape=separate", *VALUES, wait=False)
    with ExitStack() as stack:
        service = stack.enter_context(Service(kubelet.replicas, probe_s=1))
        eventually(lambda: bool(service.leaders), within_s=120, what="a replica is ready")
        configuration = tls_configuration(service.url.replace("http:", "https:"), client, "shared-gpus.yaml")
        del configuration["podMaxBackoffSeconds"]  # the figures are for the default, 10 s
        stack.enter_context(plane.scheduler(configuration, "elsewhere"))
        pace = stack.enter_context(Pace(api))
        stream = stack.enter_context(Stream(api, RATE))
        with pace.phase("before"):
            time.sleep(CALM_S)
        with pace.phase("certificates are rotated"):
            pair = certify(tools, "stowage-tls", client)
            kubelet.refresh()
            new = lambda: all(serves(one.metrics, pair) for one in kubelet.replicas)  # noqa: E731
            eventually(new, within_s=6 * CHECK_S, what="both replicas have the new certificate")
            time.sleep(CALM_S / 2)
        with pace.phase("rollout"):
            rolls_out(tools, kubelet, *upgrade("settings.shortlist=32"))
        drains_nodes(api, tools, kubelet, pace)
        with pace.phase("rollback"):
            rolls_out(tools, kubelet, "rollback", "stowage", "1", f"-n={NAMESPACE}")
        with pace.phase("after"):
            time.sleep(CALM_S)
        stream.stop()
        nothing_is_lost(api, pace, stream)
        assert service.rivals == 0


def test_beside_kube_scheduler(plane: ControlPlane, api: Api, tools: Tools, kubelet: Kubelet) -> None:
    tools.install(*VALUES, wait=False)
    eventually(lambda: len(kubelet.nodes()) == 2, within_s=120, what="both are ready", every_s=0.5)
    with Pace(api) as pace, Stream(api, RATE) as stream:
        eventually(lambda: len(pace.bound) > 1, within_s=60, what="pods are placed")
        with pace.phase("before"):
            time.sleep(CALM_S)
        with pace.phase("rollout"):
            rolls_out(tools, kubelet, *upgrade("settings.shortlist=32"))
        with pace.phase("drain of both replicas' nodes"):
            drains_replicas(tools, kubelet)
        with pace.phase("rollback"):
            rolls_out(tools, kubelet, "rollback", "stowage", "1", f"-n={NAMESPACE}")
        with pace.phase("after"):
            time.sleep(CALM_S)
        stream.stop()
        nothing_is_lost(api, pace, stream)
