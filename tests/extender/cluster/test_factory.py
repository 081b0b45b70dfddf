"""Demand from settings: read like manifests, refused clearly, and in force before any pod has come."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.cluster.factory import GuardedPolicy, prior_of, state_of
from extender.cluster.policy_refresh import PolicyRefresher
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Listed, Upserted
from extender.settings import ExpectedRequest, Settings, SettingsError
from extender.settings_file import load
from packing.policies.inventory import InventoryPolicy
from tests.extender.builders import GPU, make_node, make_pod


def test_requests_are_read_like_a_pods(tmp_path: Path) -> None:
    path = tmp_path / "stowage.yaml"
    path.write_text(
        "demand:\n"
        "- {resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1}, weight: 3}\n"
        "- {resources: {cpu: 2}, annotations: {stowage.dev/gpu-compute: 25%}}\n"
    )
    prior = prior_of(load(path, {}).demand)
    assert prior is not None
    assert prior.frequency == (0.75, 0.25)
    whole, part = prior.requests
    assert (whole.cpu_milli, whole.memory_mib, whole.devices) == (8000, 65536, ((GPU, 1),))
    assert part.shares is not None
    assert part.shares.compute_milli == 250


def test_it_may_come_from_the_environment() -> None:
    text = '[{"resources": {"nvidia.com/gpu": 8}, "weight": 2.5}]'
    [one] = load(None, {"STOWAGE_DEMAND": text}).demand
    assert one == ExpectedRequest(resources={GPU: "8"}, weight=2.5)


def test_nothing_expected_is_no_prior() -> None:
    assert prior_of([]) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("demand: 3", "demand: invalid value 3; expected a list of expected requests"),
        ("demand: [{weight: 0}]", "demand.0.weight: Input should be greater than or equal to 0.000001"),
        ("demand: [{}, {colour: blue}]", "demand.1.colour: unknown setting"),
        ("demand: [{resources: [gpu]}]", "demand.0.resources: Input should be a valid dictionary"),
        ("demand: [{weight: .nan}]", "demand.0.weight"),
    ],
)
def test_a_wrong_form_stops_the_start(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "stowage.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert f"{path}: {says}" in str(caught.value)


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


def test_settings_of_gangs_are_in_force() -> None:
    state = state_of(Settings(gang_check=False, gang_hold_seconds=5))
    assert (state.gang_check, state.gang_holds.seconds) == (False, 5)
    assert state_of(Settings()).gang_check
