"""The containers of an installed Deployment as processes, with the rights of its service account.

They have the commands, ConfigMaps and Secrets of the Deployment. Only ports, paths and the kubeconfig are
those of this machine.
"""

import os
from base64 import b64decode
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
        return httpx.get(self.metrics + path, headers=headers, trust_env=False, timeout=10, verify=False)


def mount(tools: Tools, deployment: Object, directory: Path) -> dict[str, Path]:
    """Writes the mounted ConfigMaps and Secrets into directories of their own, by the name of the volume."""
    found = {}
    for volume in deployment["spec"]["template"]["spec"]["volumes"]:
        if "configMap" in volume:
            one = tools.get("configmap", volume["configMap"]["name"], f"-n={NAMESPACE}")
            files = {name: text.encode() for name, text in one["data"].items()}
        elif "secret" in volume:
            one = tools.get("secret", volume["secret"]["secretName"], f"-n={NAMESPACE}")
            files = {name: b64decode(text) for name, text in one["data"].items()}
        else:
            continue
        found[volume["name"]] = directory / volume["name"]
        found[volume["name"]].mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (found[volume["name"]] / name).write_bytes(content)
    return found


@contextmanager
def running(plane: ControlPlane, tools: Tools, name: str) -> Iterator[Running]:
    """Starts the containers of this Deployment in their order, and stops them in reverse."""
    deployment = tools.get("deployment", name, f"-n={NAMESPACE}")
    pod = deployment["spec"]["template"]["spec"]
    volumes = mount(tools, deployment, plane.directory / "mounts")
    account = pod["serviceAccountName"]
    kubeconfig = plane.kubeconfig_for(account, plane.api.token(account))
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    (container,) = [one for one in containers if one["name"] == "stowage"]
    ports = {"8080": free_port(), "8081": free_port()}
    scheme = container["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
    verbs, metrics = [f"{scheme}://127.0.0.1:{port}" for port in ports.values()]
    command = [*here(container, volumes, ports), f"--kubeconfig={kubeconfig}"]
    stowage = plane.process("installed-stowage", command, ready=f"{metrics}/readyz")
    stowage.environment = {"NUMBA_CACHE_DIR": str(plane.directory / "kernels")} | os.environ
    stowage.start(within_s=400)
    try:
        if "scheduler" not in volumes:
            yield Running(stowage, verbs, metrics)
            return
        configuration = yaml.safe_load((volumes["scheduler"] / "config.yaml").read_text())
        (extender,) = configuration["extenders"]
        assert extender["urlPrefix"] == "http://127.0.0.1:8080/scheduler"
        extender["urlPrefix"] = f"{verbs}/scheduler"
        with plane.scheduler(configuration, "installed-scheduler", kubeconfig) as scheduler:
            yield Running(stowage, verbs, metrics, scheduler)
    finally:
        stowage.stop()


def here(container: Object, volumes: dict[str, Path], ports: dict[str, int]) -> list[str | Path]:
    """The command with the program, ports, addresses and mounts of this machine."""
    program, *arguments = container["command"]
    assert program == "stowage"
    paths = {one["mountPath"]: volumes.get(one["name"]) for one in container["volumeMounts"]}
    command: list[str | Path] = [PROGRAM]
    for argument in arguments:
        name, _, value = argument.partition("=")
        path, _, file = value.rpartition("/")
        if path in paths:
            value = f"{paths[path]}/{file}"
        value = {"0.0.0.0": "127.0.0.1"}.get(value, str(ports.get(value, value)))
        command.append(f"{name}={value}" if value else name)
    return command
