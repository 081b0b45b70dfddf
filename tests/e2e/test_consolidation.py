"""Small Jobs move elsewhere so that large ones start, on a real control plane."""

import time
from collections import Counter
from pathlib import Path

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import HOUR, create_classes, observed_budgets, set_started
from .runner import Runner
from .rush import GPU, LABEL_SETS
from .test_evictor import evicting
from .test_spot import checkpoints, create_example, resumed
from .workload import budget, job, node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]
NOTES = {"stowage.dev/restartable": "true", "stowage.dev/checkpoint-interval": "60s"}
GANG = {"stowage.dev/gang": "team", "stowage.dev/gang-min": "2"}
SETTINGS = {
    "CONSOLIDATION": "on",
    "CONSOLIDATION_AFTER_SECONDS": "5",
    "CONSOLIDATION_PRICE": "1000",  # so that seconds are enough
    "EVICTIONS_PER_MINUTE": "60",
}
RUNS = {
    "a0": ("n00", 2), "a1": ("n00", 2), "train": ("n00", 1),
    "team": ("n01", 2), "b2": ("n01", 1),
    "c0": ("n02", 2), "c1": ("n02", 2), "c2": ("n02", 1),
    **{f"m{n}": (f"n{n:02}", 6) for n in range(3, 17)},
    **{f"m{n}": (f"n{n:02}", 7) for n in range(17, 20)},
}  # fmt: skip
"""Job: its node, and the GPUs of its pod; "team" has two pods, "train" runs as a process. 3 GPUs are free on
each of three nodes, 2 on 14, and 1 on three: 40."""


def test_two_large_jobs_start_where_their_gpus_were_free_in_pieces(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, tmp_path: Path
) -> None:
    """Three nodes hold pods that have another place. A budget protects those of one. The fewest moves are the
    three pods of each of the others, among them a gang, which moves as a whole, and a job with a volume,
    which goes on from its last checkpoint."""
    create_classes(api)
    api.create_all([node(f"n{n:02}", {GPU: 8}, labels=H100) for n in range(20)])
    api.create(budget("protects", {"app": "kept"}, min_available=3))
    with (
        Runner(api, tmp_path),
        cluster.controller_manager(["job-controller", "disruption-controller"]),
    ):
        create_example(api, tmp_path)
        for name, (home, gpus) in RUNS.items():
            start_job(api, name, home, gpus)
        eventually(lambda: checkpoints(tmp_path) > 0, within_s=60, what="a checkpoint")
        eventually(lambda: "protects" in observed_budgets(api), within_s=60, what="the budget is observed")
        with evicting(cluster, stowage_kubeconfig, **SETTINGS) as stowage:
            stowage.flush(api)
            for name in ("large-0", "large-1"):
                api.create(job(name, pod(name, {GPU: 8})))
            eventually(
                lambda: all(len(nodes_of(api, name)) == size(name) for name in (*RUNS, "large-0", "large-1")),
                within_s=120,
                what="all jobs run",
            )
            eventually(
                lambda: stowage.metric('stowage_evictor_moves_total{result="placed"}') == 6,
                within_s=30,
                what="all replacements are seen",
            )
            api.create(job("late", pod("late", {GPU: 8})))  # 24 GPUs are free, and nobody may move
            time.sleep(20)
            assert stowage.metric('stowage_evictor_moves_total{result="moved"}') == 6
            assert stowage.metric('stowage_evictor_moves_total{result="not_placed"}') == 0
    assert {*nodes_of(api, "large-0"), *nodes_of(api, "large-1")} == {"n00", "n01"}
    assert not nodes_of(api, "late")
    assert len(resumed(tmp_path)) == 1
    moved = {"a0", "a1", "train", "team", "b2"}
    for name, (home, _) in RUNS.items():
        assert (home in nodes_of(api, name)) == (name not in moved)
    assert max(used(api).values()) <= 8
    said = [one["involvedObject"]["name"] for one in api.list("Event")["items"] if one["reason"] == "Moved"]
    assert len(said) == len(set(said)) == 6  # nobody twice


def test_a_node_is_emptied_before_anybody_waits(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    api.create_all([node(f"n{n}", {GPU: 8}, labels=H100) for n in range(3)])
    homes = {"a": ("n0", 2), "b": ("n1", 3), "c": ("n1", 3), "d": ("n2", 4), "e": ("n2", 2), "f": ("n2", 1)}
    with cluster.controller_manager(["job-controller"]):
        for name, (home, gpus) in homes.items():
            start_job(api, name, home, gpus)
        with evicting(cluster, stowage_kubeconfig, CONSOLIDATION_BACKGROUND="on") as stowage:
            eventually(lambda: nodes_of(api, "a") == ["n1"], within_s=60, what="a has moved")
            time.sleep(20)  # it stays there
            assert stowage.metric('stowage_evictor_moves_total{result="moved"}') == 1
            assert stowage.metric('stowage_evictor_moves_total{result="placed"}') == 1
    assert [nodes_of(api, name) for name in homes] == [["n1"], ["n1"], ["n1"], ["n2"], ["n2"], ["n2"]]


def size(name: str) -> int:
    return 2 if name == "team" else 1


def start_job(api: Api, name: str, home: str, gpus: int) -> None:
    """The Job runs on its node since an hour. The example exists already."""
    labels = GANG if name == "team" else {"app": "kept"} if name.startswith("c") else None
    if name != "train":
        api.create(job(name, pod(name, {GPU: gpus}, annotations=NOTES, labels=labels), pods=size(name)))
    eventually(lambda: len(pods_of(api, name)) == size(name), within_s=60, what=f"{name} has its pods")
    for one in pods_of(api, name):
        api.bind(one["metadata"]["name"], home)
    eventually(lambda: len(nodes_of(api, name)) == size(name), within_s=60, what=f"{name} runs")
    for one in pods_of(api, name):
        set_started(api, one["metadata"]["name"], ago_s=HOUR)


def pods_of(api: Api, name: str) -> list[Object]:
    found: list[Object] = api.list("Pod", labelSelector=f"job-name={name}")["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def nodes_of(api: Api, name: str) -> list[str]:
    """Where the pods of a Job run."""
    return [one["spec"]["nodeName"] for one in pods_of(api, name) if one["status"].get("phase") == "Running"]


def used(api: Api) -> Counter[str]:
    """GPUs of running pods by node."""
    gpus: Counter[str] = Counter()
    for one in api.list("Pod")["items"]:
        if one["status"].get("phase") == "Running":
            amount = one["spec"]["containers"][0]["resources"]["limits"][GPU]
            gpus[one["spec"]["nodeName"]] += int(amount)
    return gpus
