"""Where kubelet would refuse a pod: the table of NodeResourceTopologyMatch, and what goes beyond it.

``REFERENCE`` has a row for each situation in ``filter_test.go`` of kubernetes-sigs/scheduler-plugins
(``pkg/noderesourcetopology``, at 903da7df), with other machines and other numbers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.node_topology import NodeTopology, NodeTopologyManifest
from extender.k8s.objects import Deleted, Listed, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import evaluate
from packing.model.reasons import Reason
from tests.extender.builders import NOW, make_node, make_state, why

CONTAINER, POD = "SingleNUMANodeContainerLevel", "SingleNUMANodePodLevel"


def report(name: str, policy: str, *numa: str, version: str = "1", **more: Any) -> NodeTopology:
    """The NodeResourceTopology of a node. A NUMA node is "cpu=4/20 nic=3/8": what is free, and in all."""
    zones = []
    for number, amounts in enumerate(numa):
        parts = re.findall(r"(\S+)=(\w+)/(\w+)", amounts)
        resources = [{"name": one, "available": free, "capacity": total} for one, free, total in parts]
        zones.append({"name": f"node-{number}", "type": "Node", "resources": resources})
    metadata = {"name": name, "resourceVersion": version}
    manifest = {"metadata": metadata, "topologyPolicies": [policy], "zones": zones} | more
    return NodeTopologyManifest.from_value(manifest).record()


def pod_of(text: str, name: str = "p", node: str = "", started: str = "", **status: str) -> Pod:
    """A pod: "init containers | containers", separated by semicolons. "~": without limits of CPU and memory;
    "always": a sidecar."""
    *inits, containers = text.split("|")

    def container(amounts: str) -> dict[str, Any]:
        asked = dict(re.findall(r"(\S+)=(\w+)", amounts))
        limits = {key: n for key, n in asked.items() if "~" not in amounts or key not in ("cpu", "memory")}
        always = {"restartPolicy": "Always"} if "always" in amounts else {}
        return {"name": "c", "resources": {"requests": asked, "limits": limits}} | always

    spec = {
        "initContainers": [container(one) for one in "".join(inits).split(";") if one.strip()],
        "containers": [container(one) for one in containers.split(";")],
        "nodeName": node,
    }
    if started:
        status["startTime"] = started
    metadata = {"name": name, "uid": f"uid-{name}"}
    return PodManifest.from_value({"metadata": metadata, "spec": spec, "status": status}).record()


def state_of(*reports: NodeTopology) -> State:
    """Nodes on which everything fits but for what these reports say."""
    nodes = [make_node(one.name, cpu="999", memory="9Ti") for one in reports]
    state = make_state(*nodes)
    state.pods.now = lambda: NOW
    state.apply([*map(Upserted, reports)])
    return state


def refused(state: State, pod: Pod, node: str) -> bool:
    """``filter`` is asked about pods that want GPUs only, so what wants none is asked about with one."""
    request = request_of(pod)
    reason = why(state, pod, node, request if request.wants_gpu else request_of(pod_of(f"{GPU}=1")))
    assert reason in (Reason.FITS, Reason.MISALIGNED)
    return reason is Reason.MISALIGNED


SMALL = "cpu=3/24 memory=6Gi/16Gi nic=6/12", "cpu=5/24 memory=6Gi/16Gi nic=3/12"
MACHINES = {
    "roomy": report(
        "roomy", CONTAINER, "cpu=6/24 memory=12Gi/12Gi nic=9/24", "cpu=10/36 memory=12Gi/12Gi nic=9/24"
    ),
    "pages": report("pages", CONTAINER, *[f"{one} hugepages-2Mi=256Mi/256Mi" for one in SMALL]),
    "whole": report("whole", POD, *SMALL),
    # The number of the second NUMA node is too large.
    "odd": report("odd", POD, *([SMALL[0]] + 69 * [""] + [SMALL[1]])),
    "large": report(
        "large",
        CONTAINER,
        "cpu=44/48 memory=90Gi/96Gi hugepages-2Mi=512Mi/512Mi nic=12/12",
        "cpu=48/48 memory=96Gi/96Gi hugepages-2Mi=768Mi/768Mi nic=24/24",
    ),
    "large-pods": report(
        "large-pods",
        POD,
        "cpu=44/48 memory=90Gi/96Gi hugepages-2Mi=512Mi/512Mi nic=12/12",
        "cpu=48/48 memory=96Gi/96Gi hugepages-2Mi=768Mi/768Mi nic=24/24",
    ),
}
REFERENCE = [
    # devices that no NUMA node has
    ("roomy", "cpu=3 memory=3Gi dongle=1 nic=4", True),
    ("roomy", "cpu=3 memory=3Gi dongle=1", True),
    ("roomy", "~ dongle=1 nic=9", True),
    ("roomy", "~ cpu=6 dongle=1 nic=4", True),
    ("pages", "cpu=3 memory=3Gi hugepages-2Mi=128Mi dongle=4", True),
    ("pages", "cpu=3 memory=3Gi ephemeral-storage=200Mi", True),
    # best effort
    ("roomy", "", True),
    ("whole", "nic=6", True),
    ("whole", "nic=19", False),
    ("pages", "nic=6", True),
    ("roomy", "nic=19", False),
    # burstable
    ("pages", "~ cpu=4 memory=4Gi nic=7", False),
    ("whole", "~ cpu=2 memory=2Gi nic=7", False),
    ("whole", "~ cpu=2 memory=2Gi nic=6", True),
    ("whole", "~ cpu=22 memory=7Gi nic=6", True),
    ("pages", "~ cpu=4 memory=4Gi nic=6", True),
    ("pages", "~ cpu=7 memory=7Gi nic=6", True),
    ("pages", "~ cpu=5 nic=4", True),
    ("pages", "~ cpu=5 nic=8", False),
    ("whole", "~ cpu=3 nic=7", False),
    ("whole", "~ cpu=3 nic=6", True),
    ("whole", "~ cpu=23 nic=6", True),
    ("pages", "~ cpu=3 nic=6", True),
    ("pages", "~ cpu=6 nic=6", True),
    ("pages", "~ memory=3Gi nic=8", False),
    ("whole", "~ memory=3Gi nic=7", False),
    ("whole", "~ memory=3Gi nic=6", True),
    ("whole", "~ memory=9Gi nic=6", True),
    ("pages", "~ memory=6Gi nic=6", True),
    ("pages", "~ memory=9Gi nic=6", True),
    ("pages", "~ cpu=5 memory=6Gi nic=8", False),
    ("whole", "~ cpu=3 memory=3Gi nic=7", False),
    ("whole", "~ cpu=3 memory=3Gi nic=6", True),
    ("whole", "~ cpu=23 memory=9Gi nic=6", True),
    ("pages", "~ cpu=5 memory=6Gi nic=6", True),
    ("pages", "~ cpu=7 memory=8Gi nic=6", True),
    # guaranteed
    ("roomy", "cpu=3 memory=3Gi", True),
    ("roomy", "cpu=10 memory=12Gi", True),
    ("roomy", "cpu=3 memory=3Gi hugepages-2Mi=0 nic=4", True),
    ("roomy", "cpu=3 memory=3Gi other=0", True),
    ("roomy", "cpu=11 memory=2Gi nic=4", False),
    ("pages", "cpu=3 memory=3Gi nic=3", True),
    ("pages", "cpu=3 memory=3Gi hugepages-2Mi=128Mi nic=3", True),
    ("pages", "cpu=3 memory=3Gi hugepages-2Mi=300Mi nic=3", False),
    ("whole", "cpu=4 memory=2Gi other=0; cpu=4 memory=2Gi; cpu=4 memory=2Gi", False),
    ("whole", "cpu=2 memory=2Gi", True),
    ("whole", "cpu=1 memory=2Gi other=0; cpu=1 memory=2Gi; cpu=2 memory=2Gi", True),
    ("odd", "cpu=3 memory=6Gi", True),
    ("odd", "cpu=1 memory=2Gi; cpu=1 memory=2Gi; cpu=2 memory=1Gi", False),
    # several containers, the pod as a whole
    ("large-pods", "cpu=3 memory=3Gi; cpu=6 memory=9Gi; cpu=39 memory=48Gi hugepages-2Mi=768Mi nic=20", True),
    ("large-pods", "cpu=3 memory=3Gi; cpu=9 memory=9Gi; cpu=39 memory=39Gi hugepages-2Mi=80Mi nic=20", False),
    ("large-pods", "cpu=3 memory=6Gi; cpu=6 memory=24Gi; cpu=39 memory=78Gi nic=20", False),
    ("large-pods", "cpu=3 memory=3Gi; cpu=6 memory=9Gi; cpu=39 memory=48Gi hugepages-2Mi=5Gi nic=20", False),
    ("large-pods", "cpu=3 memory=3Gi; cpu=6 memory=9Gi; cpu=39 memory=39Gi nic=30", False),
    # several containers, each for itself
    ("large", "cpu=3 memory=6Gi", True),
    ("large", "cpu=60 memory=6Gi", False),
    ("large", "cpu=3 memory=150Gi", False),
    ("large", "cpu=60 memory=150Gi", False),
    ("large", "cpu=30 memory=60Gi; cpu=30 memory=60Gi", True),
    ("large", "cpu=3 memory=9Gi hugepages-2Mi=700Mi nic=20; cpu=3 memory=9Gi hugepages-2Mi=80Mi nic=9", True),
    # init containers
    ("large", "cpu=60 memory=60Gi | cpu=2 memory=6Gi; cpu=2 memory=6Gi", False),
    ("large", "cpu=6 memory=105Gi | cpu=2 memory=6Gi; cpu=2 memory=6Gi", False),
    ("large", "cpu=6 memory=15Gi | cpu=30 memory=60Gi; cpu=30 memory=60Gi", True),
    (
        "large",
        "cpu=6 memory=15Gi; cpu=6 memory=15Gi; cpu=6 memory=15Gi"
        "| cpu=30 memory=60Gi; cpu=30 memory=60Gi; cpu=9 memory=15Gi",
        True,
    ),
    (
        "large",
        "cpu=44 memory=15Gi; cpu=44 memory=15Gi | cpu=30 memory=60Gi; cpu=30 memory=60Gi; cpu=30 memory=9Gi",
        False,
    ),
    ("large", "cpu=44 memory=15Gi; cpu=44 memory=15Gi | cpu=50 memory=60Gi", False),
    ("large", "cpu=44 memory=15Gi; cpu=44 memory=15Gi | cpu=30 memory=60Gi; cpu=30 memory=60Gi", True),
    (
        "large",
        "cpu=44 memory=15Gi; cpu=44 memory=15Gi; cpu=44 memory=15Gi"
        "| cpu=30 memory=60Gi; cpu=30 memory=60Gi; cpu=3 memory=9Gi",
        True,
    ),
    (
        "large",
        "cpu=4 memory=75Gi; cpu=4 memory=75Gi; cpu=4 memory=75Gi"
        "| cpu=30 memory=60Gi; cpu=30 memory=60Gi; cpu=3 memory=9Gi",
        True,
    ),
    (
        "large",
        "cpu=60 memory=75Gi; cpu=4 memory=75Gi; cpu=4 memory=75Gi | cpu=30 memory=60Gi; cpu=3 memory=9Gi",
        False,
    ),
    (
        "large",
        "cpu=30 memory=75Gi; cpu=60 memory=75Gi; cpu=4 memory=75Gi | cpu=30 memory=60Gi; cpu=3 memory=9Gi",
        False,
    ),
]


@pytest.mark.parametrize(("machine", "pod", "fits"), REFERENCE)
def test_the_answers_are_those_of_the_reference(machine: str, pod: str, fits: bool) -> None:
    assert refused(state_of(MACHINES[machine]), pod_of(pod), machine) is not fits


GPU = "nvidia.com/gpu"
HALVES = f"cpu=32/32 memory=256Gi/256Gi {GPU}=4/4"
SOCKETS = HALVES, HALVES
SPLIT = f"cpu=32/32 memory=256Gi/256Gi {GPU}=2/4"
HALF_A_NODE = f"cpu=8 memory=64Gi {GPU}=4"
SINGLE = "SingleNUMANodePodLevel"


def judges(policy: str, scope: str = "pod") -> dict[str, Any]:
    attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    return {"attributes": [{"name": name, "value": value} for name, value in attributes.items()]}


@pytest.mark.parametrize(
    ("policy", "pod", "numa", "fits"),
    [
        ("restricted", f"cpu=40 memory=300Gi {GPU}=8", SOCKETS, True),  # nothing smaller would do
        ("single-numa-node", f"cpu=40 memory=300Gi {GPU}=8", SOCKETS, False),
        ("restricted", HALF_A_NODE, (SPLIT, SPLIT), False),
        ("restricted", f"cpu=8 memory=64Gi {GPU}=8", SOCKETS, False),  # CPUs of one, GPUs of two
        ("restricted", f"~ cpu=8 memory=64Gi {GPU}=8", SOCKETS, True),
        ("none", HALF_A_NODE, (SPLIT, SPLIT), True),
        ("best-effort", HALF_A_NODE, (SPLIT, SPLIT), True),
        ("a policy to come", HALF_A_NODE, (SPLIT, SPLIT), True),
    ],
)
def test_a_policy_refuses_what_kubelet_would(
    policy: str, pod: str, numa: tuple[str, ...], fits: bool
) -> None:
    state = state_of(report("n", "", *numa, **judges(policy)))
    assert refused(state, pod_of(pod), "n") is not fits


def test_attributes_count_before_the_old_field() -> None:
    two = "; ".join([f"cpu=20 memory=100Gi {GPU}=3"] * 2)
    by_container = report("n", SINGLE, *SOCKETS, **judges("single-numa-node", "container"))
    assert not refused(state_of(by_container), pod_of(two), "n")
    assert refused(state_of(report("n", SINGLE, *SOCKETS)), pod_of(two), "n")


def test_best_effort_prefers_the_node_that_keeps_the_pod_together() -> None:
    more = judges("best-effort")
    state = state_of(report("apart", "", SPLIT, SPLIT, **more), report("together", "", *SOCKETS, **more))
    pod = pod_of(HALF_A_NODE)
    found = evaluate(state, pod, request_of(pod), NodeNames.of(["apart", "together"]))
    assert found.codes.tolist() == [Reason.FITS, Reason.FITS]
    assert np.argmin(found.cost) == 1


def test_a_fraction_of_a_cpu_belongs_to_no_numa_node() -> None:
    state = state_of(report("n", CONTAINER, "cpu=0/32 memory=9Gi/9Gi", "cpu=1/32 memory=9Gi/9Gi"))
    assert not refused(state, pod_of("cpu=1500m memory=1Gi"), "n")
    assert refused(state, pod_of("cpu=2 memory=1Gi"), "n")


def test_a_pod_with_resources_of_its_own_has_only_its_devices_aligned() -> None:
    state = state_of(report("n", CONTAINER, f"cpu=1/32 memory=9Gi/9Gi {GPU}=1/1"))
    spec = {
        "resources": {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "1Gi"}},
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "4", "memory": "1Gi", GPU: "1"}}}],
    }
    pod = PodManifest.from_value({"metadata": {"name": "p", "uid": "u"}, "spec": spec}).record()
    assert not refused(state, pod, "n")


def test_a_sidecar_keeps_what_it_has() -> None:
    state = state_of(report("n", CONTAINER, f"{GPU}=1/4"))
    assert not refused(state, pod_of(f"{GPU}=1 | {GPU}=1"), "n")
    assert refused(state, pod_of(f"always {GPU}=1 | {GPU}=1"), "n")


@pytest.mark.parametrize(
    ("started", "counts"), [("", True), ("2027-01-15T07:59:30Z", True), ("2027-01-15T07:50:00Z", False)]
)
def test_a_pod_counts_beside_the_report_until_it_must_be_in_it(started: str, counts: bool) -> None:
    state = state_of(report("n", SINGLE, *SOCKETS))
    running = [pod_of(f"{GPU}=3", name, "n", started) for name in ("a", "b")]
    state.apply([*map(Upserted, running)])
    assert refused(state, pod_of(f"{GPU}=2"), "n") is counts


def test_a_later_report_has_the_pods_that_had_started_before() -> None:
    first, later = report("n", SINGLE, HALVES), report("n", SINGLE, SPLIT, version="2")
    state = state_of(first)
    state.apply([Upserted(pod_of(f"{GPU}=2", "old", "n", "2027-01-15T07:59:30Z"))])
    state.apply([Upserted(first)])  # the same, in another list
    assert refused(state, pod_of(f"{GPU}=3"), "n")
    state.apply([Upserted(later)])
    assert not refused(state, pod_of(f"{GPU}=2"), "n")


def test_where_kubelet_has_refused_a_pod_no_other_like_it_goes_before_the_next_report() -> None:
    state = state_of(report("n", SINGLE, *SOCKETS), report("other", SINGLE, *SOCKETS))
    failed = {"phase": "Failed", "reason": "TopologyAffinityError"}
    state.apply([Upserted(pod_of(f"{GPU}=2", "failed", "n", "2027-01-15T07:59:30Z", **failed))])
    assert refused(state, pod_of(f"{GPU}=2"), "n")
    assert not refused(state, pod_of(f"{GPU}=2"), "other")
    assert not refused(state, pod_of(f"{GPU}=1"), "n")
    state.apply([Upserted(report("n", SINGLE, *SOCKETS, version="2"))])
    assert not refused(state, pod_of(f"{GPU}=2"), "n")


def test_a_refusal_of_kubelet_is_forgotten_once_the_report_must_have_changed() -> None:
    state = state_of(report("n", SINGLE, *SOCKETS))
    failed = {"phase": "Failed", "reason": "TopologyAffinityError"}
    state.apply([Upserted(pod_of(f"{GPU}=2", "failed", "n", "2027-01-15T07:50:00Z", **failed))])
    assert not refused(state, pod_of(f"{GPU}=2"), "n")


def test_without_a_report_nothing_is_refused() -> None:
    state = state_of(report("n", SINGLE, SPLIT, SPLIT))
    pod = pod_of(f"{GPU}=4")
    assert refused(state, pod, "n")
    state.apply([Deleted("NodeResourceTopology", "n")])
    assert not refused(state, pod, "n")
    state.apply([Upserted(report("n", SINGLE, SPLIT, SPLIT))])
    state.apply([Listed("NodeResourceTopology", frozenset(), absent=True)])
    assert not refused(state, pod, "n")


def test_of_what_cannot_be_read_nothing_is_free() -> None:
    broken = report("n", SINGLE, f"cpu=eight/8 {GPU}=4/4")
    state = state_of(broken)
    assert "eight" in state.problems["n"]
    assert refused(state, pod_of("cpu=1 memory=1Gi"), "n")
    assert not refused(state, pod_of(f"~ cpu=1 {GPU}=4"), "n")


def test_no_eviction_is_proposed_for_a_pod_that_the_node_could_never_align() -> None:
    state = state_of(report("n", SINGLE, *SOCKETS))
    state.apply([Upserted(pod_of(f"{GPU}=8", "old", "n", "2027-01-15T07:00:00Z"))])
    assert why(state, pod_of(f"{GPU}=4"), "n") is Reason.NO_FREE_GPUS
    assert why(state, pod_of(f"{GPU}=6"), "n") is Reason.MISALIGNED
