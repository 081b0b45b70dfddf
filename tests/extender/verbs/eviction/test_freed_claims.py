"""Victims that hold devices through ResourceClaims count with what their claims free."""

from __future__ import annotations

import pytest

from extender.k8s.objects import PodClaim, PodSpec, Upserted
from extender.verbs.eviction.plan import plan_evictions
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state
from tests.extender.dra.nvidia import gpu, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice
from tests.extender.verbs.test_claims import wish


def claim(name: str, device: str, *users: str):
    held = {"driver": "gpu.nvidia.com", "pool": "n", "device": device}
    reserved = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    status = {"allocation": {"devices": {"results": [held]}}, "reservedFor": reserved}
    return parse_claim("default", name, {"devices": wish()}, status)


def user(name: str, claim: str, **more):
    containers = make_pod(name, 0).spec.containers
    return make_pod(name, 0, node_name="n", spec=PodSpec(containers, claims=(PodClaim("c", claim),)), **more)


@pytest.fixture
def state():
    """A node whose two GPUs are devices: one is the old pod's, the other is shared by two pods."""
    made = make_state(
        make_node("n", 0),
        user("old", "one", started=NOW - 9000),
        user("x", "both", started=NOW),
        user("y", "both", started=NOW),
        make_pod("bystander", 0, node_name="n", started=NOW),
    )
    gpus = {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": "true"}}]}
    records = [parse_class("gpu", gpus), parse_slice("n", spec(gpu(0), gpu(1), node="n"))]
    records += [claim("one", "gpu-0", "old"), claim("both", "gpu-1", "x", "y")]
    made.apply([Upserted(record) for record in records])
    return made


def victims(state, gpus: int, priority: int = 10) -> list[list[str]]:
    pod = make_pod("p", gpus, priority=priority)
    return [sorted(victim.name for victim in plan.victims) for plan in plan_evictions(state, pod, ["n"], NOW)]


def test_a_shared_claim_is_freed_when_all_its_users_leave(state):
    assert victims(state, 1) == [["x", "y"]]  # cheaper than the old pod
    assert victims(state, 2) == [["old", "x", "y"]]


def test_a_claim_with_a_user_that_stays_is_not_freed(state):
    state.apply([Upserted(user("y", "both", priority=10))])
    assert victims(state, 1) == [["old"]]
    assert victims(state, 2) == []


def test_nobody_leaves_where_devices_are_free(state):
    state.apply([Upserted(parse_claim("default", "one", {"devices": wish()}, None))])
    assert victims(state, 1) == []
