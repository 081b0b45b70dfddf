"""Nobody is evicted for a member of a gang that would not run as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.reservations import Reserved
from extender.evictor.book import Schedulers
from extender.evictor.decision import best_plan
from extender.evictor.planner import Asked, Planner
from extender.k8s.objects import Node, Pod
from extender.trial.room_by_moves import MOST_MEMBERS
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from tests.extender.builders import make_node, make_pod, make_state

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"


def member(name: str, count: int, gpus: int = 1, **more: Any) -> Pod:
    more = {"unscheduled": "Unschedulable", "priority": 100} | more
    return make_pod(name, gpus, labels={KUEUE_GROUP: "g"}, annotations={KUEUE_COUNT: str(count)}, **more)


def victims(node: str, count: int, **more: Any) -> list[Pod]:
    return [
        make_pod(f"v-{node}-{number}", node_name=node, phase="Running", **more) for number in range(count)
    ]


async def fits(*objects: Node | Pod) -> bool:
    """Whether the gang of the pod "p" fits, with the best plan for "p"."""
    state = make_state(*objects)
    nodes = [one.name for one in objects if isinstance(one, Node)]
    pod = state.pods["default/p"]
    plan: EvictionPlan | None
    plan, _ = best_plan(plan_evictions(state, pod, nodes, 0.0))
    assert plan is not None
    free = state.fleet.arrays.compute.copy()
    asked = Asked(Schedulers(), lambda uid: [])
    answer = await Planner(state, asked, lambda: 0.0).gang_fits(pod, plan)
    assert not state.reservations.by_reason(Reserved.SUPPOSED)
    assert (state.fleet.arrays.compute == free).all()
    return answer


NODE = make_node("n1", gpus=2)


@pytest.mark.parametrize(("room", "expected"), [(2, True), (1, False)])
async def test_members_on_one_node(room: int, expected: bool) -> None:
    """Both need a GPU of the same node. The second is never evictable where the first was counted."""
    others = victims("n1", room) + [make_pod("stays", 2 - room, node_name="n1", priority=1000)][: 2 - room]
    assert await fits(NODE, *others, member("p", 2), member("q", 2)) is expected


async def test_members_on_several_nodes() -> None:
    small = [make_node(f"m{number}", gpus=1) for number in range(3)]
    full = [one for node in small for one in victims(node.name, 1)]
    gang = [member("p", 3), member("q", 3), member("r", 3)]
    assert await fits(*small, *full, *gang)
    assert not await fits(*small[:2], *full[:2], *gang)


async def test_a_gang_whose_other_members_have_room() -> None:
    bound, nominated = member("q", 3, node_name="n9"), member("r", 3, nominated_node="n9")
    assert await fits(NODE, *victims("n1", 2), member("p", 3), bound, nominated)
    assert not await fits(NODE, *victims("n1", 2), member("p", 3, gpus=2), bound, member("r", 3))


async def test_members_that_have_succeeded_need_none() -> None:
    ended = member("q", 2, node_name="n9", phase="Succeeded")
    assert await fits(NODE, *victims("n1", 2), member("p", 2), ended)
    assert not await fits(NODE, *victims("n1", 2), member("p", 2), replace(ended, phase="Failed"))


async def test_a_gang_that_is_not_complete_or_too_large_gets_nothing() -> None:
    assert not await fits(NODE, *victims("n1", 2), member("p", 2))
    assert not await fits(
        NODE, *victims("n1", 2), member("p", 2), member("q", 2, gates=("example.com/gate",))
    )
    assert not await fits(NODE, *victims("n1", 2), member("p", 2), member("q", 2, deleting=True))
    wide = make_node("n1", gpus=32)
    count = MOST_MEMBERS + 2
    gang = [member(f"q{number}", count) for number in range(count - 1)]
    assert not await fits(wide, *victims("n1", 32), member("p", count), *gang)
