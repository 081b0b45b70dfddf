"""Kueue admits by quota, Stowage places: a real Kueue, a real kube-scheduler, and Stowage with its evictor.

Skipped without a binary of Kueue, see `kueue.py`. Nobody is evicted for nothing, and no pod twice.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from . import kueue
from .background import PodWatch
from .controlplane.api import COLLECTIONS, NAMESPACE, Api, Object
from .controlplane.build import missing
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import (
    BACKFILL,
    BATCH,
    HOUR,
    INTERACTIVE,
    create_classes,
    present,
    run,
    wait_until_running,
)
from .runner import Runner
from .rush import GPU, LABEL_SETS
from .stowage import ROOT, Stowage, apply, scheduler_configuration
from .workload import job, node, pod, process_pod

pytestmark = pytest.mark.skipif(not kueue.PROGRAM, reason=kueue.MISSING)

QUEUE = "kueue.x-k8s.io/queue-name"
H100 = LABEL_SETS["h100-sxm-8-whole"]
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"]
GRACE_S = 8


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for this module: Kueue's webhooks and CRDs would be in the way of other tests."""
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    controllers = ["job-controller", "garbage-collector-controller"]
    with (
        ControlPlane(tmp_path_factory.mktemp("kueue")) as plane,
        plane.controller_manager(controllers),
        kueue.Kueue(plane),
    ):
        yield plane


@pytest.fixture(scope="module")
def stowage(control_plane: ControlPlane) -> Iterator[Stowage]:
    """A Stowage with its evictor, and a kube-scheduler that asks it."""
    for file in ("rbac.yaml", "rbac-evictor.yaml"):
        apply(control_plane.api, file)
    kubeconfig = control_plane.kubeconfig_for("stowage", control_plane.api.token("stowage"))
    settings = {
        "EVICTOR": "on",
        "EVICTOR_LEASE": "stowage-system/stowage-evictor",
        "EVICTOR_SCHEDULERS": '["stowage"]',
    }
    with ExitStack() as stack:
        stowage = stack.enter_context(Stowage(control_plane, kubeconfig, **settings))
        stack.enter_context(control_plane.scheduler(scheduler_configuration(stowage.url)))
        yield stowage


class Ends(PodWatch):
    """The UIDs of the pods that were told to leave before they had finished, by name."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, "ends")
        self.told: dict[str, set[str]] = {}

    def _take_list(self, pods: list[Object]) -> None:
        for one in pods:
            self._take("MODIFIED", one)

    def _take(self, kind: str, pod: Object) -> None:
        leaves = kind == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if leaves and pod["status"]["phase"] != "Succeeded":
            self.told.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])

    def jobs(self) -> dict[str, int]:
        """How many pods of each job were told to leave; a pod without a job counts under its name."""
        counts: dict[str, int] = {}
        for name, uids in self.told.items():
            owner = job_of(name)
            counts[owner] = counts.get(owner, 0) + len(uids)
        return counts


@pytest.fixture(autouse=True)
def emptied(api: Api) -> Iterator[None]:
    create_classes(api)
    kueue.create(api, "ResourceFlavor", "any", {})
    yield
    api.clean_up()
    kueue.clean_up(api)


@pytest.fixture
def ends(api: Api) -> Iterator[Ends]:
    with Ends(api) as ends:
        yield ends


def submit(
    api: Api, name: str, queue: str, one: Object | None = None, *, pods: int = 2, kueue_class: str = ""
) -> None:
    """A Job of pods with two GPUs each for a queue of Kueue. Names of jobs have no "-"."""
    one = one or pod(name, {GPU: 2}, priority_class=BATCH)
    made = job(name, one, pods=pods)
    labels = {QUEUE: queue} | ({"kueue.x-k8s.io/priority-class": kueue_class} if kueue_class else {})
    made["metadata"]["labels"] = labels
    made["spec"]["suspend"] = True
    api.create(made)


def stop(api: Api, name: str) -> None:
    """Deletes a Job with its pods, as kubectl does."""
    api.request("DELETE", f"{COLLECTIONS['Job']}/{name}", {"propagationPolicy": "Background"})


def job_of(pod_name: str) -> str:
    return pod_name.partition("-")[0]


def running(api: Api, name: str) -> dict[str, str]:
    """The nodes of the running pods of a job, by name."""
    return {
        one["metadata"]["name"]: one["spec"]["nodeName"]
        for one in api.list("Pod")["items"]
        if job_of(one["metadata"]["name"]) == name
        and one["status"]["phase"] == "Running"
        and "deletionTimestamp" not in one["metadata"]
    }


def wait_for_job(api: Api, name: str, *, pods: int = 2, within_s: float = 60) -> dict[str, str]:
    eventually(lambda: len(running(api, name)) == pods, within_s=within_s, what=f"{pods} pods of {name} run")
    return running(api, name)


def stays(condition: Callable[[], bool], *, for_s: float) -> bool:
    """Whether the condition holds all the time."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        if not condition():
            return False
        time.sleep(0.2)
    return True


