"""A gang keeps the members that it needs, or leaves as a whole."""

import time

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .queue_cases import (
    BACKFILL,
    BATCH,
    HOUR,
    INTERACTIVE,
    MINUTE,
    create_classes,
    present,
    run,
    wait_until_running,
)
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .test_waiting import why_unscheduled
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]


def members(gang: str, *, minimum: int) -> dict[str, Object]:
    """Four pods, by name. (A pod with the name of an evicted one would be shielded, as the one that replaces
    it: each test has its own names.)"""
    labels = {"stowage.dev/gang": gang, "stowage.dev/gang-min": str(minimum)}
    names = [f"{gang}-{number}" for number in range(4)]
    return {name: pod(name, {GPU: 1}, priority_class=BACKFILL, labels=labels) for name in names}


def test_it_keeps_its_minimum(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """Each member alone loses less than a pod of its own, but the last two together lose more."""
    create_classes(api)
    api.create(node("n1", {GPU: 6}, labels=H100))
    gang = members("keeps", minimum=2)
    for member in gang.values():
        run(api, member, on="n1", for_s=HOUR)
    for number in range(2):
        run(api, pod(f"single-{number}", {GPU: 1}, priority_class=BACKFILL), on="n1", for_s=90 * MINUTE)
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        for name, left in (("first", 3), ("second", 2), ("third", 2)):
            api.create(pod(name, {GPU: 1}, priority_class=INTERACTIVE))
            wait_until_running(api, name)
            stowage.flush(api)
            assert len(present(api) & gang.keys()) == left
    assert len(present(api) - gang.keys()) == 4  # of the pods of their own one has gone


def test_it_leaves_as_a_whole(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """All members are needed, and the other pods on the node may not be evicted yet."""
    create_classes(api)
    api.create(node("n1", {GPU: 6}, labels=H100))
    gang = members("leaves", minimum=4)
    for member in gang.values():
        run(api, member, on="n1", for_s=HOUR)
    for number in range(2):
        run(api, pod(f"young-{number}", {GPU: 1}, priority_class=BATCH), on="n1", for_s=MINUTE)
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("notebook", {GPU: 1}, priority_class=INTERACTIVE))
        wait_until_running(api, "notebook")
    assert present(api) == {"young-0", "young-1", "notebook"}


def test_no_part_of_it_goes_if_the_rest_is_elsewhere(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """kube-scheduler evicts on one node only, which would leave half a gang."""
    create_classes(api)
    for number in range(2):
        api.create(node(f"n{number}", {GPU: 2}, labels=H100))
    gang = members("split", minimum=4)
    for number, member in enumerate(gang.values()):
        run(api, member, on=f"n{number // 2}", for_s=HOUR)
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("notebook", {GPU: 1}, priority_class=INTERACTIVE))
        why_unscheduled(api, "notebook")
        time.sleep(2)
    assert present(api) == {*gang, "notebook"}
