"""What Kueue writes into pods, and what Stowage makes of it. See kueue_pods.yaml for where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.census import pods_waiting_for_devices
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.queues.queue import Queues
from extender.queues.rights import managed_by_kueue
from extender.settings import Queue
from tests.contract.conftest import Start
from tests.extender.builders import make_node, make_pod, make_state

PODS: dict[str, Any] = yaml.load(Path(__file__).with_name("kueue_pods.yaml").read_text(), yaml.CSafeLoader)
HELD = sorted(name for name in PODS if name.endswith("held"))


def pod_of(case: str, **metadata: object) -> Pod:
    manifest = PODS[case] | {"metadata": PODS[case]["metadata"] | metadata}
    return PodManifest.from_value(manifest).record()


@pytest.mark.parametrize("name", PODS)
def test_gates_say_whether_it_waits_for_kueue(name: str) -> None:
    """The condition SchedulingGated outlives the gates until kube-scheduler has tried the pod."""
    pod = pod_of(name)
    assert bool(pod.gates) == (name in HELD)
    assert all(gate.startswith("kueue.x-k8s.io/") for gate in pod.gates)
    state = make_state(make_node("n"), pod)
    assert len(pods_waiting_for_devices(state)) == (name not in HELD)


@pytest.mark.parametrize("name", PODS)
def test_kueue_alone_evicts_what_it_has_admitted(name: str) -> None:
    assert managed_by_kueue(pod_of(name))


@pytest.mark.parametrize("name", sorted(set(PODS) - set(HELD)))
def test_the_queue_is_that_of_kueue(name: str) -> None:
    queues = Queues({"train": Queue(aliases=["team"])})
    assert queues.name_of(pod_of(name)) == "train"


def test_the_members_of_a_group_are_a_gang() -> None:
    held = pod_of("a member of a group, held")
    state = make_state(make_node("n"), held, pod_of("a member of a group, admitted", name="other", uid="o"))
    gang = state.gangs.gang_of(held)
    assert gang is not None
    assert (gang.key, gang.minimum) == ("Kueue default/group of priority 10000", 3)
    assert len(state.gangs.members(gang.key)) == 2


def test_the_nodes_that_kueue_names() -> None:
    """First those of the flavor, then the one host of the topology assignment."""
    for name, accepted in (
        ("a pod of a job with a topology request, held", {"b0", "b1"}),
        ("a pod of a job with a topology request, assigned", {"b0"}),
    ):
        nodes = {
            host: make_node(host, labels={"kubernetes.io/hostname": host, "pool": "tas"})
            for host in ("b0", "b1")
        }
        nodes["other"] = make_node("other", labels={"kubernetes.io/hostname": "other"})
        rejection = NodeFilter(pod_of(name)).rejection
        assert {host for host, node in nodes.items() if not rejection(node)} == accepted


def test_a_pod_that_kueue_stops() -> None:
    """``Stop`` of pkg/controller/jobs/pod/pod_controller.go sets this condition, then deletes the pod."""
    condition = {"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue"}
    manifest = PODS["a plain pod, admitted"]
    stopped = {"phase": "Running", "conditions": [condition]}
    ends = {"deletionTimestamp": "2026-11-23T03:42:44Z", "deletionGracePeriodSeconds": 30}
    pod = PodManifest.from_value(
        manifest
        | {"status": stopped, "metadata": manifest["metadata"] | ends}
        | {"spec": manifest["spec"] | {"nodeName": "n"}}
    ).record()
    assert pod.deleting
    assert pod.ends == 1795405364.0
    state = make_state(make_node("n"), pod)
    assert list(state.pods.leaving) == [pod.key]
    state.apply([Upserted(PodManifest.from_value(manifest | {"status": {"phase": "Failed"}}).record())])
    assert not state.pods.leaving


async def test_it_is_evicted_for_nobody_unless_a_setting_says_so(start: Start) -> None:
    manifest = PODS["a pod of a started job"]
    victim = PodManifest.from_value(manifest | {"spec": manifest["spec"] | {"nodeName": "n"}}).record()
    high = {
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-p"},
        "spec": {"priority": 100, "containers": PODS["a pod of a started job"]["spec"]["containers"]},
    }
    proposal = {"n": {"Pods": [{"UID": victim.uid}], "NumPDBViolations": 0}}
    for evicts in (False, True):
        stowage = await start(make_node("n", 2), victim, make_pod("x", 0), evict_kueue_pods=evicts)
        answer = json.loads(await stowage.preempt(high, proposal))
        assert answer["NodeNameToMetaVictims"] == (proposal if evicts else {})
