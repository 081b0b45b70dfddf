"""Two shards: a kube-scheduler and a Stowage each, with nodes of their own, as the chart configures them.

docs/growth.md says the same in words.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy import render

from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually
from .evidence import message, stays
from .queue_cases import wait_until_running
from .rush import GPU, LABEL_SETS
from .stowage import ROOT, Stowage
from .workload import node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]
LABEL = "stowage.dev/shard"
NODES = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


@dataclass
class Shard:
    name: str
    stowage: Stowage
    scheduler: Process

    @property
    def scheduler_name(self) -> str:
        return f"stowage-{self.name}"

    def nodes(self) -> set[str]:
        """The nodes in its books."""
        return {one["name"] for one in self.stowage.json("/debug/nodes")["nodes"]}

    def records(self, kind: str) -> set[str]:
        """The names of all objects of a kind that it keeps."""
        lines = map(json.loads, self.stowage.text("/debug/state").splitlines())
        return {line["record"]["name"] for line in lines if line["kind"] == kind}


def of_the_chart(name: str) -> tuple[dict[str, str], Object]:
    """The settings of Stowage that the example values of this shard give, as environment variables without
    their prefix, and the configuration of its kube-scheduler."""
    values = ROOT / "deploy" / "examples" / "shards" / f"{name}.yaml"
    maps = {
        one["metadata"]["name"]: one["data"]
        for one in render.template(f"--values={values}")
        if one["kind"] == "ConfigMap"
    }
    settings = yaml.safe_load(maps["stowage-scheduler-settings"]["settings.yaml"])
    settings.pop("debug_token_review")  # the tests read /debug without a token
    configuration: Object = yaml.safe_load(maps["stowage-scheduler"]["config.yaml"])
    return {key.upper(): json.dumps(value) for key, value in settings.items()}, configuration


@contextmanager
def shard(cluster: ControlPlane, kubeconfig: Path, name: str) -> Iterator[Shard]:
    settings, configuration = of_the_chart(name)
    with Stowage(cluster, kubeconfig, name=f"stowage-{name}", **settings) as stowage:
        configuration["leaderElection"] = {"leaderElect": False}
        configuration["extenders"][0]["urlPrefix"] = f"{stowage.url}/scheduler"
        configuration["podMaxBackoffSeconds"] = 2
        with cluster.scheduler(configuration, f"kube-scheduler-{name}") as scheduler:
            yield Shard(name, stowage, scheduler)


@pytest.fixture
def shards(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[tuple[Shard, Shard]]:
    for name, nodes in NODES.items():
        api.create_all(node(one, {GPU: 8}, labels=H100 | {LABEL: name}) for one in nodes)
    with shard(cluster, stowage_kubeconfig, "a") as a, shard(cluster, stowage_kubeconfig, "b") as b:
        yield a, b


def pods_of(owner: Shard, count: int, start: int = 0, gpus: int = 1) -> list[Object]:
    numbers = range(start, start + count)
    return [pod(f"{owner.name}-{n:02}", {GPU: gpus}, scheduler=owner.scheduler_name) for n in numbers]


def placed(api: Api) -> dict[str, set[str]]:
    """The nodes that run pods, by schedulerName."""
    found: dict[str, set[str]] = {}
    for one in api.list("Pod")["items"]:
        if runs(one):
            found.setdefault(one["spec"]["schedulerName"], set()).add(one["spec"]["nodeName"])
    return found


def running(api: Api, owner: Shard) -> int:
    """How many pods of this shard run."""
    pods = api.list("Pod")["items"]
    return sum(runs(one) and one["spec"]["schedulerName"] == owner.scheduler_name for one in pods)


def test_pods_of_both_are_placed_on_the_nodes_of_their_shard_only(
    api: Api, shards: tuple[Shard, Shard]
) -> None:
    """30 pods each on 24 GPUs each: none crosses the border, though there is no room on its own side."""
    a, b = shards
    with Audit(api) as audit:
        api.create_all(one for pair in zip(pods_of(a, 30), pods_of(b, 20), strict=False) for one in pair)
        api.create_all(pods_of(a, 10, start=20))
        eventually(
            lambda: running(api, a) == 24 and running(api, b) == 20, within_s=90, what="both are placed"
        )
    assert audit.findings == []
    assert placed(api) == {"stowage-a": set(NODES["a"]), "stowage-b": set(NODES["b"])}


def test_neither_holds_what_belongs_to_the_other(api: Api, shards: tuple[Shard, Shard]) -> None:
    a, b = shards
    api.create_all([*pods_of(a, 4), *pods_of(b, 5)])
    api.create(pod("too-large", {GPU: 16}, scheduler=a.scheduler_name))
    eventually(lambda: (running(api, a), running(api, b)) == (4, 5), within_s=60, what="all run")
    eventually(lambda: len(a.records("Pod") | b.records("Pod")) == 10, within_s=30, what="both know theirs")
    assert a.records("Pod") == {"a-00", "a-01", "a-02", "a-03", "too-large"}
    assert b.records("Pod") == {f"b-{number:02}" for number in range(5)}
    assert (a.stowage.metric("stowage_pods"), b.stowage.metric("stowage_pods")) == (5, 5)
    assert a.records("Node") == set(NODES["a"])
    assert b.records("Node") == set(NODES["b"])


def test_a_node_outside_of_the_shard_is_refused_with_that_reason(
    api: Api, cluster: ControlPlane, shards: tuple[Shard, Shard]
) -> None:
    """A kube-scheduler without the affinity of the shard offers all nodes."""
    a, _ = shards
    _, configuration = of_the_chart("a")
    configuration["leaderElection"] = {"leaderElect": False}
    configuration["extenders"][0]["urlPrefix"] = f"{a.stowage.url}/scheduler"
    profile = configuration["profiles"][0]
    profile["schedulerName"] = "no-affinity"
    profile["pluginConfig"] = [one for one in profile["pluginConfig"] if one["name"] != "NodeAffinity"]
    for name in NODES["a"]:
        api.create(pod(f"fills-{name}", {GPU: 8}, scheduler="default-scheduler", on=name))
        wait_until_running(api, f"fills-{name}")
    eventually(
        lambda: all(a.stowage.holders()[name] for name in NODES["a"]), within_s=30, what="a knows its pods"
    )
    with cluster.scheduler(configuration, "no-affinity"):
        api.create(pod("waits", {GPU: 1}, scheduler="no-affinity"))
        stays(api, "waits", "3 node is not in the shard of this Stowage")


def test_a_node_that_changes_sides_is_never_over_committed(api: Api, shards: tuple[Shard, Shard]) -> None:
    """a2 goes to b with a pod on it that goes on running, while another of a's pods is being placed. Nobody
    gets a GPU twice, and what is free there goes to b, which is full, and not to a, which is full, too."""
    a, b = shards
    with Audit(api) as audit:
        api.create(pod("old", {GPU: 5}, scheduler=a.scheduler_name, on="a2"))
        api.create_all([*pods_of(a, 2, gpus=8), *pods_of(b, 24)])
        eventually(lambda: (running(api, a), running(api, b)) == (3, 24), within_s=60, what="both are full")
        api.create_all(pods_of(a, 1, start=10))
        api.patch("Node", "a2", {"metadata": {"labels": {LABEL: b.name}}})
        eventually(lambda: "a2" not in a.nodes(), within_s=10, what="a has let it go")
        api.create_all([*pods_of(b, 4, start=24), *pods_of(a, 10, start=20)])
        eventually(lambda: "a2" in b.nodes(), within_s=60, what="it joins b")
        assert b.stowage.holders()["a2"] >= {"default/old"}
        free = 8 - sum(gpus(one) for one in on(api, "a2") if not one["metadata"]["name"].startswith("b-"))
        assert free in (2, 3)
        eventually(lambda: running(api, b) == 24 + free, within_s=90, what="b uses what is free")
        eventually(audit.settled, within_s=60, what="all pods run or wait")
    assert audit.findings == []
    assert sum(name.startswith("b-") for name in names(on(api, "a2"))) == free
    assert sum(map(gpus, on(api, "a2"))) == 8
    assert b.records("Pod") >= names(on(api, "a2"))


def on(api: Api, name: str) -> list[Object]:
    """The pods of a node."""
    return [one for one in api.list("Pod")["items"] if one["spec"].get("nodeName") == name]


def names(pods: list[Object]) -> set[str]:
    return {one["metadata"]["name"] for one in pods}


def gpus(one: Object) -> int:
    return int(one["spec"]["containers"][0]["resources"]["limits"][GPU])


def test_the_death_of_one_does_not_harm_the_other(api: Api, shards: tuple[Shard, Shard]) -> None:
    """The pods of the dead one wait, and are placed when it is back."""
    a, b = shards
    a.stowage.process.kill()
    api.create_all([*pods_of(a, 4), *pods_of(b, 8)])
    eventually(lambda: running(api, b) == 8, within_s=60, what="b goes on")
    eventually(
        lambda: "connection refused" in message(api, "a-00"), within_s=60, what="a-00 says why it waits"
    )
    assert running(api, a) == 0
    a.stowage.process.start(within_s=120)
    eventually(lambda: running(api, a) == 4, within_s=90, what="a is back")
    assert placed(api)["stowage-a"] <= set(NODES["a"])
