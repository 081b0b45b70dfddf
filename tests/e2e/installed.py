"""The containers of an installed Deployment as processes, with the rights of its service account.

They have the commands and the ConfigMaps of the Deployment. Only ports, paths and the kubeconfig are of this
machine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, free_port
from .stowage import PROGRAM
from .tools import NAMESPACE, Tools


@dataclass(frozen=True)
class Running:
    """Stowage, and the kube-scheduler beside it if there is one."""

    stowage: Process
    verbs: str
    metrics: str
    scheduler: Process | None = None

    def get(self, path: str, token: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(self.metrics + path, headers=headers, trust_env=False, timeout=10)


def mounted(tools: Tools, deployment: Object) -> dict[str, Object]:
    """The data of the ConfigMaps that are mounted, by the name of the volume."""
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    maps = {one["name"]: one["configMap"]["name"] for one in volumes if "configMap" in one}
    return {volume: tools.get("configmap", name, f"-n={NAMESPACE}")["data"] for volume, name in maps.items()}


@contextmanager
def running(plane: ControlPlane, tools: Tools, name: str) -> Iterator[Running]:
    """Starts the containers of this Deployment in their order, and stops them in reverse."""
    deployment = tools.get("deployment", name, f"-n={NAMESPACE}")
    pod = deployment["spec"]["template"]["spec"]
    data = mounted(tools, deployment)
    account = pod["serviceAccountName"]
    kubeconfig = plane.kubeconfig_for(account, plane.api.token(account))
    (container,) = [
        one for one in [*pod.get("initContainers", ()), *pod["containers"]] if one["name"] == "stowage"
    ]
    settings = plane.directory / "settings.yaml"
    settings.write_text(data["settings"]["settings.yaml"])
    verbs, metrics = free_port(), free_port()
    one = _stowage(plane, container, kubeconfig, settings, ports=(verbs, metrics))
    one.start(within_s=400)
    try:
        urls = f"http://127.0.0.1:{verbs}", f"http://127.0.0.1:{metrics}"
        if "scheduler" not in data:
            yield Running(one, *urls)
            return
        configuration = yaml.safe_load(data["scheduler"]["config.yaml"])
        (extender,) = configuration["extenders"]
        assert extender["urlPrefix"] == "http://127.0.0.1:8080/scheduler"
        extender["urlPrefix"] = f"{urls[0]}/scheduler"
        with plane.scheduler(configuration, "installed-scheduler", kubeconfig) as scheduler:
            yield Running(one, *urls, scheduler)
    finally:
        one.stop()


def _stowage(
    plane: ControlPlane, container: Object, kubeconfig: Path, settings: Path, *, ports: tuple[int, int]
) -> Process:
    here = {
        "stowage": str(PROGRAM),
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--debug-host=0.0.0.0": "--debug-host=127.0.0.1",
        "--port=8080": f"--port={ports[0]}",
        "--debug-port=8081": f"--debug-port={ports[1]}",
        "--config=/etc/stowage/settings.yaml": f"--config={settings}",
    }
    command: list[str | Path] = [here.get(part, part) for part in container["command"]]
    ready = f"http://127.0.0.1:{ports[1]}/readyz"
    process = plane.process("installed-stowage", [*command, f"--kubeconfig={kubeconfig}"], ready=ready)
    process.environment = {"NUMBA_CACHE_DIR": str(plane.directory / "kernels")} | os.environ
    return process
