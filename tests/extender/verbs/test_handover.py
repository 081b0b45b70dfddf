"""Which nodes are read before a binding, and for how long."""

from __future__ import annotations

from extender.verbs.handover import Takeover


def test_everything_is_read_at_first() -> None:
    handover = Takeover()
    handover.asked(100)
    assert handover.needs_relist("a")
    handover.read("a", 100)
    handover.asked(100.5)
    assert handover.needs_relist("a")  # the last bindings of another one may still come through


def test_a_node_is_read_once_more_when_all_has_come_through() -> None:
    handover = Takeover()
    for tenth in range(100):
        handover.asked(100 + tenth / 10)
        assert handover.needs_relist("a") == (tenth <= 50)
        assert handover.needs_relist("b")
        handover.read("a", 100 + tenth / 10)


def test_after_a_pause_everything_is_read_again() -> None:
    handover = Takeover()
    for tenth in range(100):
        handover.asked(tenth / 10)
    handover.read("a", 9.9)
    handover.asked(10.8)
    assert not handover.needs_relist("a")
    handover.asked(11.9)
    assert handover.needs_relist("a")
