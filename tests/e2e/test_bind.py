"""2,000 pods on parts of 200 shared GPUs, bound by Stowage while bindings fail and Stowage is killed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from . import sharing, workload
from .audit import runs, unschedulable
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .faults import FaultyApi
from .stowage import ROOT, Stowage, apply, holders

SCHEDULER = ROOT / "scheduler-config" / "shared-gpus.yaml"
EXAMPLE = ROOT / "deploy" / "examples" / "shared-gpu.yaml"
OWN, HAMI = 1300, 700
KILLED_AT = 400, 1000  # pods bound


@pytest.fixture
def faulty(cluster: ControlPlane) -> Iterator[FaultyApi]:
    """What Stowage takes for the API server: a tenth of the bindings fail."""
    certificate = cluster.directory / "certificates" / "apiserver.crt"
    with FaultyApi(cluster.server, str(certificate), share=0.1) as faulty:
        yield faulty


@pytest.fixture
def binding_stowage(cluster: ControlPlane, stowage_kubeconfig: Path, faulty: FaultyApi) -> Iterator[Stowage]:
    """A Stowage that binds, with the rights of deploy/ and through the faulty API server."""
    apply(cluster.api, "rbac-bind.yaml")
    kubeconfig = yaml.safe_load(stowage_kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"] = {"server": faulty.url}
    file = cluster.directory / "faulty.kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    try:
        with Stowage(cluster, file, BIND="true") as stowage:
            yield stowage
    finally:
        cluster.api.delete("ClusterRoleBinding", "stowage-bind")


def test_no_share_is_given_out_twice_whatever_fails(
    cluster: ControlPlane, api: Api, faulty: FaultyApi, binding_stowage: Stowage
) -> None:
    api.create_all(sharing.nodes())
    api.create_all(sharing.pods(OWN, HAMI))
    with sharing.GpuAudit(api) as audit, cluster.scheduler(configuration(binding_stowage.url)):
        started = time.monotonic()
        for count in KILLED_AT:
            eventually(lambda n=count: len(audit.bound) >= n, within_s=120, what=f"{count} pods are bound")
            binding_stowage.process.restart()
        eventually(audit.settled, within_s=240, what="every pod runs or waits", every_s=0.2)
        print(f"{len(audit.bound)} of {len(audit.pods)} pods bound in {time.monotonic() - started:.1f} s")
    print(f"bindings by fault: {dict(faulty.bindings)}")
    check_the_end(api, audit)
    check_the_books(api, binding_stowage)
    assert all(
        faulty.bindings[fault] for fault in (("before", "500"), ("after", "500"), ("after", "hang up"))
    )


def configuration(url: str) -> Object:
    """The shipped configuration for shared GPUs, with Stowage at `url` and without an election."""
    loaded: Object = yaml.safe_load(SCHEDULER.read_text())
    loaded["leaderElection"] = {"leaderElect": False}
    loaded["podMaxBackoffSeconds"] = 2  # nobody schedules while Stowage is away: try again soon after
    loaded["extenders"][0]["urlPrefix"] = f"{url}/scheduler"
    return loaded


def check_the_end(api: Api, audit: sharing.GpuAudit) -> None:
    """Nothing is lost, no GPU is over-committed, and no pod waits that fits somewhere."""
    pods = api.list("Pod")["items"]
    assert len(pods) == OWN + HAMI
    assert audit.findings == []
    assert sharing.overcommitted(pods) == {}
    waiting = [pod for pod in pods if not runs(pod)]
    assert [pod["metadata"]["name"] for pod in waiting if sharing.has_room(pods, pod)] == []
    for pod in waiting:
        (condition,) = (c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
        assert "35 nodes are available" in condition["message"].replace("0/", "")
    assert len(waiting) < len(pods) / 5


def check_the_books(api: Api, stowage: Stowage) -> None:
    """Stowage has every pod that is bound and no other, each on the GPU that is written."""
    eventually(lambda: no_hold_is_tentative(stowage), within_s=90, what="no hold is tentative", every_s=0.5)
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


def no_hold_is_tentative(stowage: Stowage) -> bool:
    found = stowage.json("/debug/nodes")["nodes"]
    return all(holder["tentative_seconds"] is None for node in found for holder in node["holders"])


def test_the_example_gets_the_index_of_one_gpu(
    cluster: ControlPlane, api: Api, binding_stowage: Stowage
) -> None:
    """The shipped manifest, on a node that is closed as docs/bind.md has it."""
    set_aside = sharing.nodes()[0]
    taint = {"key": "stowage.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}
    api.create(set_aside | {"spec": {"taints": [taint]}})
    example: Object = yaml.safe_load(EXAMPLE.read_text())
    assert example["spec"].pop("runtimeClassName") == "nvidia"  # the control plane here has none
    plain = workload.pod("plain", {}, annotations={"stowage.dev/gpus": "1"})
    with cluster.scheduler(configuration(binding_stowage.url)):
        api.create(example)
        api.create(plain)
        eventually(lambda: runs(api.get("Pod", "shared-gpu")), within_s=60, what="the example runs")
        eventually(
            lambda: unschedulable(api.get("Pod", "plain")), within_s=60, what="the taint keeps others out"
        )
    pod = api.get("Pod", "shared-gpu")
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert variable["name"] == "NVIDIA_VISIBLE_DEVICES"
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert (
        pod["metadata"]["annotations"][path.removeprefix("metadata.annotations['").removesuffix("']")] == "0"
    )
