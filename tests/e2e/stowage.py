"""Stowage as it runs in a cluster: a process of its own, with the rights of deploy/ and no others."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, free_port

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("stowage")
SCHEDULER = ROOT / "scheduler-config" / "second-scheduler.yaml"


class Stowage:
    """It runs while its `with` block does, on a free port of its own; settings go by environment."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, **settings: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command: list[str | Path] = [PROGRAM, "serve", f"--kubeconfig={kubeconfig}", f"--port={port}"]
        self.process = Process(
            "stowage", command, log=plane.logs / "stowage.log", ready=lambda: self.status("/readyz") == 200
        )
        self.process.environment = os.environ | {f"STOWAGE_{key}": value for key, value in settings.items()}

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()

    def status(self, path: str) -> int:
        """The status of a GET; 0 while nobody listens."""
        try:
            return httpx.get(self.url + path, trust_env=False, timeout=2).status_code
        except httpx.TransportError:
            return 0

    def json(self, path: str) -> Object:
        answer = httpx.get(self.url + path, trust_env=False)
        answer.raise_for_status()
        document: Object = answer.json()
        return document


def apply(api: Api, file: str) -> None:
    """Creates what a file of deploy/ holds."""
    for document in yaml.safe_load_all((ROOT / "deploy" / file).read_text()):
        api.create(document)


def scheduler_configuration(url: str, **changes: object) -> Object:
    """The shipped configuration of a second scheduler, with Stowage at `url` and without an election."""
    configuration: Object = yaml.safe_load(SCHEDULER.read_text())
    configuration["leaderElection"] = {"leaderElect": False}
    configuration["extenders"][0] |= {"urlPrefix": f"{url}/scheduler"} | changes
    return configuration