def backfill(api: Api, name: str, *, on: str) -> None:
    """A pod without Kueue that everybody may evict, and that has run for an hour. Each test has its own
    names: a pod with the name of an evicted one would be shielded, as the one that replaces it."""
    run(api, pod(name, {GPU: 2}, priority_class=BACKFILL), on=on, for_s=HOUR)


def test_kueue_admits_and_stowage_places(api: Api, stowage: Stowage, ends: Ends) -> None:
    api.create(node("n1", {GPU: 8}, labels=H100))  # room for both jobs, quota for one
    kueue.queue(api, "team", 4)
    submit(api, "first", "team", pod("first", {GPU: 2}, runs_for="6s"))
    placed = wait_for_job(api, "first")
    for name in placed:
        verbs = {one["verb"] for one in stowage.json(f"/debug/pods/default/{name}")["decisions"]}
        assert "filter" in verbs
    submit(api, "second", "team")
    eventually(lambda: "second" in kueue.workloads(api), within_s=20, what="Kueue knows the second job")
    if running(api, "first"):
        assert not any(job_of(name) == "second" for name in present(api))
    wait_for_job(api, "second")
    assert "Finished" in kueue.workloads(api)["first"]
    assert ends.jobs() == {}


def test_borrowed_quota_is_reclaimed_and_nobody_else_leaves(
    api: Api, stowage: Stowage, ends: Ends, tmp_path: Path
) -> None:
    """The pods that Kueue stops need some seconds to end. Meanwhile kube-scheduler would evict others: those
    have a lower priority, and the stopped ones have not."""
    api.create(node("n1", {GPU: 8}, labels=H100))
    api.create(node("n2", {GPU: 4}, labels=H100))
    for number in range(2):
        backfill(api, f"innocent-{number}", on="n2")
    for name in ("lends", "borrows"):
        kueue.queue(api, name, 4, cohort="all", reclaimWithinCohort="Any")
    slow = process_pod("slow", {GPU: 2}, STUBBORN, grace_s=GRACE_S)
    slow["spec"] |= {"schedulerName": "stowage", "priorityClassName": BATCH}
    with Runner(api, tmp_path):
        submit(api, "own", "borrows")
        wait_for_job(api, "own")
        time.sleep(1.1)  # Kueue first stops what was admitted last, in whole seconds
        submit(api, "borrowed", "borrows", slow)
        assert set(wait_for_job(api, "borrowed").values()) == {"n1"}
        stowage.flush(api)
        submit(api, "owner", "lends")
        eventually(lambda: ends.jobs() == {"borrowed": 2}, within_s=30, what="Kueue stops the borrower")
        assert set(wait_for_job(api, "owner").values()) == {"n1"}
        assert stays(lambda: ends.jobs() == {"borrowed": 2}, for_s=5)
    assert "Evicted" in kueue.workloads(api)["borrowed"]
    assert len(running(api, "innocent")) == 2


def test_two_preemptions_at_once_do_not_fight(api: Api, stowage: Stowage, ends: Ends) -> None:
    """Kueue makes room in its queue, and kube-scheduler with Stowage on the node, for two pods each."""
    api.create(node("n1", {GPU: 8}, labels=H100))
    for number in range(2):
        backfill(api, f"spare-{number}", on="n1")
    for name, value in (("low", 10), ("high", 1000)):
        kueue.create(api, "WorkloadPriorityClass", name, {}, value=value)
    kueue.queue(api, "team", 4, withinClusterQueue="LowerPriority")
    submit(api, "low", "team", kueue_class="low")
    wait_for_job(api, "low")
    stowage.flush(api)
    urgent = pod("urgent", {GPU: 2}, priority_class=BATCH, runs_for="15s")
    submit(api, "urgent", "team", urgent, kueue_class="high")
    api.create(pod("notebook", {GPU: 2}, priority_class=INTERACTIVE))
    wait_until_running(api, "notebook")
    wait_for_job(api, "urgent")
    assert ends.jobs() == {"low": 2, "spare": 1}
    wait_for_job(api, "low")  # when the urgent one has finished
    assert stays(lambda: ends.jobs() == {"low": 2, "spare": 1}, for_s=5)
    assert len(running(api, "spare")) == 1


def test_pods_that_kueue_admitted_are_left_to_kueue(api: Api, stowage: Stowage, ends: Ends) -> None:
    api.create(node("n1", {GPU: 4}, labels=H100))
    kueue.queue(api, "team", 4)
    submit(api, "admitted", "team", pod("admitted", {GPU: 2}, priority_class=BACKFILL))
    wait_for_job(api, "admitted")
    stowage.flush(api)
    api.create(pod("notebook", {GPU: 2}, priority_class=INTERACTIVE))
    assert stays(lambda: ends.jobs() == {}, for_s=10)
    explained = stowage.json("/debug/pods/default/notebook")["now"]
    assert "Kueue manages it and evicts it itself" in str(explained["evictions"])
    api.create(node("n2", {GPU: 2}, labels=H100))
    assert wait_until_running(api, "notebook") == "n2"


