"""Demand from settings: read like manifests, refused clearly, and in force before any pod has come."""

from __future__ import annotations

import pytest

from extender.cluster.factory import GuardedPolicy, prior_of, state_of
from extender.cluster.policy_refresh import PolicyRefresher
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Listed, Upserted
from extender.settings import ExpectedRequest, Settings, SettingsError
from packing.policies.inventory import InventoryPolicy
from tests.extender.builders import GPU, make_node, make_pod


def test_nothing_expected_is_no_prior() -> None:
    assert prior_of([]) is None


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (ExpectedRequest(resources={"cpu": "1"}), "demand.1: requests no GPU"),
        (ExpectedRequest(resources={GPU: "one"}), "demand.1: .*one"),
        (ExpectedRequest(annotations={"stowage.dev/gpu-compute": "200%"}), "demand.1: .*200%"),
    ],
)
def test_a_request_that_cannot_be_stops_the_start(expected: ExpectedRequest, says: str) -> None:
    fine = ExpectedRequest(resources={GPU: "1"})
    with pytest.raises(SettingsError, match=says):
        state_of(Settings(demand=[fine, expected]))


async def test_it_is_in_force_before_any_pod_has_come() -> None:
    eight = ExpectedRequest(resources={"cpu": "8", GPU: "8"})
    state = state_of(Settings(policy="inventory", demand=[eight]))
    refresher = PolicyRefresher(state)
    await refresher.refresh_if_due()
    state.apply([Upserted(make_node("n")), Listed("Node", frozenset({"n"}))])
    await refresher.refresh_if_due()
    assert isinstance(state.policy, GuardedPolicy)
    assert isinstance(state.policy.chosen, InventoryPolicy)
    assert state.policy.terms(state.fleet, request := prior_of([eight]).requests[0], 0)["slots"] > 0
    one = request_of(make_pod("one", 1))
    before = state.policy.terms(state.fleet, one, 0)
    state.apply([Upserted(make_pod(f"first{number}", 4)) for number in range(20)])
    await refresher.refresh_if_due()  # the first pods that teach are not left waiting for others
    assert state.policy.terms(state.fleet, one, 0) != before
    for number in range(600):
        state.apply([Upserted(make_pod(f"p{number}", 1))])
    await refresher.refresh_if_due()
    mix = state.policy.chosen.tables.mix
    assert mix.requests[0].devices == ((GPU, 1),)
    assert request in mix.requests
