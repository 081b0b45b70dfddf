"""The real kube-scheduler loads each file of scheduler-config/, and shows how it reads it."""

from pathlib import Path

import httpx
import pytest
import yaml

from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, ProcessError, eventually, free_port

DIRECTORY = Path(__file__).parents[2] / "scheduler-config"
FILES = sorted(DIRECTORY.glob("*.yaml"))
BINDS, SCORES_ONLY = "shared-gpus", "resource-claims"
LISTED = {"second-scheduler", "own-control-plane"}
IN_TREE_MOST = 14 * 100  # default plugin weights x 100, with the plugin for resource claims


def shipped(file: Path) -> Object:
    """The file with another address of Stowage. (The control plane sets the kubeconfig.)"""
    configuration: Object = yaml.safe_load(file.read_text())
    (extender,) = configuration["extenders"]
    extender["urlPrefix"] = f"http://127.0.0.1:{free_port()}/scheduler"
    return configuration


def understood(scheduler: Process) -> Object:
    port = next(part.partition("=")[2] for part in scheduler.command if part.startswith("--secure-port="))
    answer = httpx.get(f"https://127.0.0.1:{port}/configz", verify=False, trust_env=False)
    answer.raise_for_status()
    configuration: Object = answer.json()["componentconfig"]
    return configuration


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_kube_scheduler_starts_and_leads(cluster: ControlPlane, file: Path) -> None:
    with cluster.scheduler(shipped(file)) as scheduler:
        loaded = understood(scheduler)
        lease = loaded["leaderElection"]["resourceName"]
        eventually(lambda: leads(cluster, lease), within_s=60, what=f"the scheduler holds the lease {lease}")
        (extender,) = loaded["extenders"]
        assert loaded["percentageOfNodesToScore"] == 100
        assert extender["weight"] * 10 > IN_TREE_MOST
        assert (extender["nodeCacheCapable"], extender.get("ignorable", False)) == (True, False)
        assert extender["httpTimeout"] == "2s"
        assert ("bindVerb" in extender) == (file.stem == BINDS)
        assert ("filterVerb" in extender) == (file.stem != SCORES_ONLY)
        assert scoring(loaded, "stowage") == "MostAllocated"


def test_files_differ_in_their_scope_only() -> None:
    loaded = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
    managed = {name: file["extenders"][0].pop("managedResources", None) for name, file in loaded.items()}
    assert managed.pop("every-pod") is None
    assert managed.pop(BINDS) is None
    assert managed.pop(SCORES_ONLY) is None
    rest = {"filterVerb": "filter", "preemptVerb": "preempt", "ignorable": False}
    assert not loaded[SCORES_ONLY]["extenders"][0].keys() & rest.keys()
    loaded[SCORES_ONLY]["extenders"][0] |= rest
    assert loaded[BINDS]["extenders"][0].pop("bindVerb") == "bind"
    assert set(managed) == LISTED
    first, second = managed.values()
    assert first == second
    assert all(not item["ignoredByScheduler"] for item in first)
    for file in loaded.values():
        del file["extenders"][0]["urlPrefix"]
    assert len({yaml.safe_dump(file["extenders"]) for file in loaded.values()}) == 1


def test_kube_scheduler_refuses_a_file_with_a_mistake(cluster: ControlPlane) -> None:
    configuration = shipped(FILES[0])
    configuration["extenders"][0]["wieght"] = 5
    with pytest.raises(ProcessError, match=r"unknown field.*wieght"):
        cluster.scheduler(configuration).start()


def leads(cluster: ControlPlane, lease: str) -> bool:
    """Whether a scheduler holds the lease. A holder that stops cleanly removes its name."""
    try:
        return bool(cluster.api.get("Lease", lease)["spec"].get("holderIdentity"))
    except httpx.HTTPStatusError as problem:
        if problem.response.status_code != httpx.codes.NOT_FOUND:
            raise
        return False


def scoring(configuration: Object, profile: str) -> str:
    plugins = next(p["pluginConfig"] for p in configuration["profiles"] if p["schedulerName"] == profile)
    strategy: str = next(
        plugin["args"]["scoringStrategy"]["type"]
        for plugin in plugins
        if plugin["name"] == "NodeResourcesFit"
    )
    return strategy
