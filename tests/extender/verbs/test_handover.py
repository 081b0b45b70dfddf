"""Which nodes are read before a binding, and for how long."""

from __future__ import annotations

from extender.verbs.handover import Handover


def test_everything_is_read_at_first() -> None:
    handover = Handover()
    handover.asked(100)
    assert handover.must_read("a")
    handover.read("a", 100)
    handover.asked(100.5)
    assert handover.must_read("a")  # the last bindings of another one may still come through


def test_a_node_is_read_once_more_when_all_has_come_through() -> None:
    handover = Handover()
    for tenth in range(100):
        handover.asked(100 + tenth / 10)
        assert handover.must_read("a") == (tenth <= 50)
        assert handover.must_read("b")
        handover.read("a", 100 + tenth / 10)


def test_after_a_pause_everything_is_read_again() -> None:
    handover = Handover()
    for tenth in range(100):
        handover.asked(tenth / 10)
    handover.read("a", 9.9)
    handover.asked(10.8)
    assert not handover.must_read("a")
    handover.asked(11.9)
    assert handover.must_read("a")
