"""Pods that take turns on a GPU and pods that share its SMs never share a GPU, whatever happens."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Container, Deleted, Node, Pod, PodSpec, Upserted
from packing.model.reasons import Reason
from tests.examples import some
from tests.extender.builders import why
from tests.extender.cluster.simulated_api import MIB, make_node
from tests.extender.verbs.binding import Api, Cluster

KEY = "nvidia.com/container.main."
MODES = ("time-slicing", "sm-sharing")


def fraction(name: str, mode: str, memory: str = "200Mi", **more: str) -> Pod:
    asks = {f"{KEY}gpu-memory.request": memory, f"{KEY}gpu-compute.mode": mode, **more}
    return Pod(
        "default", name, f"uid-{name}", PodSpec((Container("main", (("cpu", "1"),)),)), annotations=asks
    )


def own_share(name: str, compute: str = "200m", **more: str) -> Pod:
    return replace(fraction(name, ""), annotations={"stowage.dev/gpu-compute": compute, **more})


def replica(api: Api, nodes: list[Node]) -> Cluster:
    """A Stowage that has just listed everything, and has the driver enforce its own shares."""
    new = enforcing(*nodes, *api.pods.values())
    new.api = new.binder._source = api
    return new


def enforcing(*objects: Node | Pod) -> Cluster:
    new = Cluster()
    new.state.nodes.enforces_shares = True
    new.state.apply([Upserted(one) for one in objects])
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
                if rng.random() < 0.3:
                    pod = own_share(f"p{step}", rng.choice(["200m", "600m"]))
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


@pytest.mark.parametrize(
    ("annotations", "memory"),
    [
        ({"stowage.dev/gpu-compute": "500m"}, MIB // 2),
        ({"stowage.dev/gpu-compute": "500m", "stowage.dev/gpu-memory": "300Mi"}, 300),
        ({"stowage.dev/gpu-memory": "25%"}, MIB // 4),
    ],
)
async def test_own_shares_are_enforced_where_the_agents_are_ready(
    annotations: dict[str, str], memory: int
) -> None:
    pod = replace(own_share("p"), annotations=annotations)
    for ready, enforced in ((True, True), (True, False), (False, True)):
        node = make_node("n1")
        node = node if ready else replace(node, conditions=())
        cluster = enforcing(node, pod) if enforced else Cluster(node, pod)
        assert await cluster.bind(pod, "n1") == ""
        (_, written), *_ = cluster.api.sent
        if not (ready and enforced):
            assert not any(key.startswith("nvidia.com/") for key in written)
            continue
        amount = written[f"{KEY}gpu-memory.request"]
        assert amount == f"{memory}Mi"
        assert written[f"{KEY}gpu-compute.mode"] == "time-slicing"
        assert written[f"{KEY}gpus.devices"] in ("n1-0", "n1-1")
        before = request_of(pod).shares
        bound = replace(pod, node_name="n1", annotations={**annotations, **written})
        assert request_of(bound).shares == before
        cluster.state.apply([Upserted(bound)])
        assert not cluster.state.problems


def test_own_shares_beside_enforced_fractions_are_refused() -> None:
    pod = fraction("p", MODES[0], **{"stowage.dev/gpu-memory": "1Gi"})
    with pytest.raises(RequestError, match="mutually exclusive"):
        request_of(pod)
