"""Kueue evicts the Workloads that lose least, with `kueue_priority_boost` and Kueue's gate PriorityBoost: a
real Kueue, many ClusterQueues at once. Skipped without a binary of Kueue, see `kueue.py`.

No scheduler runs: the pods name their nodes, and the test is their kubelet, so that they have run for hours.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest

from . import kueue
from .background import WINDOW_S, InThread, PodWatch
from .controlplane.api import Api, Object
from .controlplane.build import missing
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import HOUR, MINUTE, ago
from .runner import RUNS
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, apply
from .workload import job, node, pod

pytestmark = pytest.mark.skipif(not kueue.PROGRAM, reason=kueue.MISSING)

BOOST = "kueue.x-k8s.io/priority-boost"
PRIORITY = "kueue.x-k8s.io/priority-class"
LOST = (MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 8 * HOUR, 30 * HOUR)
STARTED = "e2e.stowage.dev/started"
KILLED_IN_S = 1.0  # what kubelet takes at least


@dataclass(frozen=True)
class Situation:
    """A full ClusterQueue. Its Workloads have ``gpus`` each, and would lose ``lost`` seconds, in the order of
    their admission. A job of higher priority needs the GPUs of ``needs`` of them."""

    queue: str
    gpus: int
    lost: Sequence[int]
    needs: int
    by_checkpoint: bool

    @property
    def newest(self) -> set[str]:
        return {self.job(number) for number in range(len(self.lost) - self.needs, len(self.lost))}

    @property
    def cheapest(self) -> set[str]:
        chosen = min(
            combinations(range(len(self.lost)), self.needs),
            key=lambda numbers: sum(self.lost[number] for number in numbers),
        )
        return {self.job(number) for number in chosen}

    def job(self, number: int) -> str:
        return f"{self.queue}w{number}"

    def jobs(self) -> list[Object]:
        made = []
        for number, lost in enumerate(self.lost):
            notes = {STARTED: ago(lost)}
            if self.by_checkpoint:
                notes = {STARTED: ago(100 * HOUR), "stowage.dev/checkpointed-at": ago(lost)}
            made.append(self._job(self.job(number), self.gpus, "low", notes))
        return made

    def preemptor(self) -> Object:
        return self._job(f"{self.queue}urgent", self.gpus * self.needs, "high", {STARTED: ago(0)})

    def _job(self, name: str, gpus: int, priority: str, notes: dict[str, str]) -> Object:
        runs = pod(name, {GPU: gpus}, on=f"node-{self.queue}", annotations=notes, labels={RUNS: ""})
        runs["spec"]["terminationGracePeriodSeconds"] = 30
        made = job(name, runs)
        made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": self.queue, PRIORITY: priority}
        made["spec"]["suspend"] = True
        return made


def situations(count: int) -> list[Situation]:
    """In none of them the newest are the cheapest."""
    dice, made = random.Random(20), list[Situation]()
    while len(made) < count:
        size = dice.choice([3, 4])
        given = dice.sample(LOST, size), dice.randint(1, size - 1), dice.random() < 0.5
        new = Situation(f"q{len(made):02}", dice.choice([1, 2]), *given)
        if new.newest != new.cheapest:
            made.append(new)
    return made


class Kubelet(PodWatch):
    """Runs pods since the time in their annotation, and takes a second to kill one."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, "kubelet")
        self._known: set[tuple[str, bool]] = set()

    def _take_list(self, pods: list[Object]) -> None:
        for listed in pods:
            self._take("ADDED", listed)

    def _take(self, kind: str, pod: Object) -> None:
        metadata, name = pod["metadata"], pod["metadata"]["name"]
        step = metadata["uid"], "deletionTimestamp" in metadata
        if kind == "DELETED" or step in self._known:
            return
        self._known.add(step)
        if step[1]:
            threading.Timer(KILLED_IN_S, self._kill, [name]).start()
        else:
            status = {"phase": "Running", "startTime": metadata["annotations"][STARTED]}
            self._api.patch("Pod", name, {"status": status}, subresource="status")

    def _kill(self, name: str) -> None:
        self._api.patch("Pod", name, {"status": {"phase": "Failed"}}, subresource="status")
        self._api.delete("Pod", name)


class Queued(InThread):
    """The Workloads that were seen with a boost, and those that had one without a quota reservation."""

    def __init__(self, api: Api) -> None:
        super().__init__("queued")
        self._api = api
        self.boosted: set[str] = set()
        self.queued_with_boost: set[str] = set()

    def _run(self) -> None:
        version = self._api.list("Workload")["metadata"]["resourceVersion"]
        while not self._over.is_set():
            for kind, seen in self._api.watch("Workload", version, for_s=WINDOW_S):
                assert kind != "ERROR", seen
                version = seen["metadata"]["resourceVersion"]
                if BOOST in seen["metadata"].get("annotations", {}) and kind != "DELETED":
                    name = seen["metadata"]["ownerReferences"][0]["name"]
                    self.boosted.add(name)
                    if "QuotaReserved" not in true_conditions(seen):
                        self.queued_with_boost.add(name)


