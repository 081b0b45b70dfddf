"""prioritize says the same with what filter has found as without, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import PolicyRefresher, choose_node_sets_now, plan_now
from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.k8s.admission_objects import PriorityClass
from extender.k8s.objects import Deleted, Listed, Upserted
from extender.protocol.codec import FilterArgs, encode_priorities
from extender.protocol.node_names import NodeNames
from extender.queues.queue import RESTARTABLE
from extender.settings import Settings
from extender.verbs import prioritize as module
from extender.verbs.evaluate import MAX_SCORE, Evaluation
from extender.verbs.filter import filter_nodes
from extender.verbs.prioritize import LastFilter, prioritize, scored
from tests.examples import examples
from tests.extender.builders import make_node, make_pod

NODES = [f"n{number}" for number in range(6)]
SPOT = {"karpenter.sh/capacity-type": "spot"}
GANG = {"stowage.dev/gang": "g", "stowage.dev/gang-min": "3"}
ASKING = (
    make_pod("small", 1),
    make_pod("large", 6, priority=5),
    make_pod("restartable", 2, annotations={RESTARTABLE: "true"}),
    make_pod("member-0", 1, labels=GANG),
)
HEAD = b'{"Pod":{},"Nodes":null,"NodeNames":'
Step = Callable[[State, int], None]


def put_pod(state: State, number: int) -> None:
    pod = make_pod(f"other-{number}", 1 + number % 4, node_name=NODES[number % 6])
    state.apply([Upserted(pod)])


def put_member(state: State, number: int) -> None:
    state.apply([Upserted(make_pod(f"member-{number}", 1, labels=GANG, node_name=NODES[number % 6]))])


def remove_pod(state: State, number: int) -> None:
    state.apply([Deleted("Pod", f"default/other-{number}")])


def put_node(state: State, number: int) -> None:
    labels = SPOT if number % 2 else {}
    state.apply([Upserted(make_node(NODES[number % 6], 4 + number % 5, labels=labels))])


def remove_node(state: State, number: int) -> None:
    state.apply([Deleted("Node", NODES[number % 6])])


def bind(state: State, number: int) -> None:
    pod = make_pod(f"bound-{number}", 1 + number % 3)
    node = NODES[number % 6]
    assumed = state.assume(pod, node, {}, 1.0)
    if number % 2:
        state.binding_succeeded(assumed.pod, 2.0)
    else:
        state.binding_failed(assumed.pod, 2.0, outcome_unknown=number % 4 == 0)


def promise(state: State, number: int) -> None:
    pod = make_pod(f"waits-{number}", 1 + number % 4, priority=number)
    state.apply([Upserted(pod)])
    state.reservations.reserve(pod.uid, Reserved.NOMINATING, NODES[number % 6])


def plan(state: State, number: int) -> None:
    choose_node_sets_now(state)
    plan_now(state)


def refresh(state: State, number: int) -> None:
    asyncio.run(PolicyRefresher(state).refresh_if_due())


def put_class(state: State, number: int) -> None:
    state.apply([Upserted(PriorityClass("high", number))])


def nothing(state: State, number: int) -> None:
    """Nothing happens."""


STEPS: tuple[Step, ...] = (
    *(put_pod, put_member, remove_pod, put_node, remove_node, bind, promise, plan, refresh, put_class),
    *(nothing, nothing),
)


def start() -> State:
    state = state_of(Settings())
    state.apply([*(Upserted(make_node(name)) for name in NODES), Listed("Node", frozenset(NODES))])
    state.apply([Listed("Pod", frozenset())])
    plan_now(state)
    return state


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ASKING),
            st.sampled_from(STEPS),
            st.integers(0, 9),
            st.lists(st.sampled_from([*NODES, "unknown"]), unique=True),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_same_scores(rounds):
    state = start()
    last = LastFilter(state)
    for pod, step, number, few, prepared in rounds:
        filtered, evaluation = filter_nodes(state, FilterArgs(pod, NodeNames.of(NODES)), Settings())
        last.keep(evaluation, FilterArgs(pod, NodeNames.of(NODES), head=HEAD), filtered)
        if prepared:
            last.prepare()
        step(state, number)
        body = HEAD + filtered.names.json() + b"}"
        if (continued := last.continued(body)) is not None:
            anew, expected = prioritize(state, FilterArgs(pod, filtered.names))
            assert list(continued.args.names) == list(filtered.names)
            assert continued.args.pod is pod
            assert continued.scores.tolist() == anew.tolist()
            assert continued.reply == encode_priorities(filtered.names, anew)
            best = [name for name, score in zip(filtered.names, anew, strict=True) if score == MAX_SCORE]
            assert [continued.best] == (best or [""])
            assert_equal(continued.evaluation, expected)
        for other in (HEAD + NodeNames.of([*few, "other"]).json() + b"}", body + b" ", body[:-1], body[1:]):
            assert last.continued(other) is None


def assert_equal(found: Evaluation | None, expected: Evaluation | None) -> None:
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        for field in ("rows", "codes", "cost", "keys"):
            assert getattr(found, field).tolist() == getattr(expected, field).tolist()


def test_it_is_used_until_anything_changes():
    pod = ASKING[0]
    for step in STEPS:
        state = start()
        last = LastFilter(state)
        args = FilterArgs(pod, NodeNames.of(NODES), head=HEAD)
        result, evaluation = filter_nodes(state, args, Settings())
        last.keep(evaluation, args, result)
        body = HEAD + result.names.json() + b"}"
        assert last.continued(body) is not None
        step(state, 3)
        assert (last.continued(body) is None) == (step is not nothing), step


def test_it_is_prepared_only_where_prioritize_is_asked(monkeypatch):
    state, encoded = start(), []
    monkeypatch.setattr(module, "scored", lambda *args: encoded.append(1) or scored(*args))
    last, args = LastFilter(state), FilterArgs(ASKING[0], NodeNames.of(NODES), head=HEAD)
    result, evaluation = filter_nodes(state, args, Settings())
    body = HEAD + result.names.json() + b"}"
    for asks, prepared in (
        (True, True),
        (True, True),
        (False, True),
        (False, False),
        (True, False),
        (True, True),
    ):
        last.keep(evaluation, args, result)
        encoded.clear()
        last.prepare()
        assert bool(encoded) == prepared
        if asks:
            assert last.continued(body) is not None
            assert len(encoded) == 1
