"""The curves of the page: bounded, fine for the last minutes and coarse before."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extender.cluster.census import CensusTaker
from extender.explain import fleet_feed
from extender.explain.fleet_feed import _EVERY, INTERVAL, FleetHistory
from tests.extender.builders import make_node, make_state


async def test_old_samples_are_thinned_out_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, older = 9, 20
    monkeypatch.setattr(fleet_feed, "_RECENT", recent)
    monkeypatch.setattr(fleet_feed, "_OLDER", older)
    history = FleetHistory(CensusTaker(make_state(make_node("a"))))
    for number in range(recent + _EVERY * (older + 5)):
        await history.sample(INTERVAL * number)
    at = history.columns()["at"]
    assert len(at) == older + recent
    steps = [later - earlier for earlier, later in pairwise(at)]
    assert set(steps[: older - 1]) == {INTERVAL * _EVERY}
    assert set(steps[older:]) == {INTERVAL}
