"""The chart in a control plane like GKE's: installed, upgraded, rolled back and removed, with its own rights.

helm, kube-controller-manager and a default kube-scheduler are real, and kwok plays the kubelets. What the
Deployment would run are processes with the token of its service account (installed.py).
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.release.__main__ import version
from tests.certificates import Authority, Secret

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .installed import running
from .queue_cases import BACKFILL, INTERACTIVE, create_classes, present, wait_until_running
from .rush import GPU, LABEL_SETS
from .sharing import COMPUTE, INDICES, MEMORY
from .tls import tls_configuration
from .tools import CHART, NAMESPACE, ROOT, Tools, commands
from .workload import node, pod

CONTROLLERS = [
    f"{name}-controller"
    for name in ("deployment", "replicaset", "resourcequota", "disruption", "garbage-collector")
]
CRITICAL = ["system-node-critical", "system-cluster-critical"]
# As in https://kubernetes.io/docs/concepts/policy/resource-quotas/#limit-priority-class-consumption-by-default
LIMITED = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": CRITICAL}],
                    }
                ],
            },
        }
    ],
}
PLAIN = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}
SHARED = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "1"}
SHARED |= {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("install")
    admission = directory / "admission.yaml"
    admission.write_text(yaml.safe_dump(LIMITED))
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(directory, admission_control_config_file=admission))
        stack.enter_context(plane.controller_manager(CONTROLLERS))
        stack.enter_context(plane.scheduler(PLAIN, "default-scheduler"))
        yield plane


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """A cluster with two nodes that are no GPU nodes, emptied after the test."""
    for name in ("cp-1", "cp-2"):
        plane.api.create(node(name, {}))
    yield plane.api
    plane.api.clean_up()


@pytest.fixture
def tools(plane: ControlPlane, api: Api) -> Iterator[Tools]:
    """The chart is removed after the test."""
    tools = Tools(plane)
    yield tools
    tools.helm("uninstall", "stowage", f"-n={NAMESPACE}", "--ignore-not-found", "--wait")


def pods_of(tools: Tools) -> list[str]:
    """The names of the pods of the Deployment that are ready."""
    found = tools.get("pods", f"-n={NAMESPACE}")["items"]
    return [
        one["metadata"]["name"]
        for one in found
        if {"type": "Ready", "status": "True"}.items()
        <= next((c for c in one["status"].get("conditions", ()) if c["type"] == "Ready"), {}).items()
    ]


def runs(api: Api, name: str) -> None:
    eventually(lambda: api.get("Pod", name)["status"]["phase"] == "Running", within_s=60, what=f"{name} runs")


def test_without_a_quota_gke_refuses_the_pods(tools: Tools) -> None:
    tools.install("criticalPodsQuota=false", wait=False)

    def refused() -> bool:
        events = tools.get("events", f"-n={NAMESPACE}")["items"]
        return any("insufficient quota to match these scopes" in one["message"] for one in events)

    eventually(refused, within_s=60, what="an event says why there are no pods")
    assert not pods_of(tools)


def test_the_recommended_shape_places_a_pod(plane: ControlPlane, api: Api, tools: Tools) -> None:
    tools.install("metrics.podMonitor.enabled=false")
    assert len(pods_of(tools)) == 2
    nodes = {one["spec"]["nodeName"] for one in tools.get("pods", f"-n={NAMESPACE}")["items"]}
    assert nodes == {"cp-1", "cp-2"}
    api.create(node("n1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    with running(plane, tools, "stowage-scheduler") as started:
        api.create(pod("p1", {GPU: 1}))
        runs(api, "p1")
        assert api.get("Pod", "p1")["spec"]["nodeName"] == "n1"
        assert started.get("/metrics").status_code == 401
        decision = httpx.get(f"{started.verbs}/debug/nodes", trust_env=False)
        assert decision.status_code == 404  # not on the port of the verbs
        lease = api.get("Lease", "stowage-scheduler", "kube-system")
        assert lease["spec"]["holderIdentity"]


def test_a_node_can_be_drained(api: Api, tools: Tools) -> None:
    """The budget lets one pod go at a time, and its replacement starts on another node."""
    tools.install()
    budget = tools.get("pdb", "stowage-scheduler", f"-n={NAMESPACE}")
    assert budget["status"]["disruptionsAllowed"] == 1
    tools.kubectl("drain", "cp-1", "--delete-emptydir-data", "--timeout=60s")
    eventually(lambda: len(pods_of(tools)) == 2, within_s=60, what="the evicted pod is replaced")
    nodes = {one["spec"]["nodeName"] for one in tools.get("pods", f"-n={NAMESPACE}")["items"]}
    assert nodes == {"cp-2"}


def test_who_may_read_the_metrics(plane: ControlPlane, tools: Tools) -> None:
    tools.install()
    tools.kubectl("create", "serviceaccount", "reader", f"-n={NAMESPACE}")
    role = ["--clusterrole=stowage-metrics", f"--serviceaccount={NAMESPACE}:reader"]
    tools.kubectl("create", "clusterrolebinding", "reader", *role)
    try:
        token = tools.kubectl("create", "token", "reader", f"-n={NAMESPACE}").strip()
        with running(plane, tools, "stowage-scheduler") as started:
            assert "stowage_nodes" in started.get("/metrics", token).text
            assert started.get("/debug/nodes", token).status_code == 401
    finally:
        tools.kubectl("delete", "clusterrolebinding", "reader")
        tools.kubectl("delete", "serviceaccount", "reader", f"-n={NAMESPACE}")


def share(name: str, priority: str | None = None) -> dict[str, object]:
    """A pod that requests most of a GPU by annotation, which kube-scheduler does not see."""
    return pod(name, {}, cpu="100m", annotations={COMPUTE: "600m", MEMORY: "40Gi"}, priority_class=priority)


def test_bind_and_the_evictor_after_an_upgrade(plane: ControlPlane, api: Api, tools: Tools) -> None:
    """Stowage binds, the evictor makes room on a device, and a rollback takes both back."""
    tools.install()
    create_classes(api)
    api.create(node("n1", {}, labels=SHARED))
    tools.install("settings.bind=true", "settings.evictor=on")
    with running(plane, tools, "stowage-scheduler"):
        held = share("backfill", BACKFILL)
        api.create(held)
        runs(api, "backfill")
        assert api.get("Pod", "backfill")["metadata"]["annotations"][INDICES] == "0"
        api.create(share("notebook", INTERACTIVE))
        wait_until_running(api, "notebook")
        assert present(api) == {"notebook"}
    tools.helm("rollback", "stowage", "1", f"-n={NAMESPACE}", "--wait")
    assert "stowage-bind" not in tools.kubectl("get", "clusterrolebindings", "-o=name")
    with running(plane, tools, "stowage-scheduler"):
        api.create(pod("plain", {}))
        runs(api, "plain")


@pytest.fixture
def client(tools: Tools, tmp_path: Path) -> Secret:
    """What kube-scheduler mounts. The Secret of Stowage is in the cluster."""
    ca = Authority()
    made = {name: Secret(tmp_path / name) for name in ("server", "client")}
    made["server"].certify(ca.server(f"stowage.{NAMESPACE}.svc"), ca.pem)
    made["client"].certify(ca.client("stowage-scheduler"), ca.pem)
    files = [
        f"--from-file={name}={made['server'].directory / name}" for name in ("tls.crt", "tls.key", "ca.crt")
    ]
    tools.kubectl("create", "secret", "generic", "stowage-tls", f"-n={NAMESPACE}", *files)
    return made["client"]


def test_behind_a_service_with_mutual_tls(
    plane: ControlPlane, api: Api, tools: Tools, client: Secret
) -> None:
    """Only the leader would be ready; here kwok says that both are. kube-scheduler runs elsewhere."""
    tools.install("shape=separate", "settings.bind=true")
    api.create(node("n1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    with running(plane, tools, "stowage") as started:
        assert started.scheduler is None
        assert tools.get("lease", "stowage", f"-n={NAMESPACE}")["spec"]["holderIdentity"]
        assert started.get("/metrics").status_code == 401
        with pytest.raises(httpx.TransportError, match="certificate required"):
            httpx.post(f"{started.verbs}/scheduler/filter", verify=False, trust_env=False)
        with plane.scheduler(tls_configuration(started.verbs, client), "elsewhere"):
            api.create(pod("p1", {GPU: 1}))
            runs(api, "p1")
    tools.kubectl("delete", "lease", "stowage", f"-n={NAMESPACE}")


@pytest.fixture
def files(tools: Tools, tmp_path: Path) -> Path:
    """A directory with the chart and the sources of a release, packed."""
    tools.helm("package", str(CHART), f"--destination={tmp_path}")
    sources = [f"--transform=s,^,kube_stowage-{version()}/,", "deploy", "scheduler-config"]
    archive = tmp_path / f"kube_stowage-{version()}.tar.gz"
    subprocess.run(["tar", "-czf", archive, f"--directory={ROOT}", *sources], check=True)
    return tmp_path


def test_the_commands_of_the_page_place_a_first_pod(
    plane: ControlPlane, api: Api, tools: Tools, files: Path
) -> None:
    api.create(node("gpu-1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    lines = commands("install.md", "helm")
    started = time.monotonic()
    installed = next(number for number, line in enumerate(lines) if "rollout status" in line) + 1
    for line in lines[:installed]:
        tools.shell(line, files)
    with running(plane, tools, "stowage-scheduler"):
        for line in lines[installed:-1]:
            tools.shell(line, files)
        assert "gpu-1" in tools.shell(lines[-1], files)
    print(f"{len(lines)} commands, {time.monotonic() - started:.1f} s until the first pod is placed")
    assert len(lines) < 10
    enforced = tools.get("namespace", NAMESPACE)["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"


def test_uninstall_leaves_nothing(tools: Tools) -> None:
    kinds = "all,cm,sa,role,rolebinding,pdb,quota,netpol,lease"
    own = ("kube-root-ca.crt", "serviceaccount/default")

    def left() -> set[str]:
        names = tools.kubectl("get", kinds, f"-n={NAMESPACE}", "-o=name", "--ignore-not-found")
        names += tools.kubectl("get", "clusterrole,clusterrolebinding,priorityclass", "-o=name")
        names += tools.kubectl("get", "role,rolebinding", "-n=kube-system", "-o=name")
        return {name for name in names.split() if "stowage" in name and not name.endswith(own)}

    tools.install("settings.bind=true", "settings.evictor=on", "priorityClasses=true")
    assert "poddisruptionbudget.policy/stowage-scheduler" in left()
    tools.helm("uninstall", "stowage", f"-n={NAMESPACE}", "--wait")
    leases = {name for name in left() if name.startswith("lease.")}
    eventually(lambda: left() == leases, within_s=60, what="pods and objects are gone")


def test_the_plain_manifests_of_the_page_place_a_pod(
    plane: ControlPlane, api: Api, tools: Tools, tmp_path: Path
) -> None:
    """Runs last: its namespace cannot be deleted here."""
    for name in ("deploy", "scheduler-config"):
        (tmp_path / name).symlink_to(ROOT / name)
    for line in commands("install.md", "plain"):
        tools.shell(line, tmp_path)
    with running(plane, tools, "stowage-scheduler"):
        api.create(node("gpu-1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
        api.create(pod("p1", {GPU: 1}))
        runs(api, "p1")