def test_a_gated_pod_waits_for_kueue_and_not_for_room(api: Api, stowage: Stowage, ends: Ends) -> None:
    api.create(node("n1", {GPU: 4}, labels=H100))
    backfill(api, "idle-0", on="n1")
    kueue.queue(api, "team", 2)
    submit(api, "holds", "team", pods=1)
    wait_for_job(api, "holds", pods=1)
    plain = pod("plain", {GPU: 2}, priority_class=INTERACTIVE, labels={QUEUE: "team"})
    gates = api.create(plain)["spec"]["schedulingGates"]
    assert {"name": "kueue.x-k8s.io/admission"} in gates
    assert stays(lambda: ends.jobs() == {}, for_s=8)  # the evictor would have acted
    explained = stowage.json("/debug/pods/default/plain")["now"]
    assert "kueue.x-k8s.io/admission (Kueue has not admitted it" in explained["held"]
    assert explained["evictions"] is None
    stop(api, "holds")
    wait_until_running(api, "plain")
    assert ends.jobs() == {"holds": 1}


def test_a_pod_group_is_a_gang(api: Api, stowage: Stowage, ends: Ends) -> None:
    """Quota is no room: Kueue admits the group, which does not fit on the node as a whole."""
    api.create(node("n1", {GPU: 4}, labels=H100))
    kueue.queue(api, "team", 8)
    stowage.flush(api)
    labels = {QUEUE: "team", "kueue.x-k8s.io/pod-group-name": "group"}
    total = {"kueue.x-k8s.io/pod-group-total-count": "3"}
    for number in range(3):
        one = pod(f"member-{number}", {GPU: 2}, priority_class=BATCH, labels=labels, annotations=total)
        api.create(one)

    def refusals() -> list[str]:
        conditions = [one["status"].get("conditions", ()) for one in api.list("Pod")["items"]]
        return [c["message"] for one in conditions for c in one if c["type"] == "PodScheduled"]

    gang = "the pod's gang does not fit as a whole"
    eventually(lambda: sum(gang in text for text in refusals()) == 3, within_s=30, what="the gang is refused")
    assert running(api, "member") == {}
    explained = stowage.json("/debug/pods/default/member-0")["now"]
    assert "Kueue default/group of priority 10000: 0 of 3 members run, 3 required" in explained["gang"]
    api.create(node("n2", {GPU: 4}, labels=H100))
    wait_for_job(api, "member", pods=3)
    assert ends.jobs() == {}


def test_the_topology_that_kueue_assigns_is_respected(api: Api, stowage: Stowage, ends: Ends) -> None:
    """Two racks of two nodes. Kueue chooses one for the job, and names a node for each pod."""
    for rack, host in ((rack, host) for rack in "ab" for host in "01"):
        api.create(node(f"{rack}{host}", {GPU: 4}, labels=H100 | {"rack": rack, "pool": "tas"}))
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    kueue.create(api, "Topology", "racks", {"levels": levels})
    spec = {"nodeLabels": {"pool": "tas"}, "topologyName": "racks"}
    kueue.create(api, "ResourceFlavor", "tas", spec)
    kueue.queue(api, "team", 16, flavor="tas")
    stowage.flush(api)
    for name, pods in (("small", 1), ("wide", 4)):
        required = {"kueue.x-k8s.io/podset-required-topology": "rack"}
        submit(api, name, "team", pod(name, {GPU: 2}, annotations=required), pods=pods)
        wait_for_job(api, name, pods=pods)
    assert len({host[0] for host in running(api, "wide").values()}) == 1  # in one rack
    assigned = {
        one["metadata"]["name"]: one["spec"]["nodeSelector"]["kubernetes.io/hostname"]
        for one in api.list("Pod")["items"]
    }
    assert assigned == running(api, "small") | running(api, "wide")
    assert ends.jobs() == {}


@pytest.mark.parametrize("name", ["job", "pod-group", "topology"])
def test_the_examples(api: Api, stowage: Stowage, name: str) -> None:
    """Kueue's webhooks and CRDs accept them, and their pods run."""
    product = "NVIDIA-H100-80GB-HBM3"
    for number in range(2):
        labels = H100 | {"nvidia.com/gpu.product": product, "example.com/rack": "r1"}
        api.create(node(f"n{number}", {GPU: 8}, labels=labels))
    for file in ("kueue-queues.yaml", f"kueue-{name}.yaml"):
        for one in yaml.safe_load_all((ROOT / "deploy" / "examples" / file).read_text()):
            if one["kind"] in kueue.PLURALS:
                api.request("POST", f"{kueue.path(one['kind'])}?fieldValidation=Strict", one)
            else:
                one["metadata"]["namespace"] = NAMESPACE
                api.create(one, fieldValidation="Strict")
    wait_for_job(api, {"job": "train", "pod-group": "trainer", "topology": "wide"}[name])
