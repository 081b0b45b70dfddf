"""300 pending pods of high priority against 500 running ones of low priority: all of the former run in the
end, few of the latter are evicted, and none for nothing."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .contest import HIGH_PODS, Before, Evictions, high_pods, in_vain, prepare
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .service import Service
from .stowage import Stowage, applied, scheduler_configuration

AT_MOST = 1.05  # evictions, for each that an offline solver needs
FEW_NODES = 4  # of 80
HALF_WAY = HIGH_PODS // 2


def test_few_are_evicted(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    found = hold_contest(cluster, stowage.url, half_way=lambda: None)
    assert found.in_vain == found.hit_twice == []
    assert found.ratio <= AT_MOST


def test_one_of_two_replicas_is_killed_half_way(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """With the evictor on: `preempt` and the evictor look for victims for the same pods."""
    with (
        applied(api, "rbac-evictor.yaml"),
        evicting(cluster, stowage_kubeconfig, "stowage-1") as first,
        evicting(cluster, stowage_kubeconfig, "stowage-2") as second,
        Service([first, second]) as service,
    ):
        found = hold_contest(cluster, service.url, half_way=lambda: service.leaders[-1].process.restart())
    assert found.in_vain == found.hit_twice == []
    assert found.ratio <= AT_MOST


def test_the_only_replica_is_killed_half_way(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """Until it is back, kube-scheduler clears the nomination of each pod that it tries, and nobody knows any
    more which pod a freed GPU was for. Pods of high priority are tried first afterwards (`RetryOrder`), so
    almost all freed GPUs still go to them."""
    with (
        applied(api, "rbac-evictor.yaml"),
        evicting(cluster, stowage_kubeconfig, "stowage-1") as stowage,
    ):
        found = hold_contest(cluster, stowage.url, half_way=stowage.process.restart)
    assert found.hit_twice == []
    assert found.ratio <= AT_MOST
    assert len(found.in_vain) <= FEW_NODES


def evicting(cluster: ControlPlane, kubeconfig: Path, name: str) -> Stowage:
    settings = {
        "EVICTOR": "on",
        "EVICTOR_LEASE": "stowage-system/stowage-evictor",
        "EVICTIONS_PER_MINUTE": "6000",
        "SHIELD_CONFIGMAP": "stowage-system/stowage-shield",
    }
    return Stowage(cluster, kubeconfig, name=name, **settings)


@dataclass(frozen=True, slots=True)
class Found:
    """What a contest showed: evictions for each one that an offline solver needs, nodes that lost pods in
    vain, and jobs that lost more than one pod."""

    ratio: float
    in_vain: list[str]
    hit_twice: list[str]


def hold_contest(cluster: ControlPlane, url: str, *, half_way: Callable[[], None]) -> Found:
    api, draw = cluster.api, random.Random(1)
    with (
        cluster.controller_manager(["job-controller"]),
        cluster.scheduler(scheduler_configuration(url)),
    ):
        prepare(cluster, draw)
        time.sleep(1)  # Stowage sees the pods' ages
        before, pods = Before.now(api), high_pods(draw)
        with Evictions(api) as evictions:
            started = time.monotonic()
            api.create_all(pods)
            eventually(lambda: len(high(api)) >= HALF_WAY, within_s=180, what="half of them run", every_s=0.5)
            half_way()
            eventually(lambda: len(high(api)) == HIGH_PODS, within_s=300, what="all of them run", every_s=0.5)
            took = time.monotonic() - started
            time.sleep(2)  # nothing more is evicted
        after = api.list("Pod")["items"]
    many, fewest = len(evictions.victims), before.minimum(pods)
    twice = [name for name, times in evictions.jobs().items() if times > 1]
    found = Found(many / fewest, in_vain(before, evictions, after), twice)
    print(
        f"{len(pods)} pods run after {took:.1f} s; {many} evictions, {fewest} are the fewest: "
        f"{found.ratio:.3f}; in vain on {len(found.in_vain)} nodes; "
        f"{len(twice)} jobs lost two pods"
    )
    return found


def high(api: Api) -> list[Object]:
    """The pods of high priority that came and run."""
    return [
        one
        for one in api.list("Pod", fieldSelector="status.phase=Running")["items"]
        if one["metadata"]["name"].startswith("high-")
    ]
