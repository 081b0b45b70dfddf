"""Plans are made in pieces, and requests are answered in between. A piece is counted in nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor import planner
from extender.evictor.book import Schedulers
from extender.evictor.planner import Asked, Planner
from extender.k8s.objects import Pod, Upserted
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from tests.extender.builders import NOW, make_node, make_pod, make_state
from tests.extender.evictor.test_gang_room import member

MOST_NODES_IN_A_PIECE = 4
NODES = 60


class Pieces:
    """Counts the nodes that are searched in each turn of the event loop, and what is held between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: Planner, state: State) -> None:
        self.planner, self.state, self._turn, self.nodes = made, state, 0, dict[int, int]()
        monkeypatch.setattr(planner, "plan_evictions", self._plan)

    def _plan(
        self, state: Any, pod: Pod, nodes: Sequence[str], *args: Any, **more: Any
    ) -> list[EvictionPlan]:
        self.nodes[self._turn] = self.nodes.get(self._turn, 0) + len(nodes)
        return plan_evictions(state, pod, nodes, *args, **more)

    async def turns(self) -> None:
        while True:
            self._turn += 1
            assert not self.state.reservations.by_reason(Reserved.SUPPOSED)  # requests see nothing of a plan
            await asyncio.sleep(0)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    """A gang of 16, of which one is larger than any node. Small pods of lower priority fill the nodes."""
    nodes = [make_node(f"n{number}", gpus=8) for number in range(NODES)]
    running = [
        make_pod(f"v{number}-{gpu}", node_name=f"n{number}", started=NOW - 3600 * (1 + number))
        for number in range(NODES)
        for gpu in range(8)
    ]
    gang = [member("p", 16, gpus=8), *(member(f"q{number}", 16, gpus=8) for number in range(14))]
    state = make_state(*nodes, *running, *gang, member("large", 16, gpus=9))
    asked = Asked(Schedulers(["default-scheduler"]), lambda uid: [])
    return Pieces(monkeypatch, Planner(state, asked, lambda: NOW), state)


async def test_neither_a_plan_nor_a_gang_searches_many_nodes_at_once(pieces: Pieces) -> None:
    turns = asyncio.create_task(pieces.turns())
    pod = pieces.state.pods["default/p"]
    plan, _ = await pieces.planner.plan(pod)
    assert plan is not None
    assert not await pieces.planner.gang_fits(pod, plan)
    turns.cancel()
    assert max(pieces.nodes.values()) <= MOST_NODES_IN_A_PIECE
    assert sum(pieces.nodes.values()) > 14 * NODES


async def test_the_plan_in_pieces_is_the_best_of_all_nodes(pieces: Pieces) -> None:
    state = pieces.state
    pod = state.pods["default/p"]
    plan, _ = await pieces.planner.plan(pod)
    assert plan is not None
    [best, *_] = plan_evictions(state, pod, list(state.nodes), NOW, to_equals=True, whole_gangs=True)
    assert (plan.node, plan.cost) == (best.node, best.cost)


async def test_a_plan_that_is_overtaken_is_not_confirmed(pieces: Pieces) -> None:
    state = pieces.state
    pod = state.pods["default/p"]
    plan, _ = await pieces.planner.plan(pod)
    assert plan is not None
    assert pieces.planner.confirmed(pod, plan, ()) == plan
    blocked = make_pod("urgent", 1, node_name=plan.node, priority=1000)
    state.apply([Upserted(blocked)])
    assert pieces.planner.confirmed(pod, plan, ()) is None
