"""What the API server adds to a new pod, by upstream's admission plugins (k8s.io/kubernetes v1.37.2)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.state import State
from extender.k8s.admission_objects import (
    LimitRangeManifest,
    PriorityClassManifest,
    ResourceQuotaManifest,
    RuntimeClassManifest,
)
from extender.k8s.affinity import Toleration
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.source.workloads import parse_pod
from tests.extender.builders import GPU, make_node, make_pod, make_state

EKS = {"eks.amazonaws.com/nodegroup": "gpu"}
ADDED = Toleration(GPU, "Exists", "", "NoSchedule")


def created(state: State, gpus: int = 1, **spec: Any) -> tuple[Pod, str]:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    spec = {"containers": [{"name": "c", "resources": resources}], **spec}
    manifest = {"kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": spec}
    return state.admission.as_created(parse_pod(json.dumps(manifest), "p.json"))


def on_eks() -> State:
    return make_state(make_node("a", labels=EKS))


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ({"operator": "Equal", "value": "present", "effect": "NoSchedule"}, 1),
        ({"operator": "Equal", "value": "true", "effect": "NoSchedule"}, 1),
        ({"operator": "Exists", "effect": "NoExecute"}, 1),
        ({"operator": "Exists"}, 1),
        ({"operator": "Exists", "effect": "NoSchedule"}, 0),
    ],
)
def test_an_extended_resource_is_tolerated_unless_the_pod_has_exactly_that_toleration(
    own: dict[str, str], kept: int
) -> None:
    pod, text = created(on_eks(), tolerations=[{"key": GPU, **own}])
    tolerations = [t for t in pod.scheduling_constraints.tolerations if t.key == GPU]
    first = Toleration(GPU, own["operator"], own.get("value", ""), own.get("effect", ""))
    assert tolerations == [first, ADDED] if kept else [first]
    is_new = own not in ({"operator": "Exists"}, {"operator": "Exists", "effect": "NoSchedule"})
    assert ("a toleration for nvidia.com/gpu" in text) is is_new


def priority_class(name: str, value: int, **more: Any) -> Upserted:
    return Upserted(
        PriorityClassManifest.from_value({"metadata": {"name": name}, "value": value, **more}).record()
    )


@pytest.mark.parametrize(
    ("name", "value"), [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)]
)
def test_classes_of_every_cluster_count_where_no_class_is_listed(name: str, value: int) -> None:
    pod, _ = created(make_state(), priorityClassName=name)
    assert (pod.priority, pod.priority_class, pod.never_preempts) == (value, name, False)


def test_a_class_that_never_preempts_says_so_in_its_pods() -> None:
    state = make_state()
    state.apply([priority_class("calm", 7, preemptionPolicy="Never")])
    pod, _ = created(state, priorityClassName="calm")
    assert (pod.priority, pod.never_preempts) == (7, True)


def limit_range(*limits: dict[str, Any], name: str = "r", namespace: str = "team") -> Upserted:
    manifest = {"metadata": {"name": name, "namespace": namespace}, "spec": {"limits": [*limits]}}
    return Upserted(LimitRangeManifest.from_value(manifest).record())


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        ({"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}, "1", "2"),
        ({"default": {"cpu": "2"}}, "2", "2"),
        ({"defaultRequest": {"cpu": "1"}}, "1", None),
        ({"max": {"cpu": "4"}}, "4", "4"),
        ({"min": {"cpu": "500m"}}, "500m", None),
        ({"max": {"cpu": "4"}, "default": {"cpu": "3"}, "min": {"cpu": "1"}}, "3", "3"),
        ({"max": {"cpu": "4"}, "min": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}, "2", "4"),
    ],
)
def test_a_limit_range_completes_requests_and_limits(
    limit: dict[str, Any], least: str, most: str | None
) -> None:
    state = make_state()
    state.apply([limit_range({"type": "Pod", "max": {"cpu": "9"}}, {"type": "Container"} | limit)])
    pod, text = created(state)
    container = pod.spec.containers[0]
    assert (dict(container.requests)["cpu"], dict(container.limits).get("cpu")) == (least, most)
    assert f"requests of cpu={least} (LimitRange)" in text
    inits = [{"name": "i", "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}}]
    pod, _ = created(state, initContainers=inits)
    assert dict(pod.spec.init_containers[0].requests)["cpu"] == "8"


def test_a_runtime_class_adds_overhead_selector_and_tolerations() -> None:
    state = make_state()
    scheduling = {"nodeSelector": {"runtime": "kata"}, "tolerations": [{"key": "kata", "operator": "Exists"}]}
    manifest = {"overhead": {"podFixed": {"memory": "160Mi"}}, "scheduling": scheduling}
    state.apply(
        [Upserted(RuntimeClassManifest.from_value({"metadata": {"name": "kata"}, **manifest}).record())]
    )
    pod, text = created(state, runtimeClassName="kata", nodeSelector={"disk": "ssd"})
    assert pod.spec.overhead == (("memory", "160Mi"),)
    assert pod.spec.node_selector == (("disk", "ssd"), ("runtime", "kata"))
    assert Toleration("kata", "Exists") in pod.scheduling_constraints.tolerations
    assert "overhead memory=160Mi and nodeSelector runtime=kata and tolerations (RuntimeClass kata)" in text


def test_a_pod_of_the_cluster_stays_as_it_is() -> None:
    state = on_eks()
    pod, _ = created(state)
    known = parse_pod(
        json.dumps({"kind": "Pod", "metadata": {"name": pod.name, "namespace": "team", "uid": "u"}}), "p"
    )
    state.apply([Upserted(known)])
    assert state.admission.as_created(known) == (known, "")


def test_users_of_a_claim_are_known_while_they_are_there() -> None:
    def user(name: str, claim: str) -> Pod:
        return replace(make_pod(name, node_name="a"), volume_claims=(claim,))

    state = make_state(make_node("a"))
    state.apply([Upserted(user(name, "c")) for name in "pq"])
    assert state.pods.claiming == {"default/c": {"default/p": None, "default/q": None}}
    state.apply([Upserted(replace(user("p", "c"), phase="Succeeded")), Deleted("Pod", "default/q")])
    assert state.pods.claiming == {}
    state.apply([Upserted(user("p", "c")), Upserted(replace(user("p", "d"), uid="other"))])
    assert state.pods.claiming == {"default/d": {"default/p": None}}


@pytest.mark.parametrize(
    ("hard", "used", "exceeded"),
    [
        ({f"requests.{GPU}": "4"}, {f"requests.{GPU}": "4"}, f"requests.{GPU}"),
        ({f"requests.{GPU}": "4"}, {f"requests.{GPU}": "3"}, ""),
        ({f"requests.{GPU}": "0"}, {}, f"requests.{GPU}"),
        ({"pods": "5"}, {"pods": "5"}, "pods"),
        ({"requests.cpu": "2"}, {"requests.cpu": "1500m"}, "requests.cpu"),
        ({"cpu": "2500m"}, {"cpu": "1500m"}, ""),
        ({"limits.cpu": "1", "services": "0"}, {"limits.cpu": "1"}, ""),
        ({"pods": "a lot"}, {}, ""),
    ],
)
def test_a_quota_of_a_file_is_exceeded_by_what_the_pod_requests(
    hard: dict[str, str], used: dict[str, str], exceeded: str
) -> None:
    state = make_state()
    none = {"hard": {"pods": "0"}}
    for name, namespace, spec in (
        ("q", "team", {"hard": hard}),
        ("other", "ns", none),
        ("some", "team", {**none, "scopes": ["BestEffort"]}),
    ):
        metadata = {"name": name, "namespace": namespace}
        manifest = {"metadata": metadata, "spec": spec, "status": {"used": used}}
        state.apply([Upserted(ResourceQuotaManifest.from_value(manifest).record())])
    resources = {"limits": {GPU: "1"}, "requests": {"cpu": "1"}}
    pod, _ = created(state, containers=[{"name": "c", "resources": resources}])
    found = state.admission.exceeded(pod)
    assert (found and (found[0].name, found[1])) == (("q", exceeded) if exceeded else None)
