"""Mixed fleets: no policy beats the integer program, and the default one is not below the others."""

from __future__ import annotations

import pytest

from bench.packing import mixed_fleets
from bench.packing.mixed_fleets import MixedFleet, departures, static
from packing.model.request import SeparateGpus

SEEDS: list[tuple[int, SeparateGpus]] = [(1, "prefer"), (3, "prefer"), (4, "prefer"), (2, "require")]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 4, 5])
def test_no_policy_beats_the_program_and_inventory_is_not_below_the_others(seed: int) -> None:
    found = {policy: gpus for policy, (gpus, _) in static(seed, allow_downgrade=True, program=True).items()}
    best = max(gpus for policy, gpus in found.items() if policy not in ("inventory", "program"))
    assert best - 1 <= found["inventory"] <= found["program"]


@pytest.mark.parametrize(("seed", "separate"), SEEDS)
def test_a_fleet_that_is_filled_again_keeps_as_many_gpus_whole_as_under_the_best_other_policy(
    seed: int, separate: SeparateGpus
) -> None:
    found = static(seed, allow_downgrade=True, program=False, separate=separate)
    gpus = {policy: gpus for policy, (gpus, _) in found.items() if policy != "today"}
    assert gpus.pop("inventory") >= max(gpus.values())


def test_no_pod_gets_a_weaker_device_unless_it_is_allowed() -> None:
    kept, allowed = (static(5, allow_downgrade=allow, program=False) for allow in (False, True))
    assert kept["inventory"][0] < allowed["inventory"][0]


def test_equal_seeds_give_equal_fleets_and_pods() -> None:
    one, two = MixedFleet(3, 0.5), MixedFleet(3, 0.5)
    assert one.nodes == two.nodes
    assert [item.request for item in one.pods(20)] == [item.request for item in two.pods(20)]


def test_pods_leave_and_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_fleets, "PODS", 400)
    monkeypatch.setattr(mixed_fleets, "WARM", 200)
    light, heavy = (departures(5, "best-fit", load, 0.0, "require") for load in (0.2, 3.0))
    assert light.gpu_hours == 100
    assert heavy.gpu_hours < 80
    assert 0 < heavy.worth < light.worth < 100
    assert light.large_dropped == 0 < heavy.large_dropped
