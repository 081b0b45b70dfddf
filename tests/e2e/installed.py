"""The containers of an installed Deployment as processes, with the rights of its service account.

They have the commands, ConfigMaps and Secrets of the Deployment. Only ports, paths and the kubeconfig are
those of this machine.
"""

import os
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.certificates import Secret

from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually, free_port
from .stowage import PROGRAM
from .tools import NAMESPACE, Tools


@dataclass(frozen=True)
class Containers:
    """Stowage, and the kube-scheduler beside it if there is one, with what is mounted (by volume)."""

    stowage: Process
    verbs: str
    metrics: str
    mounts: dict[str, Secret]
    scheduler: Process | None = None

    @property
    def verbs_url(self) -> str:
        """As that of a `Stowage`, for a `Service`."""
        return self.verbs

    def start(self) -> None:
        self.stowage.start(within_s=400)
        if self.scheduler:
            try:
                self.scheduler.start()
            except BaseException:
                self.stowage.stop()
                raise

    def stop(self, *, within_s: float = 10) -> None:
        """As kubelet stops a sidecar: after kube-scheduler."""
        for one in (self.scheduler, self.stowage):
            if one:
                one.stop(within_s=within_s)

    def get(self, path: str, token: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(self.metrics + path, headers=headers, trust_env=False, timeout=10, verify=False)

    def status(self, path: str) -> int:
        """The status of a GET, 0 if nothing listens."""
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return 0

    def ready(self) -> bool:
        return self.status("/readyz") == 200 and (self.scheduler is None or self.scheduler.ready)


def containers(plane: ControlPlane, tools: Tools, pod: Object, name: str) -> Containers:
    """Those of a pod with this spec, not yet started."""
    mounts = mount(tools, pod, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=plane.directory)))
    account = pod["serviceAccountName"]
    kubeconfig = plane.kubeconfig_for(account, plane.api.token(account))
    every = {one["name"]: one for one in [*pod.get("initContainers", ()), *pod["containers"]]}
    container = every["stowage"]
    ports = {"8080": free_port(), "8081": free_port()}
    scheme = container["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
    verbs, metrics = [f"{scheme}://127.0.0.1:{port}" for port in ports.values()]
    command = [*here(container, mounts, ports), f"--kubeconfig={kubeconfig}"]
    # A sidecar has a probe for its start. Without one kubelet takes a container as started at once.
    started = container.get("startupProbe", container["livenessProbe"])["httpGet"]["path"]
    stowage = plane.process(f"{name}-stowage", command, ready=metrics + started)
    # Every pod has compiled kernels from its image.
    stowage.environment = {"NUMBA_CACHE_DIR": str(plane.directory / "kernels")} | os.environ
    if "kube-scheduler" not in every:
        return Containers(stowage, verbs, metrics, mounts)
    configuration = yaml.safe_load(mounts["scheduler"].path("config_yaml").read_text())
    (extender,) = configuration["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:8080/scheduler"
    extender["urlPrefix"] = f"{verbs}/scheduler"
    scheduler = plane.scheduler(configuration, f"{name}-scheduler", kubeconfig)
    return Containers(stowage, verbs, metrics, mounts, scheduler)


@contextmanager
def running(plane: ControlPlane, tools: Tools, name: str) -> Iterator[Containers]:
    """The containers of one pod of this Deployment. They run, and Stowage is ready, during the block."""
    deployment = tools.get("deployment", name, f"-n={NAMESPACE}")
    one = containers(plane, tools, deployment["spec"]["template"]["spec"], f"installed-{name}")
    one.start()
    try:
        eventually(one.ready, within_s=60, what="the installed Stowage is ready")
        yield one
    finally:
        one.stop()


def mount(tools: Tools, pod: Object, directory: Path) -> dict[str, Secret]:
    """Writes the ConfigMaps and Secrets of a pod into directories of their own, by the name of the volume."""
    found = {}
    for volume in pod["volumes"]:
        if files := contents(tools, volume):
            found[volume["name"]] = Secret(directory / volume["name"], **files)
    return found


def contents(tools: Tools, volume: Object) -> dict[str, bytes]:
    """The files of a ConfigMap or Secret, by their names with _ for the dot."""
    if "configMap" in volume:
        one = tools.get("configmap", volume["configMap"]["name"], f"-n={NAMESPACE}")
        return {name.replace(".", "_"): text.encode() for name, text in one["data"].items()}
    if "secret" in volume:
        one = tools.get("secret", volume["secret"]["secretName"], f"-n={NAMESPACE}")
        return {name.replace(".", "_"): b64decode(text) for name, text in one["data"].items()}
    return {}


def here(container: Object, mounts: dict[str, Secret], ports: dict[str, int]) -> list[str | Path]:
    """The command with the program, ports, addresses and mounts of this machine."""
    program, *arguments = container["command"]
    assert program == "stowage"
    paths = {
        one["mountPath"]: mounts[one["name"]].directory
        for one in container["volumeMounts"]
        if one["name"] in mounts
    }
    command: list[str | Path] = [PROGRAM]
    for argument in arguments:
        name, _, value = argument.partition("=")
        path, _, file = value.rpartition("/")
        if path in paths:
            value = f"{paths[path]}/{file}"
        value = {"0.0.0.0": "127.0.0.1"}.get(value, str(ports.get(value, value)))
        command.append(f"{name}={value}" if value else name)
    return command
