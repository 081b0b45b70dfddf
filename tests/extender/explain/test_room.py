"""The single change after which a waiting gang fits, as ``explain`` says it."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.state import State
from extender.explain.pod import explain
from extender.k8s.objects import Node, Owner, Pod
from extender.settings import Mode, Settings, Window
from tests.extender.builders import GUARDED, NOW, guard, make_node, make_pod, make_state

JOB = Owner("Job", "job", "uid-job")


def gang(count: int, gpus: int = 8, **more: Any) -> list[Pod]:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(count)}
    return [make_pod(f"w{number}", gpus, labels=labels, **more) for number in range(count)]


def cluster(*objects: Node | Pod) -> State:
    state = make_state(*objects)
    state.gang_check = True
    return state


def way(state: State, pod: Pod) -> str:
    return next(iter(explain(state, pod, now=NOW).verdict.ways))


@pytest.mark.parametrize(("evictor", "mode", "says"), [
    ("on", "on", "wait: the evictor moves other pods once this one has been pending long enough: 1 move"),
    ("on", "recommend", "let the evictor move other pods (evictor: on, consolidation: on): 1 move"),
    ("recommend", "on", "let the evictor move other pods (evictor: on, consolidation: on): 1 move"),
    ("on", "off", "1 move"),
])  # fmt: skip
@pytest.mark.parametrize("restartable", [True, False])
def test_who_moves_them(evictor: Mode, mode: Mode, says: str, restartable: bool) -> None:
    """The evictor moves only restartable pods."""
    notes = {"stowage.dev/restartable": str(restartable).lower()}
    blocking = make_pod("x", 1, node_name="b", owner=JOB, annotations=notes, started=NOW - 3600)
    pods = gang(2)
    state = cluster(make_node("a"), make_node("b"), make_node("c", 2), blocking, *pods)
    for fewest in (16, 17):
        settings = Settings(
            bind=True,
            evictor=evictor,
            evictor_lease="a/b",
            consolidation=mode,
            consolidation_gpus=fewest,
            windows=[Window(cron="0 22 * * *", duration=3600)],
        )
        (told, *_) = explain(state, pods[0], now=NOW, settings=settings).verdict.ways
        by_evictor = restartable and fewest == 16
        assert told.startswith(says if by_evictor else "1 move")
        assert ("; not before the next window, " in told) == (by_evictor and mode != "off")


@pytest.mark.parametrize(
    "why", ["no controller", "budget", "no other node", "too many missing", "too many pods", "too many move"]
)
def test_no_way_is_named_that_is_not_enough(why: str) -> None:
    pods = gang(3 if why == "too many missing" else 2)
    owner = None if why == "no controller" else JOB
    blocking = [
        make_pod(name, 1, node_name="b", owner=owner, labels=GUARDED)
        for name in "xy"[: 1 + (why == "too many move")]
    ]
    there = {"pods": "1" if why == "too many pods" else "2"}
    others = [] if why == "no other node" else [make_node("c", 2, **there), make_pod("z", 0, node_name="c")]
    state = cluster(make_node("a"), make_node("b"), *others, *blocking, *pods)
    guard(state, 0 if why == "budget" else 2)
    assert not way(state, pods[0]).startswith(("uncordon", "1 move"))
