"""The steps of docs/tutorial.md but the installation, on our control plane, and without the ten minutes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.collect import blocks

from .controlplane.cluster import ControlPlane
from .controlplane.process import free_port
from .queue_cases import HOUR, set_started
from .tools import ROOT, program

CONTROLLERS = ["replicaset-controller", "garbage-collector-controller", "serviceaccount-controller"]
PLACES = ("deploy", "scheduler-config")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path / "plane") as plane:
        yield plane


def test_packed_explained_preempted_and_consolidated(plane: ControlPlane, tmp_path: Path) -> None:
    port = free_port()
    steps = [
        block.text.replace("8080", str(port))
        for block in blocks(ROOT / "docs/tutorial.md")
        if block.language == "sh"
    ]
    _install, start, pack, ask, preempt, consolidate, clean_up = steps
    for name in PLACES:
        (tmp_path / name).symlink_to(ROOT / name)
    kwokctl = tmp_path / "kwokctl"
    kwokctl.write_text(f"#!/bin/sh\ncp {plane.kubeconfig} kubeconfig\n")
    kwokctl.chmod(0o755)

    def run(*texts: str) -> str:
        path = [tmp_path, Path(sys.executable).parent, program("kubectl").parent, "/usr/bin", "/bin"]
        environment = os.environ | {
            "PATH": ":".join(map(str, path)),
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
        }
        command = ["timeout", "300", "bash", "-e", "-c", "".join(texts)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
        return done.stdout

    configuration = yaml.safe_load((ROOT / "scheduler-config/second-scheduler.yaml").read_text())
    configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}/scheduler"
    with plane.scheduler(configuration), plane.controller_manager(CONTROLLERS):
        pid = int(run(start, "echo $!\n").split()[-1])
        try:
            written = yaml.safe_load((tmp_path / "scheduler.yaml").read_text())
            assert written["extenders"] == configuration["extenders"]
            run(pack)
            used = {node: len(pods) for node, pods in where(plane).items()}
            assert sorted(used.values()) == [1, 4, 8]
            assert "sweep" in run(ask)
            run(preempt)
            (target,) = (node for node, pods in where(plane).items() if pods == {"train"})
            assert target
            for one in plane.api.list("Pod")["items"]:
                if one["metadata"]["labels"]["app"].startswith("small"):
                    set_started(plane.api, one["metadata"]["name"], ago_s=HOUR)
            run(pack.splitlines(keepends=True)[0], consolidate)
            assert sorted(map(len, where(plane).values())) == [1, 1, 8]
        finally:
            os.kill(pid, signal.SIGTERM)
        assert "kwokctl delete" in clean_up


def where(plane: ControlPlane) -> dict[str, set[str]]:
    """The workloads on each node."""
    found: dict[str, set[str]] = {}
    for pod in plane.api.list("Pod")["items"]:
        if node := pod["spec"].get("nodeName"):
            found.setdefault(node, set()).add(pod["metadata"]["labels"]["app"])
    return found
