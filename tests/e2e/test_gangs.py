"""A gang leaves as a whole, starts once its gates are lifted, and waits for no gang that cannot start."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from .controlplane.api import Api, Object
from .controlplane.build import release
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
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
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]


def members(gang: str, *, minimum: int) -> dict[str, Object]:
    """Four pods, by name. (A pod with the name of an evicted one would be shielded, as the one that replaces
    it: each test has its own names.)"""
    labels = {"stowage.dev/gang": gang, "stowage.dev/gang-min": str(minimum)}
    names = [f"{gang}-{number}" for number in range(4)]
    return {name: pod(name, {GPU: 1}, priority_class=BACKFILL, labels=labels) for name in names}


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


@pytest.mark.skipif(release() < "1.32", reason="the gate SchedulerQueueingHints is off in 1.31")
def test_gates_that_are_lifted_one_by_one_delay_nobody(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """As Kueue does for a group of pods. The first ones are refused while the others are gated; nothing ends
    that would wake them. They require one rack, and only one has room for all."""
    create_classes(api)
    for number in range(5):
        rack = {"example.com/rack": "whole" if 1 <= number <= 2 else f"half-{number}"}
        api.create(node(f"n{number}", {GPU: 2}, labels=H100 | rack))
    gang = members("gated", minimum=4)
    for member in gang.values():
        member["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}
        member["spec"]["schedulingGates"] = [{"name": "example.com/admission"}]
        api.create(member)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        stowage.flush(api)
        for name in gang:
            api.patch("Pod", name, {"spec": {"schedulingGates": None}})
            time.sleep(0.5)
        for name in gang:
            wait_until_running(api, name, within_s=10)
    assert {api.get("Pod", name)["spec"]["nodeName"] for name in gang} == {"n1", "n2"}


def test_a_gang_does_not_wait_for_gangs_that_cannot_start(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """Another namespace creates four gangs a second, each with a new name. The second member of each names a
    scheduler that does not exist. There is room for all."""
    create_classes(api)
    api.create_all(node(f"n{number}", {GPU: 8}, labels=H100) for number in range(24))
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        stowage.flush(api)
        usual = seconds_to_start(api, "usual", BATCH)
        with half_gangs(api, BATCH):
            urgent = [seconds_to_start(api, f"urgent-{number}", INTERACTIVE) for number in range(4)]
            equal = [seconds_to_start(api, f"equal-{number}", BATCH) for number in range(4)]
    assert max(urgent) < usual + 5, (usual, urgent, equal)
    assert max(equal) < usual + 15, (usual, urgent, equal)


def seconds_to_start(api: Api, gang: str, priority_class: str) -> float:
    """From the creation of the gang's first pod until all run, at most 60."""
    pods, started = members(gang, minimum=4), time.monotonic()
    for member in pods.values():
        member["spec"]["priorityClassName"] = priority_class
        api.create(member)
    for name in pods:
        wait_until_running(api, name)
    return time.monotonic() - started


@contextmanager
def half_gangs(api: Api, priority_class: str) -> Iterator[None]:
    """Creates them in a namespace of their own, and deletes them after a while."""
    namespace, ends = "half-gangs", threading.Event()
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    created: list[str] = []

    def delete(left: int) -> None:
        while len(created) > left:
            api.delete("Pod", created.pop(0), namespace)

    def create() -> None:
        for number in count():
            labels = {"stowage.dev/gang": f"half-{number}", "stowage.dev/gang-min": "2"}
            for name, scheduler in ((f"first-{number}", "stowage"), (f"second-{number}", "nobody")):
                half = pod(name, {GPU: 1}, scheduler=scheduler, priority_class=priority_class, labels=labels)
                half["metadata"]["namespace"] = namespace
                api.create(half)
                created.append(name)
            delete(80)
            if ends.wait(0.25):
                return

    thread = threading.Thread(target=create)
    thread.start()
    try:
        eventually(lambda: len(created) >= 60, within_s=60, what="gangs are created")
        yield
        assert thread.is_alive()
    finally:
        ends.set()
        thread.join()
        delete(0)
