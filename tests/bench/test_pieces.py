"""Everything that is not an answer to kube-scheduler gives way to it, in pieces that are measured."""

from __future__ import annotations

import pytest

from bench.pieces import READ, pieces

TASKS = {
    "collection of garbage",
    "election of the evictor",
    "evictor",
    "expiry of assumed pods",
    "forecast of starts",
    "history of the fleet",
    "refresh of the policy",
    "reservations",
    "shield",
    "version of the API server",
}
"""All tasks of the service: who adds one says here that it works in pieces."""
CALLBACKS = {"AfterAnswer.run", "Decisions.flush", "EventQueue._apply_slice", "EventQueue._go_on"}
LONGEST = 0.020
"""Seconds of CPU at 1,000 nodes."""


def test_every_task_is_known_and_runs():
    measured = pieces(nodes=12, seconds=3, first=0)
    assert measured.tasks == TASKS
    assert measured.longest.keys() > {f"GET {path}" for path in READ}
    assert "verbs" in measured.longest


@pytest.mark.nightly
def test_no_piece_is_long():
    measured = pieces(nodes=1000, seconds=30)
    long = {name: seconds for name, seconds in measured.longest.items() if seconds > LONGEST}
    assert not long.keys() & (TASKS | CALLBACKS), long
