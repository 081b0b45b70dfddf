"""docs/autoscalers.md: its recipes, and why a share that is also a counted resource makes a node come."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .custom_kinds import served
from .evidence import message
from .queue_cases import wait_until_running
from .rush import GPU
from .sharing import own_pod
from .stowage import ROOT, Stowage, applied, scheduler_configuration
from .test_autoscalers import SHARING, asks_for_a_node
from .tools import ToolError, Tools
from .workload import node

EXAMPLES = ROOT / "docs" / "examples" / "autoscalers"
MILLI = "example.com/gpu-milli"
APPLY = ["apply", "--server-side", "--validate=strict", "--dry-run=server", "--filename"]


@pytest.fixture(scope="module")
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    """Those of Karpenter and of node feature discovery are served."""
    with served(control_plane.api, "NodeOverlay", "CapacityBuffer", "NodeFeatureRule"):
        yield


@pytest.fixture
def scheduler(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[None]:
    """A kube-scheduler with Stowage, which binds parts of GPUs."""
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        stowage = stack.enter_context(Stowage(cluster, stowage_kubeconfig, name="stowage-binds", BIND="true"))
        stack.enter_context(cluster.scheduler(scheduler_configuration(stowage.url, "shared-gpus.yaml")))
        yield


@pytest.mark.parametrize("file", sorted(EXAMPLES.iterdir()), ids=lambda file: file.name)
def test_the_api_server_takes_every_recipe(tools: Tools, kinds: None, file: Path) -> None:
    objects = list(yaml.safe_load_all(file.read_text()))
    done = tools.kubectl(*APPLY, str(file))
    assert done.count("serverside-applied (server dry run)") == len(objects)


@pytest.mark.parametrize("wrong", ["cpu", "nvidia.com/gpu.shared: many #"])
def test_it_refuses_an_overlay_that_karpenter_does_not_take(
    tools: Tools, kinds: None, tmp_path: Path, wrong: str
) -> None:
    text = (EXAMPLES / "time-slicing.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("    nvidia.com/gpu.shared", f"    {wrong}"))
    with pytest.raises(ToolError, match=r"spec\.capacity"):
        tools.kubectl(*APPLY, str(tmp_path / "wrong.yaml"))


def test_a_counted_share_waits_for_a_resource_that_a_new_node_has(api: Api, scheduler: None) -> None:
    """Autoscalers look for resources that are used up. Of a plain share only Stowage knows why it waits."""
    shared = SHARING | {f"{GPU}.count": "1"}
    api.create(node("full", {MILLI: 1000}, labels=shared))
    api.create(counted("first"))
    wait_until_running(api, "first")
    api.create(counted("counted"))
    api.create(own_pod("plain", "600m", "30Gi"))
    for name, why in {"counted": f"Insufficient {MILLI}", "plain": "not enough free GPUs"}.items():
        asks_for_a_node(api, name)
        assert why in message(api, name)
        assert ("Insufficient" in message(api, name)) == (name == "counted")
    api.delete("Pod", "plain")
    api.create(node("new", {MILLI: 1000}, labels=shared))
    assert wait_until_running(api, "counted") == "new"


def counted(name: str) -> Object:
    """A pod with a share of 600 thousandths, which it requests as a resource, too."""
    pod = own_pod(name, "600m", "30Gi")
    resources = pod["spec"]["containers"][0]["resources"]
    for part in ("requests", "limits"):
        resources[part] = resources.get(part, {}) | {MILLI: "600"}
    return pod