def true_conditions(workload: Object) -> set[str]:
    conditions = workload.get("status", {}).get("conditions", ())
    return {condition["type"] for condition in conditions if condition["status"] == "True"}


def boosts(api: Api) -> dict[str, int]:
    """The boosts of all Workloads, by the name of their job."""
    return {
        listed["metadata"]["ownerReferences"][0]["name"]: int(
            listed["metadata"].get("annotations", {}).get(BOOST, "0")
        )
        for listed in api.list("Workload")["items"]
    }


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    with (
        ControlPlane(tmp_path_factory.mktemp("kueue-boosts")) as plane,
        plane.controller_manager(["job-controller", "garbage-collector-controller"]),
    ):
        for file in ("rbac.yaml", "rbac-evictor.yaml", "rbac-kueue-boost.yaml"):
            apply(plane.api, file)
        yield plane


@pytest.fixture(scope="module")
def running_kueue(control_plane: ControlPlane) -> Iterator[kueue.Kueue]:
    with kueue.Kueue(control_plane) as running:
        yield running


def boosting(plane: ControlPlane) -> Stowage:
    kubeconfig = plane.kubeconfig_for("stowage", plane.api.token("stowage"))
    lease = "stowage-system/stowage-evictor"
    return Stowage(plane, kubeconfig, KUEUE_PRIORITY_BOOST="true", EVICTOR_LEASE=lease)


@pytest.mark.parametrize(("setting", "gate"), [(False, True), (True, False), (True, True)])
def test_the_cheapest_leave_only_with_the_setting_and_the_gate(
    control_plane: ControlPlane, running_kueue: kueue.Kueue, setting: bool, gate: bool
) -> None:
    api, tried = control_plane.api, situations(20)
    running_kueue.restart(PriorityBoost=gate)
    set_up(api, tried)
    try:
        with Kubelet(api):
            fill(api, tried)
            if setting:
                with boosting(control_plane), Queued(api) as queued:
                    order = {situation.queue: sorted(situation.lost) for situation in tried}
                    classes = {
                        situation.job(number): order[situation.queue].index(lost)
                        for situation in tried
                        for number, lost in enumerate(situation.lost)
                    }
                    eventually(lambda: boosts(api) == classes, within_s=60, what="all are boosted", every_s=1)
                    evicted = preempt(api, tried)
                assert queued.queued_with_boost == set()
                assert queued.boosted & evicted  # some of those that left had a boost
            else:
                evicted = preempt(api, tried)
    finally:
        clean_up(api)
    expected = [situation.cheapest if setting and gate else situation.newest for situation in tried]
    assert evicted == set().union(*expected)


def set_up(api: Api, tried: Sequence[Situation]) -> None:
    kueue.create(api, "ResourceFlavor", "any", {})
    for name, value in (("low", 10), ("high", 1000)):
        kueue.create(api, "WorkloadPriorityClass", name, {}, value=value)
    for situation in tried:
        api.create(node(f"node-{situation.queue}", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
        gpus = situation.gpus * len(situation.lost)
        kueue.queue(api, situation.queue, gpus, withinClusterQueue="LowerPriority")


def fill(api: Api, tried: Sequence[Situation]) -> None:
    """Admits the Workloads one after the other: Kueue compares whole seconds."""
    waves = [[jobs[n] for situation in tried if n < len(jobs := situation.jobs())] for n in range(4)]
    admitted = 0
    for wave in waves:
        api.create_all(wave)
        admitted += len(wave)
        eventually(lambda: count(api, "Admitted") == admitted, within_s=60, what="admitted", every_s=1)  # noqa: B023
        time.sleep(1.1)
    eventually(lambda: running(api) == admitted, within_s=60, what="all pods run", every_s=1)


def count(api: Api, condition: str) -> int:
    return sum(condition in true_conditions(listed) for listed in api.list("Workload")["items"])


def running(api: Api) -> int:
    return sum(listed["status"]["phase"] == "Running" for listed in api.list("Pod")["items"])


def preempt(api: Api, tried: Sequence[Situation]) -> set[str]:
    """The jobs that were evicted when all jobs of higher priority have started."""
    api.create_all(situation.preemptor() for situation in tried)
    urgent = {f"{situation.queue}urgent" for situation in tried}

    def have_started() -> bool:
        states = kueue.workloads(api)
        return all("Admitted" in states.get(name, ()) for name in urgent)

    eventually(have_started, within_s=90, what="the urgent jobs start", every_s=1)
    return {name for name, conditions in kueue.workloads(api).items() if "Evicted" in conditions}


def clean_up(api: Api) -> None:
    api.delete_all("Job")
    for listed in api.list("Pod")["items"]:
        metadata = {"metadata": {"finalizers": None}}
        api.patch("Pod", listed["metadata"]["name"], metadata)
        api.delete("Pod", listed["metadata"]["name"])
    kueue.clean_up(api)
    api.clean_up()
