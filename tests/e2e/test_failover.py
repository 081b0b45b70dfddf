"""Two pods, each with a kube-scheduler and a Stowage, as in deploy/beside-kube-scheduler.yaml. The Stowage
that takes over must know what the other one has bound."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from . import sharing
from .binding import are_bound, binding, check_the_books, check_the_end, configuration, faulty_api
from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually
from .faults import FaultyApi
from .stowage import Stowage, applied

OWN, HAMI, SOME = 330, 150, 80
# Shorter than the defaults of 15, 10 and 2 seconds, in the same proportions.
ELECTION = {"leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "800ms"}


@dataclass
class Pod:
    """The two containers, and the API server that Stowage uses."""

    scheduler: Process
    stowage: Stowage
    api: FaultyApi

    def is_told_to_stop(self) -> None:
        """kube-scheduler releases its Lease at once, while Stowage may have bindings in flight."""
        self.scheduler.stop()
        self.stowage.process.stop()

    def is_lost(self) -> None:
        """Both containers die, as with their node."""
        self.scheduler.kill()
        self.stowage.process.kill()

    def comes_back(self) -> None:
        self.stowage.process.start(within_s=180)
        self.scheduler.start()


@pytest.fixture
def two_pods(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[list[Pod]]:
    """Two pods, of which the first has the leading scheduler."""
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        stack.callback(api.delete, "Lease", "stowage-scheduler")

        def start(name: str) -> Pod:
            faulty = stack.enter_context(faulty_api(cluster))
            stowage = stack.enter_context(
                binding(cluster, stowage_kubeconfig, faulty, f"stowage-{name}", DRAIN_SECONDS="0")
            )
            scheduler = cluster.scheduler(configuration(stowage.url, **ELECTION), f"kube-scheduler-{name}")
            return Pod(stack.enter_context(scheduler), stowage, faulty)

        first = start("a")
        eventually(lambda: is_led(api), within_s=30, what="the first scheduler leads")
        yield [first, start("b")]


def is_led(api: Api) -> bool:
    return any(one["metadata"]["name"] == "stowage-scheduler" for one in api.list("Lease")["items"])


def test_the_next_scheduler_has_a_stowage_that_binds_on_top(
    cluster: ControlPlane, api: Api, two_pods: list[Pod]
) -> None:
    """Each take-over happens while the next Stowage's watch is late, so it has not seen the last bindings."""
    api.create_all(sharing.nodes())
    leader, other = two_pods
    waiting = iter(sharing.pods(OWN, HAMI))
    with sharing.GpuAudit(api) as audit:
        for end in (Pod.is_told_to_stop, Pod.is_lost):
            before = len(audit.bound)
            api.create_all(islice(waiting, SOME))
            are_bound(lambda: len(audit.bound), before + SOME // 4)
            with other.api.late():
                api.create_all(islice(waiting, SOME))
                are_bound(lambda: len(audit.bound), before + SOME + SOME // 2)
                end(leader)
                api.create_all(islice(waiting, SOME))
                are_bound(other.api.bindings.total, other.api.bindings.total() + SOME // 2)
            leader.comes_back()
            leader, other = other, leader
        eventually(audit.settled, within_s=120, what="every pod runs", every_s=0.2)
    assert check_the_end(api, audit, OWN + HAMI) == []  # there is room for all
    for pod in two_pods:
        check_the_books(api, pod.stowage)
