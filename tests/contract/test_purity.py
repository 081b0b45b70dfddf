"""filter, prioritize and preempt may be called any number of times, and nothing marks a dry run: the same
request gives the same bytes and leaves the state as it was."""

from __future__ import annotations

import numpy as np
import pytest

from extender.cluster.state import State
from tests.contract.conftest import Start, Stowage, manifest
from tests.extender.builders import make_node, make_pod

CLUSTER = (
    *(make_node(name) for name in "abc"),
    make_pod("holds", 6, node_name="b"),
    make_pod("promised", 2, nominated_node="c", priority=5),
    make_pod("waits", 2),
)


def fingerprint(state: State) -> dict[str, object]:
    """Everything the state knows, in comparable form. (``generation`` also counts what is taken back.)"""
    attributes = vars(state.fleet.arrays).items()
    arrays = {name: value for name, value in attributes if isinstance(value, np.ndarray)}
    del arrays["generation"]
    books = {name: repr(value) for name, value in vars(state.allocations).items() if name != "_fleet"}
    books |= {
        name: repr(getattr(state, name)) for name in ("nodes", "pods", "problems", "synced", "overcommitted")
    }
    return {name: (array.shape, array.tobytes()) for name, array in arrays.items()} | books


async def ask(stowage: Stowage, verb: str, name: str, gpus: int) -> bytes:
    pod = manifest(name, gpus)
    if verb == "filter":
        return await stowage.filter(pod, ["c", "a", "b", "gone"])
    if verb == "prioritize":
        return await stowage.prioritize(pod, ["c", "a", "b", "gone"])
    victims = {"b": {"Pods": [{"UID": "uid-holds"}], "NumPDBViolations": 0}}
    return await stowage.preempt(pod, victims)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
async def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(start: Start, verb: str) -> None:
    stowage = await start(*CLUSTER, bind=True)
    before = fingerprint(stowage.service.engine.state)
    pods = [("new", 1), ("new", 8), ("new", 9), ("new", -1), ("waits", 2), ("holds", 6), ("promised", 2)]
    for pod in pods:
        first = await ask(stowage, verb, *pod)
        assert fingerprint(stowage.service.engine.state) == before, pod
        assert [await ask(stowage, verb, *pod) for _ in range(3)] == [first] * 3, pod


async def test_questions_about_one_pod_do_not_change_the_answer_for_another(start: Start) -> None:
    stowage = await start(*CLUSTER)
    before = await ask(stowage, "filter", "new", 2), await ask(stowage, "prioritize", "new", 2)
    for gpus in (1, 4, 8, 64):
        for verb in ("filter", "prioritize", "preempt"):
            await ask(stowage, verb, f"other-{gpus}", gpus)
    assert before == (await ask(stowage, "filter", "new", 2), await ask(stowage, "prioritize", "new", 2))
