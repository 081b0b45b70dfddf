"""Nodes get another MIG layout for pods that wait, on a real control plane."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .mig_manager import CONFIG, STATE, MigManager, mig_node
from .queue_cases import HOUR, create_classes, run, set_started
from .rush import GPU, SMALL
from .stowage import Stowage
from .test_evictor import evicting
from .workload import job, pod

CHANGE = "stowage.dev/mig-change"
NOTES = {"stowage.dev/restartable": "true", "stowage.dev/checkpoint-interval": "60s"}


@contextmanager
def changing(cluster: ControlPlane, kubeconfig: Path, **more: str) -> Iterator[Stowage]:
    """A Stowage that changes layouts, with the rights for that, and a kube-scheduler that uses it."""
    settings = {
        "LEASE_SECONDS": "3",
        "MIG_LAYOUTS": "on",
        "MIG_LAYOUT_SECONDS": "60",
        "CONSOLIDATION_AFTER_SECONDS": "5",
        "CONSOLIDATION_PRICE": "1000",  # so that seconds are enough
        "EVICTIONS_PER_MINUTE": "60",
    } | more
    rights = ["rbac-mig-layouts.yaml"]
    with evicting(cluster, kubeconfig, file="second-scheduler.yaml", rights=rights, **settings) as stowage:
        yield stowage


def test_a_node_turns_back_into_whole_gpus_for_a_pod_of_eight(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """168 instances, and one in use."""
    create_classes(api)
    api.create_all([mig_node(f"n{n}", "all-1g.10gb") for n in range(3)])
    run(api, pod("small", {SMALL: 1}), on="n0")
    with MigManager(api) as manager, changing(cluster, stowage_kubeconfig) as stowage:
        api.create(pod("large", {GPU: 8}))
        eventually(lambda: phase(api, "large") == "Running", within_s=120, what="large runs")
        time.sleep(15)  # nothing more changes
        assert stowage.metric('stowage_evictor_mig_layouts_total{result="done"}') == 1
    ((turned, layout),) = manager.applied
    assert (turned in ("n1", "n2"), layout) == (True, "all-disabled")
    assert api.get("Pod", "large")["spec"]["nodeName"] == turned
    assert is_calm(api)
    assert {(event["reason"]) for event in about_nodes(api)} >= {"MigLayoutBegun", "MigLayoutDone"}


def test_an_idle_node_is_divided_for_seven_small_pods(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    api.create_all([mig_node(f"n{n}", "all-disabled") for n in range(2)])
    run(api, pod("train", {GPU: 8}), on="n0")
    with MigManager(api) as manager, changing(cluster, stowage_kubeconfig):
        for n in range(7):
            api.create(pod(f"small-{n}", {SMALL: 1}))
        eventually(
            lambda: all(phase(api, f"small-{n}") == "Running" for n in range(7)),
            within_s=120,
            what="all small pods run",
        )
    assert manager.applied == [("n1", "all-1g.10gb")]
    assert is_calm(api)


def test_no_crash_of_the_leader_loses_a_pod_or_forgets_a_node(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """Ten crashes at random times, while two nodes turn back, from which pods of Jobs move."""
    create_classes(api)
    api.create_all([mig_node(f"n{n}", "all-1g.10gb") for n in range(4)])
    with MigManager(api) as manager, cluster.controller_manager(["job-controller"]):
        for n in range(4):
            start_job(api, f"job-{n}", f"n{n}")
        with changing(cluster, stowage_kubeconfig, MIG_LAYOUTS_PER_HOUR="20") as stowage:
            for n in range(2):
                api.create(job(f"large-{n}", pod(f"large-{n}", {GPU: 8})))
            at = random.Random(53)
            for _ in range(10):
                time.sleep(at.uniform(0.5, 8))
                stowage.process.restart()
            eventually(
                lambda: all(running(api, f"large-{n}") for n in range(2)), within_s=300, what="both large run"
            )
            eventually(
                lambda: all(running(api, f"job-{n}") for n in range(4)), within_s=120, what="all Jobs run"
            )
            eventually(lambda: is_calm(api), within_s=120, what="no change is half done")
    layouts = [one["metadata"]["labels"][CONFIG] for one in api.list("Node")["items"]]
    assert sorted(layouts) == ["all-1g.10gb"] * 2 + ["all-disabled"] * 2
    assert len(manager.applied) == 2


def test_a_manager_that_never_answers_is_told_to_go_back(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    api.create(mig_node("n0", "all-1g.10gb"))
    with (
        MigManager(api, silent=True),
        changing(cluster, stowage_kubeconfig, MIG_LAYOUT_SECONDS="15") as stowage,
    ):
        api.create(pod("large", {GPU: 8}))
        eventually(lambda: step_of(api, "n0") == "failed", within_s=120, what="the change has failed")
        assert api.get("Node", "n0")["metadata"]["labels"][CONFIG] == "all-1g.10gb"
        assert stowage.metric('stowage_evictor_mig_layouts_total{result="reverted"}') == 1
        problems = [found["text"] for found in stowage.json("/debug/problems")["problems"]]
        assert any("the MIG manager has not applied layout all-disabled" in text for text in problems)
        api.create(pod("small", {SMALL: 1}))
        eventually(lambda: phase(api, "small") == "Running", within_s=60, what="the node takes pods again")
    assert phase(api, "large") == "Pending"
    assert is_calm(api)


def test_a_node_that_somebody_cordons_meanwhile_is_theirs(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    api.create(mig_node("n0", "all-1g.10gb"))
    with MigManager(api) as manager, changing(cluster, stowage_kubeconfig) as stowage:
        api.create(pod("large", {GPU: 8}))
        eventually(lambda: step_of(api, "n0") == "drain", within_s=120, what="the node is marked")
        api.patch("Node", "n0", {"spec": {"unschedulable": True}})
        eventually(lambda: not step_of(api, "n0"), within_s=30, what="Stowage leaves the node alone")
        assert stowage.metric('stowage_evictor_mig_layouts_total{result="taken_over"}') == 1
        time.sleep(20)
        assert not step_of(api, "n0")
    assert manager.applied == []
    assert api.get("Node", "n0")["spec"]["unschedulable"]


def start_job(api: Api, name: str, home: str) -> None:
    """A Job of one pod with one instance, which runs on its node since an hour."""
    api.create(job(name, pod(name, {SMALL: 1}, annotations=NOTES)))
    eventually(lambda: bool(pods_of(api, name)), within_s=60, what=f"{name} has its pod")
    (one,) = pods_of(api, name)
    api.bind(one["metadata"]["name"], home)
    eventually(lambda: running(api, name), within_s=60, what=f"{name} runs")
    set_started(api, one["metadata"]["name"], ago_s=HOUR)


def pods_of(api: Api, name: str) -> list[Object]:
    found: list[Object] = api.list("Pod", labelSelector=f"job-name={name}")["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def running(api: Api, name: str) -> bool:
    return [one["status"].get("phase") for one in pods_of(api, name)] == ["Running"]


def phase(api: Api, name: str) -> str:
    return str(api.get("Pod", name)["status"]["phase"])


def step_of(api: Api, name: str) -> str:
    """How far the change of a node is, "" without one."""
    text = api.get("Node", name)["metadata"].get("annotations", {}).get(CHANGE)
    return str(json.loads(text)["step"]) if text else ""


def is_calm(api: Api) -> bool:
    """No change is under way, each node shows the layout of its label, and none is closed."""
    nodes = api.list("Node")["items"]
    return all(
        step_of(api, one["metadata"]["name"]) in ("", "done", "failed")
        and one["metadata"]["labels"][STATE] == "success"
        and not one["spec"].get("unschedulable")
        for one in nodes
    )


def about_nodes(api: Api) -> list[Object]:
    found: list[Object] = api.list("Event")["items"]
    return [event for event in found if event["involvedObject"]["kind"] == "Node"]
