"""After an interruption, a pod waits for those of higher priority that have not been tried since."""

from __future__ import annotations

from extender.cluster.reservations import FAILED, RETRIED_WITHIN, RetryOrder
from tests.extender.builders import make_node, make_pod, make_state

HIGH, LOW = make_pod("high", 1, priority=2, unscheduled=FAILED), make_pod("low", 1, priority=1)
STATE = make_state(make_node("n"), HIGH, LOW)


def test_the_one_of_higher_priority_is_tried_first() -> None:
    order = RetryOrder()
    assert order.must_wait(STATE.pods.failed_pods(), LOW, 0.0)
    assert not order.must_wait(STATE.pods.failed_pods(), HIGH, 1.0)
    assert not order.must_wait(STATE.pods.failed_pods(), LOW, 2.0)
    order.interrupted(3.0)
    assert order.must_wait(STATE.pods.failed_pods(), LOW, 3.0)


def test_a_pod_that_is_not_tried_again_costs_others_little_time() -> None:
    order = RetryOrder()
    assert order.must_wait(STATE.pods.failed_pods(), LOW, 0.0)
    assert not order.must_wait(STATE.pods.failed_pods(), LOW, RETRIED_WITHIN)
    assert not order.must_wait(STATE.pods.failed_pods(), LOW, RETRIED_WITHIN + 1.0)
