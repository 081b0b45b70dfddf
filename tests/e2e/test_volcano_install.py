"""The commands of docs/volcano.md, on a Deployment with the names that Volcano's chart gives it."""

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from .controlplane.api import Api, Object
from .stowage import ROOT
from .tools import Tools, commands

SYSTEM = "volcano-system"
SCHEDULER = "volcano-scheduler"


@pytest.fixture
def deployment(api: Api) -> Iterator[Object]:
    """As in Volcano's installer/helm/chart/volcano/templates/scheduler.yaml at ed72c7c8."""
    with suppress(httpx.HTTPStatusError):  # no controller here deletes a namespace
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    labels = {"app": SCHEDULER}
    container = {
        "name": SCHEDULER,
        "image": "volcano",
        "args": ["--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf"],
        "volumeMounts": [{"name": "scheduler-config", "mountPath": "/volcano.scheduler"}],
    }
    volume = {"name": "scheduler-config", "configMap": {"name": f"{SCHEDULER}-configmap"}}
    spec = {"serviceAccount": SCHEDULER, "containers": [container], "volumes": [volume]}
    one = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": SCHEDULER, "namespace": SYSTEM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    yield api.create(one)
    api.delete("Deployment", SCHEDULER, SYSTEM)
    for name in ("stowage-settings", f"{SCHEDULER}-configmap"):
        api.delete("ConfigMap", name, SYSTEM)
    for name in ("stowage-volcano", "stowage-volcano-auth-delegator"):
        api.delete("ClusterRoleBinding", name)


def test_the_commands_of_the_page(api: Api, tools: Tools, deployment: Object) -> None:
    lines = commands("volcano.md", "volcano")
    assert len(lines) == 3
    for line in lines:
        tools.shell(line, ROOT)
    patched = api.get("Deployment", SCHEDULER, SYSTEM)["spec"]["template"]["spec"]
    (container,) = patched["containers"]
    assert container["args"] == deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    (sidecar,) = patched["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("stowage", "Always")
    assert {one["name"] for one in patched["volumes"]} == {
        "scheduler-config",
        "stowage-settings",
        "stowage-kernels",
    }
    assert (
        "extender" in api.get("ConfigMap", f"{SCHEDULER}-configmap", SYSTEM)["data"]["volcano-scheduler.conf"]
    )
    account = f"system:serviceaccount:{SYSTEM}:{SCHEDULER}"
    for what in ("nodes", "pods", "resourceslices.resource.k8s.io"):
        assert tools.kubectl("auth", "can-i", "watch", what, "-A", f"--as={account}").strip() == "yes"
