"""NVLink islands with a real kube-scheduler: which nodes pods land on, and which GPUs `bind` gives them."""

from pathlib import Path

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .queue_cases import wait_until_running
from .rush import GPU, LABEL_SETS
from .sharing import PRODUCT
from .stowage import ROOT, Stowage, applied, manifests, scheduler_configuration
from .test_waiting import why_unscheduled
from .tools import Tools
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]
PREFIX = "nvlink.feature.node.kubernetes.io/"
NVLINK, INDICES = "stowage.dev/nvlink", "stowage.dev/gpu-indices"
REQUIRED = {NVLINK: "required"}


def islands(value: str, fabric: str, gpus: int = 8) -> dict[str, str]:
    """The labels of deploy/nvlink-labeller."""
    return {f"{PREFIX}islands": value, f"{PREFIX}fabric": fabric, f"{PREFIX}gpus": str(gpus)}


WHOLE, DEGRADED = islands("0-7", "switch"), islands("0.1.3-7", "switch")


def nodes(kind: str, count: int, labels: dict[str, str]) -> list[Object]:
    return [node(f"{kind}-{number}", {GPU: 8}, labels=H100 | labels) for number in range(count)]


def run(api: Api, name: str, gpus: int, annotations: dict[str, str] | None = None) -> str:
    """Creates a pod and waits until it runs; its node."""
    api.create(pod(name, {GPU: gpus}, annotations=annotations))
    return wait_until_running(api, name)


def test_a_degraded_node_gets_no_pod_that_requires_nvlink(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """Its product and its eight GPUs are those of a sound node. The device plugin does not see the switch: it
    could give two pods of four the GPU without NVLink, so not even four are sure to be peers."""
    for one in nodes("degraded", 2, DEGRADED) + nodes("whole", 1, WHOLE):
        api.create(one)
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        assert run(api, "eight", 8, annotations=REQUIRED) == "whole-0"
        for name, gpus in (("another-eight", 8), ("four", 4)):
            api.create(pod(name, {GPU: gpus}, annotations=REQUIRED))
            why = why_unscheduled(api, name)
            assert "2 no NVLink island is large enough" in why
            assert "1 Insufficient nvidia.com/gpu" in why
        assert run(api, "any-four", 4).startswith("degraded")
        assert run(api, "does-not-care", 4, annotations={NVLINK: "none"}).startswith("degraded")
        assert "nodeName" not in api.get("Pod", "another-eight")["spec"]
        api.delete("Pod", "another-eight")
        api.delete("Pod", "eight")
        assert wait_until_running(api, "four") == "whole-0"


def test_bind_gives_peers(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    """One node of four pairs where Stowage chooses the GPUs: single pods share pairs, so that two jobs of two
    get one each, and a third that requires a pair waits while two single GPUs are free."""
    labels = PRODUCT | {"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"}
    api.create(node("own", {}, labels=labels | islands("0.1_2.3_4.5_6.7", "bridge")))
    with (
        applied(api, "rbac-bind.yaml"),
        Stowage(cluster, stowage_kubeconfig, name="stowage-nvlink", BIND="true") as stowage,
        cluster.scheduler(scheduler_configuration(stowage.url, "shared-gpus.yaml")),
    ):
        stowage.flush(api)
        given = {}
        for name, gpus in (("a", 1), ("pair-a", 2), ("b", 1), ("pair-b", 2)):
            api.create(whole_gpus(name, gpus))
            wait_until_running(api, name)
            given[name] = indices(api.get("Pod", name))
        pairs = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
        assert given["pair-a"] in pairs
        assert given["pair-b"] in pairs
        assert given["a"] | given["b"] in pairs
        api.create(whole_gpus("c", 1))
        wait_until_running(api, "c")
        api.delete("Pod", "a")
        stowage.flush(api)
        api.create(whole_gpus("waits", 2, annotations=REQUIRED))
        assert "1 no NVLink island has enough free GPUs" in why_unscheduled(api, "waits")
        view = stowage.json("/debug/nodes/own")
        assert view["islands"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert view["read_from"]["islands"] == f"{PREFIX}islands"
        api.delete("Pod", "b")
        wait_until_running(api, "waits")
        assert indices(api.get("Pod", "waits")) == given["a"] | given["b"]


def test_the_api_server_accepts_the_labeller(api: Api, tools: Tools) -> None:
    """Its namespace stays: nothing here can delete one."""
    namespace, _, daemonset = manifests("nvlink-labeller/daemonset.yaml")
    api.create(namespace)
    built = tools.kubectl("kustomize", str(ROOT / "deploy/nvlink-labeller"))
    tools.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f-", stdin=built)
    accepted = api.create(daemonset, fieldValidation="Strict", dryRun="All")
    assert accepted["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def whole_gpus(name: str, gpus: int, *, annotations: dict[str, str] | None = None) -> Object:
    """A pod of whole GPUs in Stowage's own dialect."""
    asked = {"stowage.dev/gpu-compute": "1000m", "stowage.dev/gpus": str(gpus)}
    return pod(name, {}, cpu="100m", annotations=asked | (annotations or {}))


def indices(bound: Object) -> set[int]:
    return {int(index) for index in bound["metadata"]["annotations"][INDICES].split(",")}
