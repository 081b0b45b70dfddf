"""Every query of the dashboard and of the alerts, by a real Prometheus against a Stowage under load."""

from __future__ import annotations

import pytest

from bench.dashboard import run
from bench.monitoring.prometheus import MISSING, installed

_EXPECTED = {"StowageNotReady", "StowageDemandMoved"}
"""Stowage starts. The settings of the load expect another demand than arrives."""


def test_every_query_finds_what_it_is_about() -> None:
    if not installed():
        pytest.skip(MISSING)
    result = run(seconds=40)
    assert result.problems == []
    assert {alert.partition(" ")[0] for alert in result.alerts} <= _EXPECTED
    assert all(alert.endswith("(pending)") for alert in result.alerts)
