"""Stowage as in a cluster: a process with only the rights of deploy/."""

import json
import os
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually, free_port

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("stowage")
SCHEDULERS = ROOT / "scheduler-config"


def service_account(plane: ControlPlane) -> Path:
    """The kubeconfig of a service account with the rights of deploy/rbac.yaml."""
    apply(plane.api, "rbac.yaml")
    return plane.kubeconfig_for("stowage", plane.api.token("stowage"))


class Stowage:
    """Runs on a free port during its `with` block. Settings are passed as environment variables.

    It has started when it answers `awaits` with 200. `verify` checks the certificate at `url`.
    """

    verify: ssl.SSLContext | bool = True

    def __init__(
        self,
        plane: ControlPlane,
        kubeconfig: Path,
        *,
        name: str = "stowage",
        awaits: str = "/readyz",
        arguments: Sequence[str] = (),
        **settings: str,
    ) -> None:
        port = free_port()
        self.url = self.verbs_url = f"http://127.0.0.1:{port}"
        command: list[str | Path] = [PROGRAM, "serve", f"--kubeconfig={kubeconfig}", f"--port={port}"]
        command += arguments
        self.process = Process(
            name,
            command,
            log=plane.logs / f"{name}.log",
            ready=lambda: self.status(awaits) == 200 and (awaits != "/readyz" or self.preempts()),
        )
        # A cache of compiled kernels makes a restart quick, also if make has not set one.
        kernels = {"NUMBA_CACHE_DIR": str(plane.directory / "kernels")}
        given = {f"STOWAGE_{key}": value for key, value in settings.items()}
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("STOWAGE_E2E_")}
        self.process.environment = kernels | inherited | given

    def __enter__(self) -> Self:
        self.process.start(within_s=400)  # the first start compiles kernels
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()

    def status(self, path: str) -> int:
        """The status of a GET, 0 if nothing listens."""
        try:
            return httpx.get(self.url + path, trust_env=False, timeout=2, verify=self.verify).status_code
        except httpx.TransportError:
            return 0

    def preempts(self) -> bool:
        """Whether `preempt` answers: after its first start Stowage compiles the kernels for it."""
        answer = httpx.post(f"{self.url}/scheduler/preempt", json={}, trust_env=False, verify=self.verify)
        return answer.status_code != 503

    def metric(self, sample: str) -> float:
        """The value of a sample of /metrics, 0 if there is none."""
        text = self.text("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(sample + " ")]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    def json(self, path: str) -> Object:
        document: Object = json.loads(self.text(path))
        return document

    def text(self, path: str) -> str:
        answer = httpx.get(self.url + path, trust_env=False, verify=self.verify)
        answer.raise_for_status()
        return answer.text

    def flush(self, api: Api) -> None:
        """Waits until Stowage has the same nodes, with the same pods on them, as the API server."""
        eventually(lambda: self.holders() == holders(api), within_s=30, what="Stowage agrees with the API")

    def holders(self) -> dict[str, set[str]]:
        """The pods on each node, according to Stowage."""
        nodes = self.json("/debug/nodes")["nodes"]
        return {node["name"]: {holder["pod"] for holder in node["holders"]} for node in nodes}


def holders(api: Api) -> dict[str, set[str]]:
    """The pods on each node, according to the API server."""
    found: dict[str, set[str]] = {node["metadata"]["name"]: set() for node in api.list("Node")["items"]}
    for pod in api.list("Pod")["items"]:
        if node := pod["spec"].get("nodeName"):
            found[node].add(f"{NAMESPACE}/{pod['metadata']['name']}")
    return found


def apply(api: Api, file: str) -> None:
    """Creates the objects in a file of deploy/. A field that the API server does not know is an error."""
    for document in manifests(file):
        api.create(document, fieldValidation="Strict")


@contextmanager
def applied(api: Api, file: str) -> Iterator[None]:
    """Applies a file of deploy/, and deletes its objects at the end of the block."""
    try:
        apply(api, file)
        yield
    finally:
        for document in manifests(file):
            metadata = document["metadata"]
            with suppress(httpx.HTTPStatusError):  # it was not created
                api.delete(document["kind"], metadata["name"], metadata.get("namespace", ""))


def manifests(file: str) -> list[Object]:
    """The objects in a file of deploy/."""
    return list(yaml.safe_load_all((ROOT / "deploy" / file).read_text()))


def scheduler_configuration(url: str, file: str = "second-scheduler.yaml", **changes: object) -> Object:
    """A shipped configuration, with Stowage at `url` and without an election."""
    configuration: Object = yaml.safe_load((SCHEDULERS / file).read_text())
    configuration["leaderElection"] = {"leaderElect": False}
    configuration["extenders"][0] |= {"urlPrefix": f"{url}/scheduler"} | changes
    return configuration
