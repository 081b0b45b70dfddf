"""Volcano's real scheduler asks Stowage: gangs, refusals, evictions, and what happens without an answer."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from . import volcano
from .audit import Audit, runs
from .controlplane.api import NAMESPACE, Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .runner import RUNS
from .rush import GPU, LABEL_SETS
from .stowage import Stowage
from .volcano import configuration, group, member, queue, scheduler
from .workload import node, pod, priority_class

pytestmark = pytest.mark.skipif(not volcano.PROGRAM, reason=volcano.MISSING)

H100 = LABEL_SETS["h100-sxm-8-whole"]
CHANGING = H100 | {"nvidia.com/mig.config.state": "pending"}


@pytest.fixture(scope="module", autouse=True)
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    with volcano.resources(control_plane.api):
        yield


@pytest.fixture(autouse=True)
def clean(api: Api) -> Iterator[None]:
    yield
    api.request("DELETE", volcano.GROUPS)


@pytest.fixture
def stowage(cluster: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Stowage]:
    with Stowage(cluster, stowage_kubeconfig, name="stowage-volcano", VOLCANO="true") as one:
        yield one


def answers(stowage: Stowage) -> dict[tuple[str, str], float]:
    """How often Stowage gave each answer, by verb and result, according to its own metrics."""
    found = {}
    for line in httpx.get(f"{stowage.url}/metrics", trust_env=False).text.splitlines():
        if line.startswith("stowage_verb_results_total{") and 'verb="volcano/' in line:
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            verb = labels["verb"].strip('"').removeprefix("volcano/")
            found[verb, labels["result"].strip('"')] = float(line.split()[-1])
    return {key: count for key, count in found.items() if count}


def placed(api: Api) -> dict[str, str]:
    """The nodes of the pods that run, by pod."""
    return {one["metadata"]["name"]: one["spec"]["nodeName"] for one in api.list("Pod")["items"] if runs(one)}


def terminating(api: Api) -> set[str]:
    return {
        one["metadata"]["name"]
        for one in api.list("Pod")["items"]
        if one["metadata"].get("deletionTimestamp")
    }


def runs_on(api: Api, name: str, *nodes: str) -> None:
    eventually(lambda: placed(api).get(name) in nodes, within_s=60, what=f"{name} runs on one of {nodes}")


def refused(api: Api, name: str, reason: str) -> None:
    """Waits until Volcano says this of the pod, which has no node."""

    def said() -> bool:
        one = api.get("Pod", name)
        assert "nodeName" not in one["spec"]
        return any(reason in entry.get("message", "") for entry in one["status"].get("conditions", ()))

    eventually(said, within_s=60, what=f"Volcano says of {name}: {reason}")


def test_gangs_are_placed_as_a_whole_where_stowage_says(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """The second gang has room for one member, so none is bound, and the room stays free for others."""
    api.create_all(node(name, {GPU: 8}, labels=H100) for name in ("a", "b", "c"))
    api.create(pod("started", {GPU: 4}, on="b"))
    stowage.flush(api)
    with Audit(api) as audit, scheduler(cluster, configuration(stowage.url)):
        group(api, "packed", 1)
        api.create(member("packed", "packed", {GPU: 4}))
        runs_on(api, "packed", "b")  # fills the node, and leaves two whole ones; nodeorder would spread
        group(api, "first", 3)
        api.create_all(member(f"first-{n}", "first", {GPU: 4}) for n in range(3))
        eventually(lambda: len(placed(api)) == 5, within_s=60, what="the first gang runs")
        group(api, "second", 2)
        api.create_all(member(f"second-{n}", "second", {GPU: 4}) for n in range(2))
        for name in ("second-0", "second-1"):
            refused(api, name, "")
        group(api, "small", 1)
        api.create(member("small", "small", {GPU: 4}))
        eventually(lambda: "small" in placed(api), within_s=60, what="the room of the second gang is free")
        api.delete("Pod", "first-0")
        api.delete("Pod", "first-1")
        eventually(lambda: len(placed(api)) == 6, within_s=60, what="the second gang runs")
    assert {name for name in placed(api) if name.startswith("second")} == {"second-0", "second-1"}
    assert not audit.findings
    given = answers(stowage)
    assert given["predicate", "fits"] >= 7
    assert given["prioritize", "scored"] >= 1
    assert given["allocate", "allocated"] >= 7
    assert given["deallocate", "deallocated"] >= 1
    assert given["onSessionClose", "done"] >= 1
    assert not {result for _, result in given} & {"bad_message", "internal_error", "too_large", "not_ready"}


@pytest.mark.parametrize("with_stowage", [False, True], ids=["alone", "stowage"])
def test_a_node_whose_mig_layout_changes(
    cluster: ControlPlane, api: Api, stowage: Stowage, with_stowage: bool
) -> None:
    """Alone, Volcano binds a pod to GPUs that are about to vanish."""
    api.create(node("changing", {GPU: 8}, labels=CHANGING))
    stowage.flush(api)
    with scheduler(cluster, configuration(stowage.url if with_stowage else None)):
        group(api, "train", 1)
        api.create(member("train", "train", {GPU: 1}))
        if with_stowage:
            refused(api, "train", "MIG reconfiguration in progress")
            api.patch(
                "Node", "changing", {"metadata": {"labels": {"nvidia.com/mig.config.state": "success"}}}
            )
        runs_on(api, "train", "changing")


@pytest.mark.parametrize("with_stowage", [False, True], ids=["alone", "stowage"])
def test_a_share_that_no_single_gpu_has_free(
    cluster: ControlPlane, api: Api, stowage: Stowage, with_stowage: bool
) -> None:
    """Two GPUs with 6 of 16 GiB free each are no room for 10 GiB. Alone, Volcano sees 12 GiB."""
    memory = "aliyun.com/gpu-mem"
    api.create(node("shared", {memory: 32, "aliyun.com/gpu-count": 2}))
    for gpu in range(2):
        given = {"ALIYUN_COM_GPU_MEM_IDX": str(gpu), "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
        given |= {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_POD": "10"}
        api.create(pod(f"tenant-{gpu}", {memory: 10}, on="shared", annotations=given))
    stowage.flush(api)
    with scheduler(cluster, configuration(stowage.url if with_stowage else None)):
        group(api, "large", 1)
        api.create(member("large", "large", {memory: 10}))
        if with_stowage:
            refused(api, "large", "no single GPU has enough free compute and memory")
        else:
            runs_on(api, "large", "shared")


@pytest.mark.parametrize("with_stowage", [False, True], ids=["alone", "stowage"])
def test_stowage_decides_who_is_preempted(
    cluster: ControlPlane, api: Api, stowage: Stowage, with_stowage: bool
) -> None:
    """Alone, Volcano evicts the pod of lowest priority. It is new, and its queue lets it run ten minutes."""
    api.create(node("a", {GPU: 8}, labels=H100))
    api.create_all([priority_class("urgent", 1000), priority_class("later", 10), priority_class("lowest", 1)])
    for name, labels in (("later", {}), ("lowest", {"stowage.dev/queue": "batch"})):
        group(api, name, 1, priority_class=name)
        api.create(member(name, name, {GPU: 4}, on="a", priority_class=name, labels=labels))
    eventually(lambda: len(placed(api)) == 2, within_s=30, what="both run")
    stowage.flush(api)
    with Audit(api) as audit, scheduler(cluster, configuration(stowage.url if with_stowage else None)):
        group(api, "urgent", 1, priority_class="urgent")
        api.create(
            member(
                "urgent",
                "urgent",
                {GPU: 4},
                priority_class="urgent",
                labels={"stowage.dev/queue": "interactive"},
            )
        )
        runs_on(api, "urgent", "a")
    assert set(placed(api)) == {"urgent", "lowest" if with_stowage else "later"}
    assert not audit.findings
    if with_stowage:
        assert answers(stowage)["preemptable", "victims"] >= 1
        assert answers(stowage)["deallocate", "deallocated"] >= 1


def test_a_gang_preempts_and_waits_until_all_its_victims_have_left(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """Victims that take their time: nobody is bound before they have left, and nobody else is evicted."""
    api.create_all(node(name, {GPU: 8}, labels=H100) for name in ("a", "b"))
    api.create_all([priority_class("urgent", 1000), priority_class("later", 10)])
    for name, on in (("first", "a"), ("second", "a"), ("third", "b"), ("fourth", "b")):
        group(api, name, 1)
        slow = member(name, name, {GPU: 4}, on=on, labels={RUNS: ""})  # kwok leaves it alone
        slow["spec"]["terminationGracePeriodSeconds"] = 3600
        api.create(slow)
        api.patch("Pod", name, {"status": {"phase": "Running"}}, subresource="status")
    eventually(lambda: len(placed(api)) == 4, within_s=30, what="all run")
    stowage.flush(api)
    with Audit(api) as audit, scheduler(cluster, configuration(stowage.url)):
        group(api, "urgent", 2, priority_class="urgent")
        api.create_all(member(f"urgent-{n}", "urgent", {GPU: 4}, priority_class="urgent") for n in range(2))
        eventually(lambda: len(terminating(api)) == 2, within_s=60, what="two pods are evicted")
        before = answers(stowage)["onSessionClose", "done"]
        eventually(
            lambda: answers(stowage)["onSessionClose", "done"] >= before + 10,
            within_s=60,
            what="Volcano has looked at it ten times more",
        )
        assert len(terminating(api)) == 2
        assert not {"urgent-0", "urgent-1"} & set(placed(api))
        for name in terminating(api):
            api.delete("Pod", name)
        eventually(lambda: {"urgent-0", "urgent-1"} <= set(placed(api)), within_s=60, what="the gang runs")
    assert len(placed(api)) == 4
    assert not terminating(api)
    assert not audit.findings


def test_a_queue_gets_its_share_back(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    api.create(node("a", {GPU: 8}, labels=H100))
    api.create(priority_class("higher", 100))
    for name in ("ours", "theirs"):
        queue(api, name)
    with Audit(api) as audit, scheduler(cluster, configuration(stowage.url)):
        group(api, "theirs", 1, queue="theirs")  # Volcano reclaims no pod that its gang needs
        api.create_all(member(f"theirs-{number}", "theirs", {GPU: 4}) for number in range(2))
        eventually(lambda: len(placed(api)) == 2, within_s=60, what="their pods run")
        stowage.flush(api)
        group(api, "ours", 1, queue="ours", priority_class="higher")
        api.create(member("ours", "ours", {GPU: 4}, priority_class="higher"))
        runs_on(api, "ours", "a")
    assert len(placed(api)) == 2
    assert not audit.findings
    assert answers(stowage)["reclaimable", "victims"] >= 1


@pytest.mark.parametrize("ignorable", [False, True], ids=["needed", "ignorable"])
def test_without_an_answer(cluster: ControlPlane, api: Api, stowage: Stowage, ignorable: bool) -> None:
    api.create(node("a", {GPU: 8}, labels=H100))
    stowage.flush(api)
    stowage.process.kill()
    with scheduler(cluster, configuration(stowage.url, ignorable=ignorable)):
        group(api, "train", 1)
        api.create(member("train", "train", {GPU: 1}))
        if ignorable:
            runs_on(api, "train", "a")
            return
        refused(api, "train", "connection refused")
        stowage.process.start(within_s=100)
        runs_on(api, "train", "a")


def test_managed_resources_and_a_session_with_the_whole_cluster(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """Both are left out of the shipped configuration; docs/volcano.md says what they do."""
    api.create(node("a", {GPU: 8}, labels=CHANGING))
    stowage.flush(api)
    changes: dict[str, object] = {"managedResources": [GPU], "onSessionOpenVerb": "onSessionOpen"}
    with scheduler(cluster, configuration(stowage.url, **changes)):
        for name, resources in (("gpu", {GPU: 1}), ("cpu", {})):
            group(api, name, 1)
            api.create(member(name, name, resources))
        runs_on(api, "cpu", "a")
        refused(api, "gpu", "MIG reconfiguration in progress")
        assert answers(stowage)["onSessionOpen", "done"] >= 1
        stowage.process.kill()
        group(api, "more", 1)
        api.create(member("more", "more", {}))
        runs_on(api, "more", "a")  # not by a call that fails: there is none
        eventually(
            lambda: placed(api).get("gpu") == "a",
            within_s=60,
            what="the session goes on without the extender, as docs/volcano.md says",
        )


def test_a_session_that_is_killed(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """Volcano dies while it places a gang. What it held does not keep its next process from placing all."""
    api.create_all(node(f"n{number}", {GPU: 8}, labels=H100) for number in range(8))
    stowage.flush(api)
    with Audit(api) as audit, scheduler(cluster, configuration(stowage.url)) as running:
        group(api, "gang", 32)
        api.create_all(member(f"gang-{n}", "gang", {GPU: 2}) for n in range(32))
        eventually(
            lambda: answers(stowage).get(("allocate", "allocated"), 0) >= 8,
            within_s=60,
            what="Volcano is allocating",
            every_s=0.005,
        )
        running.restart()
        eventually(lambda: len(placed(api)) == 32, within_s=120, what="the gang runs")
    assert not audit.findings
    assert api.list("Pod")["items"][0]["metadata"]["namespace"] == NAMESPACE
