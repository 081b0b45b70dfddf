"""Moving a cluster to Stowage and back: from kube-scheduler with NVIDIA's plugin alone, and from HAMi.

The chart is installed by helm while pods run, and removed again. What the other scheduler has placed is
counted, new pods go beside it, and the installation itself moves nothing that runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from . import sharing
from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .evidence import stays
from .hami_nodes import hami_node, uuid
from .installed import Containers, running
from .queue_cases import assigned, gpu_of, wait_until_running
from .rush import GPU, LABEL_SETS
from .stowage import applied, holders
from .tools import NAMESPACE, Tools
from .workload import node, pod

LABEL = "stowage.dev/scheduler"
DEFAULT = "default-scheduler"
SERVING = {"app": "serving"}
REPLICAS = 16
HAMI_NODES = ("hami-0", "hami-1")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plain = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
    }
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("migrate")))
        stack.enter_context(plane.controller_manager(["replicaset-controller"]))
        stack.enter_context(plane.scheduler(plain, DEFAULT))
        yield plane


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    yield plane.api
    plane.api.clean_up()


@pytest.fixture
def tools(plane: ControlPlane) -> Tools:
    return Tools(plane)


@contextmanager
def installed(plane: ControlPlane, tools: Tools, *values: str) -> Iterator[Containers]:
    """The chart, installed by helm. It is removed after the block."""
    tools.install("settings.debug_token_review=false", *values, wait=False)
    try:
        with running(plane, tools, "stowage-scheduler") as started:
            yield started
    finally:
        tools.helm("uninstall", "stowage", f"-n={NAMESPACE}")


def books(started: Containers) -> dict[str, dict[str, list[int]]]:
    """By node, the pods that Stowage counts there with the indices of their GPUs."""
    found = started.get("/debug/nodes").json()["nodes"]
    return {one["name"]: {holder["pod"]: holder["gpus"] for holder in one["holders"]} for one in found}


def are_right(api: Api, started: Containers) -> None:
    def agree() -> bool:
        return {name: set(pods) for name, pods in books(started).items()} == holders(api)

    eventually(agree, within_s=30, what="Stowage counts what the API server has")


def serving() -> Object:
    """A ReplicaSet whose pods name no scheduler."""
    template = pod("serving", {GPU: 1}, labels=SERVING)
    del template["spec"]["schedulerName"]
    template["metadata"] = {"labels": SERVING}
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": SERVING}, "template": template}
    named = {"name": "serving", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": named, "spec": spec}


def servers(api: Api) -> list[Object]:
    pods = [one for one in api.list("Pod")["items"] if one["metadata"].get("labels") == SERVING]
    return [one for one in pods if "deletionTimestamp" not in one["metadata"]]


def all_serve(api: Api) -> None:
    eventually(lambda: sum(map(runs, servers(api))) == REPLICAS, within_s=60, what="all replicas run")


def restart_one_after_the_other(api: Api) -> None:
    """As a rolling restart of a Deployment does."""
    for one in servers(api):
        api.delete("Pod", one["metadata"]["name"])
        all_serve(api)


def label(api: Api, value: str | None, former: str) -> None:
    """Labels the namespace, and waits until the policy has seen it."""
    new = serving()["spec"]["template"] | {"apiVersion": "v1", "kind": "Pod"}
    new["metadata"] |= {"name": "one", "namespace": "default"}
    api.patch("Namespace", "default", {"metadata": {"labels": {LABEL: value}}})

    def is_seen() -> bool:
        return bool(api.create(new, dryRun="All")["spec"]["schedulerName"] != former)

    eventually(is_seen, within_s=30, what="the policy is in force")


def used(api: Api) -> set[str]:
    return {one["spec"]["nodeName"] for one in servers(api)}


def test_from_plain_nvidia_and_back(plane: ControlPlane, api: Api, tools: Tools) -> None:
    api.create_all(node(f"n{number}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]) for number in range(4))
    api.create(serving())
    all_serve(api)
    before = {one["metadata"]["uid"] for one in servers(api)}
    assert len(used(api)) == 4
    with ExitStack() as stack:
        audit = stack.enter_context(Audit(api))
        started = stack.enter_context(installed(plane, tools))
        are_right(api, started)
        assert {one["metadata"]["uid"] for one in servers(api)} == before
        api.create(pod("train", {GPU: 8}))
        stays(api, "train", f"4 Insufficient {GPU}")
        api.create(pod("beside", {GPU: 3}))
        wait_until_running(api, "beside")
        with applied(api, "workloads/scheduler-name.yaml"):
            label(api, "stowage", DEFAULT)
            restart_one_after_the_other(api)
            label(api, None, "stowage")
        assert {one["spec"]["schedulerName"] for one in servers(api)} == {"stowage"}
        assert wait_until_running(api, "train") not in used(api)  # packing has emptied a node
        are_right(api, started)
        api.create(pod("late", {GPU: 8}))
        stays(api, "late", f"4 Insufficient {GPU}")
        assert audit.findings == []
    there = {one["metadata"]["uid"] for one in servers(api)}
    restarted = servers(api)[0]["metadata"]
    api.delete("Pod", restarted["name"])
    all_serve(api)
    assert {one["metadata"]["uid"] for one in servers(api)} & there == there - {restarted["uid"]}
    assert [one["spec"]["schedulerName"] for one in servers(api)].count(DEFAULT) == 1
    api.create(pod("small", {GPU: 1}, scheduler=DEFAULT))
    wait_until_running(api, "small")
    assert "nodeName" not in api.get("Pod", "late")["spec"]  # nobody places it now: create it again


def placed_by_hami(name: str, on: str, gpu: int) -> Object:
    """As HAMi's scheduler and device plugin leave a running pod."""
    one = sharing.hami_pod(name, 30, 30_720)
    one["spec"] |= {"schedulerName": "hami-scheduler", "nodeName": on}
    return assigned(one, on=on, gpu=gpu)


