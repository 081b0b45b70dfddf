"""A third of the pods insist on half of the nodes: none of them waits because other pods filled those."""

import random

import pytest

from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .workload import node, pod

ZONE = "topology.kubernetes.io/zone"
NODES, GPUS = 24, 8
PODS = NODES * GPUS  # one GPU each: there is room for all of them


@pytest.fixture
def stowage(new_stowage: Stowage) -> Stowage:
    return new_stowage


def test_room_is_kept_for_those_who_insist_on_it(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """The first burst can come within the second before the first plan; then the next one must be right."""
    labels = LABEL_SETS["h100-sxm-8-whole"]
    for number in range(NODES):
        api.create(node(f"n{number}", {GPU: GPUS}, labels=labels | {ZONE: "ab"[number % 2]}))
    stowage.flush(api)
    if waiting_after_a_burst(cluster, api, stowage, "p"):
        for one in api.list("Pod")["items"]:
            api.delete("Pod", one["metadata"]["name"])
        eventually(lambda: not api.list("Pod")["items"], within_s=60, what="the pods are gone")
        stowage.flush(api)
        assert waiting_after_a_burst(cluster, api, stowage, "q") == []


def waiting_after_a_burst(cluster: ControlPlane, api: Api, stowage: Stowage, name: str) -> list[str]:
    """The pods that find no room, of as many as there is room for."""
    pods = [pod(f"{name}{number}", {GPU: 1}) for number in range(PODS)]
    for number, one in enumerate(pods):
        if number % 3 == 0:
            insist(one, by_selector=number % 2 == 0)
    random.Random(1).shuffle(pods)
    with Audit(api) as audit, cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create_all(pods)
        eventually(lambda: len(audit.pods) == PODS and audit.settled(), within_s=120, what="all run or wait")
    assert audit.findings == []
    return [one["metadata"]["name"] for one in api.list("Pod")["items"] if not runs(one)]


def insist(one: Object, *, by_selector: bool) -> None:
    """Let the pod run in zone a only."""
    if by_selector:
        one["spec"]["nodeSelector"] = {ZONE: "a"}
        return
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "c"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    one["spec"]["affinity"] = {"nodeAffinity": required}
