"""2,000 pods on parts of 200 shared GPUs, bound by the leader of two Stowages while bindings fail and leaders
die. And the shipped example."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from . import hostile, sharing, workload
from .audit import runs, unschedulable
from .binding import are_bound, binding, check_the_books, check_the_end, configuration, faulty_api
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually
from .faults import FAULTS, FaultyApi
from .service import Service
from .stowage import ROOT, Stowage, applied

EXAMPLE = ROOT / "deploy" / "examples" / "shared-gpu.yaml"
OWN, HAMI = 1300, 700
FRACTIONS = 64  # of the 96 that 24 GPUs hold
MEANWHILE = 250  # the least that each leader binds
ELECTION = {"LEADER_ELECTION": "stowage-system/stowage", "LEASE_SECONDS": "5"}


@pytest.fixture
def faulty(cluster: ControlPlane) -> Iterator[FaultyApi]:
    with faulty_api(cluster) as faulty:
        yield faulty


@pytest.fixture
def replicas(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, faulty: FaultyApi
) -> Iterator[list[Stowage]]:
    """Two with only the rights of deploy/, of which one leads."""
    with ExitStack() as stack:
        stack.enter_context(applied(api, "behind-a-service.yaml"))
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        yield [
            stack.enter_context(binding(cluster, stowage_kubeconfig, faulty, name, **ELECTION))
            for name in ("replica-a", "replica-b")
        ]


def test_no_share_is_given_out_twice_whatever_fails(
    cluster: ControlPlane, api: Api, faulty: FaultyApi, replicas: list[Stowage]
) -> None:
    """The leader is killed twice and stopped once, and each time the other replica takes over."""
    api.create_all(sharing.nodes())
    api.create_all(sharing.pods(OWN, HAMI))
    with Service(replicas) as service:
        eventually(lambda: bool(service.leaders), within_s=60, what="a replica is ready")
        with sharing.GpuAudit(api) as audit, cluster.scheduler(configuration(service.url)):
            started = time.monotonic()
            for end in (Process.kill, Process.kill, Process.stop):
                are_bound(lambda: len(audit.bound), len(audit.bound) + MEANWHILE)
                leader = service.leaders[-1]
                end(leader.process)
                leader.process.start(within_s=180)  # as kubelet does
            eventually(audit.settled, within_s=240, what="every pod runs or waits", every_s=0.2)
            print(f"{len(audit.bound)} of {len(audit.pods)} pods bound in {time.monotonic() - started:.1f} s")
            waiting = check_the_end(api, audit, OWN + HAMI)
        for replica in replicas:
            check_the_books(api, replica)
    print(f"bindings by fault: {dict(faulty.bindings)}, leaders: {len(service.leaders)}")
    assert len(waiting) < (OWN + HAMI) / 5
    assert len(service.leaders) >= 4
    assert service.rivals == 0
    assert all(faulty.bindings[fault] for fault in FAULTS)


def test_no_gpu_gets_pods_of_two_modes_whoever_is_killed(
    cluster: ControlPlane, api: Api, faulty: FaultyApi, replicas: list[Stowage]
) -> None:
    """Fractions that agents enforce, of both modes, while bindings fail and the leader is killed twice."""
    for node in sharing.nodes()[:3]:
        name, gpus = node["metadata"]["name"], range(sharing.OWN_GPUS)
        node["metadata"]["annotations"] = {"stowage.dev/gpu-uuids": ",".join(f"{name}-{gpu}" for gpu in gpus)}
        node["status"]["conditions"] = [{"type": "gpu-fractioning.nvidia.com/Ready", "status": "True"}]
        api.create(node)
    of_container = "nvidia.com/container.work."
    for number in range(FRACTIONS):
        mode = ("time-slicing", "sm-sharing")[number % 2]
        asks = {f"{of_container}gpu-memory.request": "20Gi", f"{of_container}gpu-compute.mode": mode}
        api.create(workload.pod(f"part-{number}", {}, cpu="100m", annotations=asks))

    def bound() -> list[Object]:
        return [pod for pod in api.list("Pod")["items"] if pod["spec"].get("nodeName")]

    with Service(replicas) as service:
        eventually(lambda: bool(service.leaders), within_s=60, what="a replica is ready")
        with cluster.scheduler(configuration(service.url)):
            for count in (FRACTIONS // 4, FRACTIONS // 2):
                are_bound(lambda: len(bound()), count)
                leader = service.leaders[-1]
                leader.process.kill()
                leader.process.start(within_s=180)  # as kubelet does
            are_bound(lambda: len(bound()), FRACTIONS)
        assert service.rivals == 0
    modes = defaultdict[str, set[str]](set)
    for pod in bound():
        written = pod["metadata"]["annotations"]
        modes[written[f"{of_container}gpus.devices"]].add(written[f"{of_container}gpu-compute.mode"])
    assert len(set().union(*modes.values())) == 2
    assert all(len(of_gpu) == 1 for of_gpu in modes.values()), modes
    for replica in replicas:
        assert replica.json("/debug/problems")["counts"].get("pod", 0) == 0


def test_the_example_gets_the_index_of_one_gpu(
    cluster: ControlPlane, api: Api, replicas: list[Stowage]
) -> None:
    """The shipped manifest, on a node that is set aside as in docs/bind.md."""
    set_aside = sharing.nodes()[0]
    taint = {"key": "stowage.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}
    api.create(set_aside | {"spec": {"taints": [taint]}})
    example: Object = yaml.safe_load(EXAMPLE.read_text())
    assert example["spec"].pop("runtimeClassName") == "nvidia"  # the control plane here has none
    plain = workload.pod("plain", {}, annotations={"stowage.dev/gpus": "1"})
    with Service(replicas) as service, cluster.scheduler(configuration(service.url)):
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


def test_nobody_hides_and_nobody_keeps_what_he_gave_back(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """The API server takes an owner's UID of any length. A user writes one into a running pod, and less than
    it was given; whoever waits must wait, until the pod is gone, also after a restart."""
    (gpu,) = sharing.nodes()[:1]
    gpu["metadata"]["labels"]["nvidia.com/gpu.count"] = "1"
    api.create(gpu)
    with (
        hostile.ordinary_user(cluster, api) as author,
        applied(api, "rbac-bind.yaml"),
        Stowage(cluster, stowage_kubeconfig, BIND="true") as stowage,
        cluster.scheduler(configuration(stowage.url)),
    ):
        author.create(sharing.own_pod("hides", "600m", "30Gi"))
        eventually(lambda: runs(api.get("Pod", "hides")), within_s=60, what="the pod runs")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u" * 400}
        less = {"annotations": {sharing.COMPUTE: "10m", sharing.MEMORY: "1Gi"}}
        author.patch("Pod", "hides", {"metadata": less | {"ownerReferences": [owner]}})
        stowage.process.restart()
        api.create(sharing.own_pod("waits", "600m", "30Gi"))
        eventually(lambda: unschedulable(api.get("Pod", "waits")), within_s=60, what="there is no room")
        shown = [one["text"] for one in stowage.json("/debug/problems")["problems"]]
        assert any("ownerReferences.0.uid" in text for text in shown)
        author.delete("Pod", "hides")
        eventually(lambda: runs(api.get("Pod", "waits")), within_s=60, what="what it had is free again")
        assert stowage.json("/debug/problems")["counts"].get("pod", 0) == 0
