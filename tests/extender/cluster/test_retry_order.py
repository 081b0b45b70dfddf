"""After an interruption, a pod waits for those of higher priority that have not been tried since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.reservations import FAILED, RETRIED_WITHIN, RetryOrder
from extender.k8s.objects import Deleted, Pod, Upserted
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


def test_who_was_told_to_wait_has_not_been_tried() -> None:
    middle, lowest = replace(LOW, unscheduled=FAILED), make_pod("lowest", 1)
    state = make_state(make_node("n"), HIGH, middle, lowest)
    order = RetryOrder()
    assert order.must_wait(state.pods.failed_pods(), middle, 0.0)
    assert not order.must_wait(state.pods.failed_pods(), HIGH, 1.0)
    assert order.must_wait(state.pods.failed_pods(), lowest, 1.0)
    assert not order.must_wait(state.pods.failed_pods(), middle, 2.0)
    assert not order.must_wait(state.pods.failed_pods(), lowest, 2.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(HIGH, priority=1),
        replace(HIGH, unscheduled="Unschedulable"),
        replace(HIGH, unscheduled=""),
        replace(HIGH, scheduler_name="another"),
        replace(HIGH, deleting=True),
        replace(HIGH, node_name="n"),
    ],
)
def test_others_do_not_matter(other: Pod) -> None:
    assert not RetryOrder().must_wait(make_state(make_node("n"), other, LOW).pods.failed_pods(), LOW, 0.0)


def test_a_pod_that_is_gone_does_not_matter() -> None:
    state = make_state(make_node("n"), HIGH, LOW)
    state.apply([Deleted("Pod", HIGH.key), Upserted(LOW)])
    assert not RetryOrder().must_wait(state.pods.failed_pods(), LOW, 0.0)
