"""Stowages that bind, the configuration of their kube-scheduler, and checks of the result."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from . import sharing
from .audit import runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .faults import FaultyApi
from .stowage import ROOT, Stowage, holders

SCHEDULER = ROOT / "scheduler-config" / "shared-gpus.yaml"


def faulty_api(cluster: ControlPlane) -> FaultyApi:
    """An API server for a Stowage that fails a tenth of the bindings."""
    certificate = cluster.directory / "certificates" / "apiserver.crt"
    return FaultyApi(cluster.server, str(certificate), share=0.1)


@contextmanager
def binding(
    cluster: ControlPlane, kubeconfig: Path, faulty: FaultyApi, name: str, **settings: str
) -> Iterator[Stowage]:
    """A Stowage that binds, with these credentials, through the faulty API server."""
    changed = yaml.safe_load(kubeconfig.read_text())
    changed["clusters"][0]["cluster"] = {"server": faulty.url}
    file = cluster.directory / f"{name}.kubeconfig"
    file.write_text(yaml.safe_dump(changed))
    with Stowage(cluster, file, name=name, awaits="/debug/nodes", BIND="true", **settings) as stowage:
        yield stowage


def configuration(url: str, **election: object) -> Object:
    """The shipped configuration for shared GPUs, with Stowage at `url`, and no election unless given."""
    loaded: Object = yaml.safe_load(SCHEDULER.read_text())
    loaded["leaderElection"] |= election or {"leaderElect": False}
    loaded["extenders"][0]["urlPrefix"] = f"{url}/scheduler"
    return loaded


def are_bound(bound: Callable[[], int], count: int) -> None:
    """Waits until this many pods are bound."""
    eventually(lambda: bound() >= count, within_s=120, what=f"{count} pods are bound")


def check_the_end(api: Api, audit: sharing.GpuAudit, count: int) -> list[Object]:
    """No pod is lost, no GPU was ever over-committed, and waiting pods fit nowhere and say why.

    Returns the waiting pods.
    """
    pods = api.list("Pod")["items"]
    assert len(pods) == count
    assert audit.findings == []
    assert sharing.overcommitted(pods) == {}
    waiting = [pod for pod in pods if not runs(pod)]
    assert [pod["metadata"]["name"] for pod in waiting if sharing.has_room(pods, pod)] == []
    for pod in waiting:
        check_the_reason(pod)
    return waiting


def check_the_reason(waiting: Object) -> None:
    """For a pod in Stowage's own dialect: Stowage's nodes are full, and HAMi's nodes do not take it."""
    (condition,) = (one for one in waiting["status"]["conditions"] if one["type"] == "PodScheduled")
    reasons = condition["message"].partition(" nodes are available: ")[2].partition(". ")[0]
    told = {text: int(nodes) for nodes, text in re.findall("([0-9]+) ([^,]+)", reasons)}
    assert told.pop("node does not offer the requested GPU resource") == sharing.HAMI_NODES
    assert told.keys() <= {"not enough free GPUs", "no single GPU has enough free compute and memory"}
    assert sum(told.values()) == sharing.OWN_NODES


def check_the_books(api: Api, stowage: Stowage) -> None:
    """Stowage has exactly the bound pods, each on the GPU in its annotations."""
    eventually(lambda: no_pod_is_assumed(stowage), within_s=90, what="no pod is assumed", every_s=0.5)
    assert stowage.holders() == holders(api)
    gpus = {
        holder["pod"].partition("/")[2]: holder["gpus"]
        for node in stowage.json("/debug/nodes")["nodes"]
        for holder in node["holders"]
    }
    for pod in api.list("Pod")["items"]:
        if pod["spec"].get("nodeName"):
            index = int(sharing.assigned(pod).gpu.rpartition("-")[2])
            assert gpus[pod["metadata"]["name"]] == [index]


def no_pod_is_assumed(stowage: Stowage) -> bool:
    found = stowage.json("/debug/nodes")["nodes"]
    return all(holder["assumed_seconds"] is None for node in found for holder in node["holders"])
