"""Which nodes are listed before a binding, and for how long."""

from __future__ import annotations

from extender.verbs.bind import Takeover


def test_every_node_is_listed_at_first() -> None:
    takeover = Takeover()
    takeover.asked(100)
    assert takeover.needs_relist("a")
    takeover.relisted("a", 100)
    takeover.asked(100.5)
    assert takeover.needs_relist("a")  # the last bindings of another replica may still happen


def test_a_node_is_listed_once_more_when_no_other_binding_can_happen() -> None:
    takeover = Takeover()
    for tenth in range(100):
        takeover.asked(100 + tenth / 10)
        assert takeover.needs_relist("a") == (tenth <= 50)
        assert takeover.needs_relist("b")
        takeover.relisted("a", 100 + tenth / 10)


def test_after_a_pause_every_node_is_listed_again() -> None:
    takeover = Takeover()
    for tenth in range(100):
        takeover.asked(tenth / 10)
    takeover.relisted("a", 9.9)
    takeover.asked(10.8)
    assert not takeover.needs_relist("a")
    takeover.asked(11.9)
    assert takeover.needs_relist("a")
