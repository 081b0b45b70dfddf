"""300 pending pods of high priority against 500 running ones of low priority: all of the former run in the
end, few of the latter are evicted, and none for nothing."""

import random
import time
from collections.abc import Callable

from .contest import HIGH_PODS, Before, Evictions, high_pods, in_vain, prepare
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .stowage import Stowage, scheduler_configuration

AT_MOST = 1.05  # evictions, for each that an offline solver needs
HALF_WAY = HIGH_PODS // 2


def test_few_are_evicted(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    hold_contest(cluster, stowage, half_way=lambda: None)


def test_stowage_is_killed_half_way(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    hold_contest(cluster, stowage, half_way=stowage.process.restart)


def hold_contest(cluster: ControlPlane, stowage: Stowage, *, half_way: Callable[[], None]) -> None:
    api, draw = cluster.api, random.Random(1)
    with (
        cluster.controller_manager(["job-controller"]),
        cluster.scheduler(scheduler_configuration(stowage.url)),
    ):
        prepare(cluster, draw)
        stowage.flush(api)
        before, pods = Before.now(api), high_pods(draw)
        with Evictions(api) as evictions:
            started = time.monotonic()
            api.create_all(pods)
            eventually(lambda: len(high(api)) >= HALF_WAY, within_s=120, what="half of them run", every_s=0.5)
            half_way()
            eventually(lambda: len(high(api)) == HIGH_PODS, within_s=180, what="all of them run", every_s=0.5)
            took = time.monotonic() - started
            time.sleep(2)  # nothing more is evicted
        after = api.list("Pod")["items"]
    check(before, pods, evictions, after, took)


def check(before: Before, pods: list[Object], evictions: Evictions, after: list[Object], took: float) -> None:
    fewest = before.minimum(pods)
    many = len(evictions.victims)
    ratio = many / fewest
    print(f"{len(pods)} pods run after {took:.1f} s; {many} evictions, {fewest} are the fewest: {ratio:.3f}")
    assert in_vain(before, evictions, after) == []
    assert [name for name, times in evictions.jobs().items() if times > 1] == []
    assert ratio <= AT_MOST


def high(api: Api) -> list[Object]:
    """The pods of high priority that came and run."""
    return [
        one
        for one in api.list("Pod", fieldSelector="status.phase=Running")["items"]
        if one["metadata"]["name"].startswith("high-")
    ]
