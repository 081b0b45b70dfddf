"""Two replicas behind a Service, while pods with parts of GPUs are bound through them and bindings fail: the
one that leads is killed twice and stopped once. What came of it is counted from the API alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from . import sharing
from .audit import runs
from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .faults import FaultyApi
from .service import Service
from .stowage import Stowage, applied
from .test_bind import check_the_books, configuration

OWN, HAMI, WAVE = 260, 160, 140
ELECTION = {"LEADER_ELECTION": "stowage-system/stowage", "LEASE_SECONDS": "5"}


@pytest.fixture
def replicas(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[list[Stowage]]:
    """Two that have the rights of deploy/ and know the cluster. A tenth of their bindings fail."""
    with ExitStack() as stack:
        stack.enter_context(applied(api, "behind-a-service.yaml"))
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        certificate = cluster.directory / "certificates" / "apiserver.crt"
        faulty = stack.enter_context(FaultyApi(cluster.server, str(certificate), share=0.1))
        kubeconfig = yaml.safe_load(stowage_kubeconfig.read_text())
        kubeconfig["clusters"][0]["cluster"] = {"server": faulty.url}
        file = cluster.directory / "replicas.kubeconfig"
        file.write_text(yaml.safe_dump(kubeconfig))
        yield [
            stack.enter_context(
                Stowage(cluster, file, name=name, awaits="/debug/nodes", BIND="true", **ELECTION)
            )
            for name in ("replica-a", "replica-b")
        ]


def test_the_leader_dies_twice_while_parts_of_gpus_are_bound(
    cluster: ControlPlane, api: Api, replicas: list[Stowage]
) -> None:
    api.create_all(sharing.nodes())
    waiting = sharing.pods(OWN, HAMI)
    with Service(replicas) as service:
        eventually(lambda: bool(service.leaders), within_s=60, what="a replica is ready")
        with sharing.GpuAudit(api) as audit, cluster.scheduler(configuration(service.url)):
            for wave, end in enumerate(["kill", "kill", "stop"]):
                api.create_all(waiting[wave * WAVE : (wave + 1) * WAVE])
                half_way = wave * WAVE + WAVE // 2
                bound = lambda goal=half_way: len(audit.bound) >= goal  # noqa: E731
                eventually(bound, within_s=120, what=f"{half_way} pods are bound")
                leader = service.leaders[-1]
                getattr(leader.process, end)()
                leader.process.start(within_s=180)  # as kubelet would
            eventually(audit.settled, within_s=240, what="every pod runs or waits", every_s=0.2)
        assert audit.findings == []
        pods = api.list("Pod")["items"]
        assert len(pods) == OWN + HAMI
        assert [one["metadata"]["name"] for one in pods if not runs(one)] == []  # there is room for all
        assert sharing.overcommitted(pods) == {}
        for replica in replicas:
            check_the_books(api, replica)
    assert len(service.leaders) >= 4
    assert service.rivals == 0