def counted(api: Api) -> dict[str, tuple[int, int]]:
    """By GPU, the cores and MiB that HAMi's scheduler sums up from the annotations of the running pods."""
    found: dict[str, tuple[int, int]] = {}
    for one in filter(runs, api.list("Pod")["items"]):
        milli, mib = sharing.asked(one)
        cores, held = found.get(gpu_of(one), (0, 0))
        found[gpu_of(one)] = (cores + milli // 10, held + mib)
    return found


def test_from_hami_and_back(plane: ControlPlane, api: Api, tools: Tools) -> None:
    old = {f"old-{node[-1]}-{gpu}": (node, gpu) for node in HAMI_NODES for gpu in (2, 3)}
    api.create_all(hami_node(name, 4, slots=10) for name in HAMI_NODES)
    for name, (on, gpu) in old.items():
        api.create(placed_by_hami(name, on, gpu))
        wait_until_running(api, name)
    with installed(plane, tools, "settings.bind=true") as started:
        are_right(api, started)
        for on in HAMI_NODES:
            mine = {f"default/{name}": [gpu] for name, (node, gpu) in old.items() if node == on}
            assert books(started)[on] == mine
        for number in range(24):
            api.create(sharing.hami_pod(f"new-{number:02}", 30, 20_480))
        room = 4 * 2 + 4 * 3  # two beside an old pod, three on each empty GPU
        ran = lambda: sum(map(runs, api.list("Pod")["items"])) == len(old) + room  # noqa: E731
        eventually(ran, within_s=120, what="the GPUs are full", every_s=0.3)
        waiting = [one["metadata"]["name"] for one in api.list("Pod")["items"] if not runs(one)]
        assert len(waiting) == 24 - room
        stays(api, waiting[0], "no single GPU has enough free compute and memory")
        are_right(api, started)
    held = counted(api)
    assert len(held) == 8
    assert {gpu for gpu, (cores, mib) in held.items() if cores > 100 or mib > sharing.MIB} == set()
    assert {gpu_of(api.get("Pod", name)) for name in old} == {uuid(on, gpu) for on, gpu in old.values()}


def test_leaving_hami_ends_with_its_register(plane: ControlPlane, api: Api, tools: Tools) -> None:
    """HAMi does not remove it. While it is there the node takes nothing: HAMi may still have pods on it."""
    api.create(hami_node("hami-0", 8, slots=10))
    with installed(plane, tools, "settings.bind=true"):
        amounts = {GPU: "8"}  # NVIDIA's plugin runs instead of HAMi's
        change = {"capacity": amounts, "allocatable": amounts}
        api.patch("Node", "hami-0", {"status": change}, subresource="status")
        api.patch("Node", "hami-0", {"metadata": {"labels": LABEL_SETS["h100-sxm-8-whole"]}})
        api.create(pod("train", {GPU: 8}))
        stays(api, "train", "GPU inventory of the node could not be read")
        api.patch("Node", "hami-0", {"metadata": {"annotations": {"hami.io/node-nvidia-register": None}}})
        assert wait_until_running(api, "train") == "hami-0"
