"""Pods that take turns on a GPU and pods that share its SMs never share a GPU, whatever happens."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, Node, Pod, PodSpec, Upserted
from packing.model.reasons import Reason
from tests.examples import some
from tests.extender.builders import why
from tests.extender.cluster.simulated_api import make_node
from tests.extender.verbs.binding import Api, Cluster

KEY = "nvidia.com/container.main."
MODES = ("time-slicing", "sm-sharing")


def fraction(name: str, mode: str, memory: str = "200Mi", **more: str) -> Pod:
    asks = {f"{KEY}gpu-memory.request": memory, f"{KEY}gpu-compute.mode": mode, **more}
    return Pod(
        "default", name, f"uid-{name}", PodSpec((Container("main", (("cpu", "1"),)),)), annotations=asks
    )


def replica(api: Api, nodes: list[Node]) -> Cluster:
    """A Stowage that has just listed everything."""
    new = Cluster(*nodes, *api.pods.values())
    new.api = new.binder._source = api
    return new


def modes_by_gpu(api: Api) -> dict[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    for pod in api.pods.values():
        if pod.node_name:
            found[pod.annotations[f"{KEY}gpus.devices"]].add(pod.annotations[f"{KEY}gpu-compute.mode"])
    return found


@pytest.mark.parametrize("seed", some(range(100), 15))
async def test_no_gpu_gets_pods_of_both_modes(seed: int) -> None:
    """In every order of bindings, ends of pods, kills of the process, and calls of another replica."""
    rng, nodes, api = random.Random(seed), [make_node("n1"), make_node("n2")], Api()
    leading, standby = replica(api, nodes), replica(api, nodes)
    both = 0
    for step in range(30):
        match rng.choice(["bind", "bind", "bind", "end", "kill", "take over", "watch"]):
            case "bind":
                pod = fraction(f"p{step}", rng.choice(MODES), rng.choice(["200Mi", "600Mi"]))
                api.pods[pod.key] = pod
                leading.tell(pod.key)
                await leading.bind(pod, rng.choice(nodes).name)
            case "end" if api.pods:
                gone = api.pods.pop(rng.choice(sorted(api.pods)))
                leading.state.apply([Deleted("Pod", gone.key)])
                standby.state.apply([Deleted("Pod", gone.key)])
            case "kill":
                leading = replica(api, nodes)
            case "take over":  # its watch is behind, and it lists each node before it binds there
                leading, standby = standby, leading
                leading.tell(*(key for key, pod in api.pods.items() if not pod.node_name))
            case "watch":
                for one in (leading, standby):
                    one.state.apply([Upserted(pod) for pod in api.pods.values()])
        found = modes_by_gpu(api)
        assert all(len(modes) == 1 for modes in found.values()), found
        both += len(set().union(*found.values())) == 2
    assert both


def test_the_event_names_the_mode() -> None:
    node = make_node("n1")
    runs = fraction("runs", MODES[0], **{"gpu-fraction-num-devices": "2", f"{KEY}gpus.devices": "n1-0,n1-1"})
    cluster = Cluster(node, replace(runs, node_name="n1", phase="Running"))
    assert why(cluster.state, fraction("other", MODES[1]), "n1") is Reason.WRONG_MODE
    assert why(cluster.state, fraction("same", MODES[0]), "n1") is Reason.FITS
    cluster.state.apply([Deleted("Pod", runs.key)])
    assert why(cluster.state, fraction("other", MODES[1]), "n1") is Reason.FITS


def test_an_owner_who_changes_the_mode_of_a_running_pod_has_the_gpu_alone() -> None:
    runs = replace(
        fraction("runs", MODES[0], **{f"{KEY}gpus.devices": "n1-0"}), node_name="n1", phase="Running"
    )
    cluster = Cluster(make_node("n1"), runs)
    changed = {**runs.annotations, f"{KEY}gpu-compute.mode": MODES[1]}
    cluster.state.apply([Upserted(replace(runs, annotations=changed))])
    for mode in MODES:
        two = fraction(mode, mode, **{"gpu-fraction-num-devices": "2"})
        assert why(cluster.state, two, "n1") is Reason.WRONG_MODE
        assert why(cluster.state, fraction(mode, mode), "n1") is Reason.FITS  # on the other GPU


def test_a_gpu_that_is_unknown_counts_with_its_mode_on_every_gpu() -> None:
    runs = replace(
        fraction("runs", MODES[1], **{f"{KEY}gpus.devices": "all"}), node_name="n1", phase="Running"
    )
    cluster = Cluster(make_node("n1"), runs)
    assert why(cluster.state, fraction("other", MODES[0]), "n1") is Reason.WRONG_MODE
    assert cluster.state.problems.keys() == {runs.key}
