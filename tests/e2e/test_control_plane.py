"""The control plane itself, without Stowage."""

import os
from pathlib import Path

import pytest

from .controlplane.__main__ import PLAIN
from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, ProcessError, eventually
from .workload import node, pod


def phase(api: Api, name: str) -> str:
    return str(api.get("Pod", name)["status"]["phase"])


def test_pods_run_and_finish(cluster: ControlPlane, api: Api) -> None:
    api.create(node("n1", {"nvidia.com/gpu": 8}))
    with cluster.scheduler(PLAIN):
        api.create(pod("stays", {"nvidia.com/gpu": 1}, scheduler="default-scheduler"))
        api.create(pod("ends", {"nvidia.com/gpu": 1}, scheduler="default-scheduler", runs_for="500ms"))
        eventually(lambda: phase(api, "ends") == "Succeeded", within_s=60, what="the pod finishes")
        eventually(lambda: phase(api, "stays") == "Running", within_s=30, what="the other pod runs")
    assert api.get("Pod", "stays")["spec"]["nodeName"] == "n1"


def test_a_killed_api_server_comes_back_with_its_objects(cluster: ControlPlane, api: Api) -> None:
    before = api.create(node("n1", {"nvidia.com/gpu": 8}))["metadata"]["uid"]
    cluster.apiserver.restart()
    assert api.get("Node", "n1")["metadata"]["uid"] == before


def test_clean_up_empties_the_cluster(api: Api) -> None:
    api.create(node("n1", {"nvidia.com/gpu": 8}))
    api.create(pod("p1", {"nvidia.com/gpu": 1}))
    api.clean_up()
    assert [api.list(kind)["items"] for kind in ("Node", "Pod")] == [[], []]


def test_a_program_that_dies_shows_its_log(tmp_path: Path) -> None:
    program = Process("sad", ["sh", "-c", "echo no room; exit 3"], log=tmp_path / "log", ready=lambda: False)
    with pytest.raises(ProcessError, match=r"sad ended with 3\nno room"):
        program.start()


def test_a_program_that_is_never_ready_does_not_stay(tmp_path: Path) -> None:
    program = Process("slow", ["sleep", "60"], log=tmp_path / "log", ready=lambda: False)
    with pytest.raises(ProcessError, match="slow is ready"):
        program.start(within_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_programs_stop_when_the_block_fails(tmp_path: Path) -> None:
    program = Process("long", ["sleep", "60"], log=tmp_path / "log", ready=lambda: True)
    with pytest.raises(KeyboardInterrupt), program:
        raise KeyboardInterrupt
    assert not program.running
