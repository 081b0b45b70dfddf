"""Everything that runs in a soak: the control plane, two replicas behind a Service, and kube-scheduler."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.certificates import Authority, Secret

from ..controlplane.api import Api
from ..controlplane.cluster import ControlPlane
from ..controlplane.process import Process, eventually
from ..dra_cases import classes
from ..queue_cases import create_classes
from ..service import Service
from ..stowage import apply
from ..tls import tls_configuration
from . import fleet
from .proxy import Proxy
from .replica import Keeper, Replica

CA = Authority("stowage-ca")
NAME = "stowage.stowage-system.svc"  # serverName in the shipped configuration
FLAGS = {"event_ttl": "2m", "etcd_compaction_interval": "1m", "v": 0}
"""Flags of kube-apiserver that keep the disk small."""


@dataclass
class Stack:
    """What faults act on."""

    plane: ControlPlane
    replicas: list[Replica]
    keepers: list[Keeper]
    service: Service[Replica]
    scheduler: Process
    server: Secret
    client: Secret
    control_plane_lock: threading.Lock

    @property
    def api(self) -> Api:
        return self.plane.api

    @property
    def leader(self) -> int:
        """The index of the replica that is or was ready last."""
        return self.replicas.index(self.service.leaders[-1])


@contextmanager
def running(plane: ControlPlane) -> Iterator[Stack]:
    """The whole stack, with the fleet of ``fleet.py`` and no pods."""
    api = plane.api
    for file in ("rbac.yaml", "behind-a-service.yaml", "rbac-bind.yaml", "rbac-evictor.yaml"):
        apply(api, file)
    kubeconfig = plane.kubeconfig_for("stowage", api.token("stowage"))
    create_classes(api)
    gpus = [one for one in classes() if one["metadata"]["name"] == "gpu.nvidia.com"]
    for one in gpus:
        one["spec"].pop("extendedResourceName")
    api.create_all([*fleet.nodes(), *gpus, *fleet.slices()])
    server, client = _secrets(plane.directory)
    with ExitStack() as stack:
        certificate = str(plane.directory / "certificates" / "apiserver.crt")
        proxies = [stack.enter_context(Proxy(plane.server, certificate)) for _ in range(2)]
        replicas = [
            Replica(plane, kubeconfig, server, CA, proxy, f"replica-{letter}")
            for letter, proxy in zip("ab", proxies, strict=True)
        ]
        keepers = [stack.enter_context(Keeper(replica)) for replica in replicas]
        service = stack.enter_context(Service(replicas, probe_s=0.5))
        stack.enter_context(plane.controller_manager(["resourceclaim-controller", "job-controller"]))
        eventually(lambda: bool(service.leaders), within_s=400, what="a replica is ready")
        url = service.url.replace("http:", "https:")
        scheduler = stack.enter_context(plane.scheduler(tls_configuration(url, client, "shared-gpus.yaml")))
        yield Stack(plane, replicas, keepers, service, scheduler, server, client, threading.Lock())


def _secrets(directory: Path) -> tuple[Secret, Secret]:
    """What Stowage mounts, and what kube-scheduler mounts."""
    server, client = Secret(directory / "server"), Secret(directory / "client")
    server.certify(CA.server(NAME), CA.pem)
    client.certify(CA.client("system:kube-scheduler"), CA.pem)
    return server, client
