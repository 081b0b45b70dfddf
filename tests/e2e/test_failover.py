"""Two replicas behind a Service, while pods with parts of GPUs are bound through them: the one that leads is
killed twice and stopped once. What came of it is counted from the API alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import rush
from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU
from .service import Service
from .stowage import Stowage, applied, scheduler_configuration
from .workload import node, pod

NODES, GPUS, MEMORY_MIB = 20, 8, 81559
SHARES = [("250m", "8Gi"), ("100m", "30Gi"), ("500m", "20Gi"), ("300m", "40Gi"), ("50m", "4Gi")]
COMPUTE, MEMORY, INDICES = (f"stowage.dev/gpu-{what}" for what in ("compute", "memory", "indices"))
WAVE = 120
ELECTION = {"LEADER_ELECTION": "stowage-system/stowage", "LEASE_SECONDS": "5"}


@pytest.fixture
def replicas(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[list[Stowage]]:
    """Two that have the rights of deploy/, and know the cluster."""
    with ExitStack() as stack:
        stack.enter_context(applied(api, "behind-a-service.yaml"))
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        yield [
            stack.enter_context(
                Stowage(
                    cluster, stowage_kubeconfig, name=name, awaits="/debug/nodes", BIND="true", **ELECTION
                )
            )
            for name in ("replica-a", "replica-b")
        ]


def test_the_leader_dies_twice_while_parts_of_gpus_are_bound(
    cluster: ControlPlane, api: Api, replicas: list[Stowage]
) -> None:
    api.create_all(shared_node(number) for number in range(NODES))
    with Service(replicas) as service:
        eventually(lambda: bool(service.leaders), within_s=60, what="a replica is ready")
        # No managedResources: these pods ask by annotation.
        configuration = scheduler_configuration(service.url, bindVerb="bind", managedResources=None)
        with Audit(api) as audit, cluster.scheduler(configuration):
            for wave, end in enumerate(["kill", "kill", "stop"]):
                api.create_all(sharing_pod(wave * WAVE + number) for number in range(WAVE))
                half_way = wave * WAVE + WAVE // 2
                bound = lambda goal=half_way: len(audit.bound) >= goal  # noqa: E731
                eventually(bound, within_s=120, what=f"{half_way} pods are bound")
                leader = service.leaders[-1]
                getattr(leader.process, end)()
                leader.process.start(within_s=180)  # as kubelet would
            eventually(audit.settled, within_s=240, what="every pod runs or waits", every_s=0.2)
    assert audit.findings == []
    pods = api.list("Pod")["items"]
    assert [one["metadata"]["name"] for one in pods if not runs(one)] == []  # there is room for all
    assert excess(pods) == {}
    assert len(service.leaders) >= 4
    assert service.rivals == 0
    for replica in replicas:
        replica.catch_up(api)  # no hold is left that no pod explains


def shared_node(number: int) -> Object:
    labels = rush.LABEL_SETS["h100-sxm-8-whole"] | {"stowage.dev/gpu-sharing": "true"}
    return node(f"shared-{number:02}", {GPU: GPUS}, labels=labels)


def sharing_pod(number: int) -> Object:
    compute, memory = SHARES[number % len(SHARES)]
    return pod(f"part-{number:03}", {}, cpu="100m", annotations={COMPUTE: compute, MEMORY: memory})


def excess(pods: list[Object]) -> dict[tuple[str, str], str]:
    """By node and index of the GPU, what the pods that have it may use beyond what it is."""
    compute, memory = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in pods:
        notes = one["metadata"]["annotations"]
        gpu = one["spec"]["nodeName"], notes[INDICES]  # one GPU each
        assert int(notes[INDICES]) < GPUS
        compute[gpu] += int(notes[COMPUTE].removesuffix("m"))
        memory[gpu] += int(notes[MEMORY].removesuffix("Gi")) << 10
    return {
        gpu: f"{compute[gpu]}m, {memory[gpu]} MiB"
        for gpu in compute
        if compute[gpu] > 1000 or memory[gpu] > MEMORY_MIB
    }
