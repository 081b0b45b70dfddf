"""A session of Volcano in the books: what is held, for whom, and when it ends."""

from __future__ import annotations

from extender.cluster.reservations import TIME_TO_LIVE
from extender.cluster.state import State
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from extender.protocol.volcano import Code, Task, TaskStatus, Vote
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.untrusted.limits import VOLCANO_NODES
from extender.verbs.bind import expire_assumed
from extender.verbs.volcano_verbs import (
    POINTS,
    VolcanoSession,
    allocate,
    deallocate,
    predicate,
    prioritize_nodes,
    victims,
)
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state

FITS = ("", Code.SUCCESS)
FULL = (Reason.NO_FREE_GPUS.text, Code.UNSCHEDULABLE)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Volcano:
    """Calls the verbs as Volcano does. ``there``: the pods that it counts on every node."""

    def __init__(self, *objects: Node | Pod) -> None:
        self.clock = Clock()
        self.state: State = make_state(*objects)
        self.session = VolcanoSession(self.state, clock=self.clock)
        self.there: set[str] = set()

    def predicate(self, pod: Pod, node: str = "a") -> tuple[str, Code]:
        counted = b",".join(b'{"UID":"%b"}' % uid.encode() for uid in sorted(self.there))
        return predicate(self.session, pod, node, counted)

    def allocate(self, pod: Pod, status: TaskStatus = TaskStatus.ALLOCATED, node: str = "a") -> str:
        task = Task(UID=pod.uid, NodeName=node, Status=status)
        if not (error := allocate(self.session, task, self.state.pods.by_uid(pod.uid))):
            self.there.add(pod.uid)
        return error

    def deallocate(self, pod: Pod, status: TaskStatus = TaskStatus.PENDING) -> None:
        deallocate(self.session, Task(UID=pod.uid, NodeName="a", Status=status))
        if status == TaskStatus.PENDING:
            self.there.discard(pod.uid)

    def evict(self, pod: Pod) -> None:
        self.deallocate(pod, TaskStatus.RELEASING)

    def shows(self, pod: Pod) -> None:
        """The watch shows a pod."""
        self.state.apply([Upserted(pod)])


FIVE, SIX = make_pod("five", 5), make_pod("six", 6)


def test_what_is_allocated_is_taken_and_what_is_given_up_is_free() -> None:
    volcano = Volcano(make_node("a"), FIVE, SIX)
    assert volcano.predicate(SIX) == FITS
    assert not volcano.allocate(SIX)
    assert volcano.predicate(FIVE) == FULL
    assert volcano.predicate(SIX) == FITS  # its own place does not count against it
    volcano.deallocate(SIX)
    assert volcano.predicate(FIVE) == FITS
    assert not len(volcano.session)


def test_the_watch_takes_over() -> None:
    volcano = Volcano(make_node("a"), FIVE, SIX)
    volcano.allocate(SIX)
    bound = make_pod("six", 6, node_name="a")
    volcano.shows(bound)
    volcano.deallocate(SIX)  # Volcano failed to bind it a second time: it is bound all the same
    assert volcano.predicate(FIVE) == FULL
    volcano.state.apply([Deleted("Pod", SIX.key)])
    assert volcano.predicate(FIVE) == FITS


def test_a_place_that_volcano_gave_up_between_sessions_is_free() -> None:
    """A job that is not ready at the end of a session keeps nothing, and no call says so."""
    volcano = Volcano(make_node("a"), FIVE, SIX)
    volcano.allocate(SIX)
    assert volcano.predicate(FIVE) == FULL
    volcano.session.end()
    assert volcano.predicate(FIVE) == FULL  # Volcano still counts it there: it is being bound
    volcano.there.clear()
    assert volcano.predicate(FIVE) == FITS
    assert not volcano.state.assumed_pods


def test_a_pod_that_volcano_asks_about_again_has_no_place() -> None:
    volcano = Volcano(make_node("a"), make_node("b"), FIVE, SIX)
    volcano.allocate(SIX)
    volcano.session.end()
    volcano.predicate(SIX, "b")
    assert volcano.predicate(FIVE) == FITS


async def test_what_a_volcano_that_died_held_is_looked_up_after_a_minute() -> None:
    volcano = Volcano(make_node("a"), FIVE, SIX)
    volcano.allocate(SIX)
    source = SnapshotSource(Snapshot({}, {SIX.key: SIX}), "test")
    for later, expected in ((TIME_TO_LIVE - 1, FULL), (TIME_TO_LIVE + 1, FITS)):
        await expire_assumed(volcano.state, source, volcano.clock.now + later)
        assert volcano.predicate(FIVE) == expected


def test_who_waits_for_room_holds_it_until_the_session_ends() -> None:
    low = make_pod("low", 8, node_name="a")
    volcano = Volcano(make_node("a"), low, FIVE, SIX)
    volcano.evict(low)
    assert volcano.predicate(SIX) == FITS
    assert not volcano.allocate(SIX, TaskStatus.PIPELINED)
    assert volcano.predicate(FIVE) == FULL
    assert not volcano.state.overcommitted
    volcano.session.end()
    assert volcano.predicate(FIVE) == FITS


def test_an_eviction_that_did_not_happen_is_forgotten() -> None:
    low = make_pod("low", 8, node_name="a")
    volcano = Volcano(make_node("a"), low, SIX)
    volcano.evict(low)
    volcano.clock.now += TIME_TO_LIVE + 1
    assert volcano.predicate(SIX) == FULL
    volcano.evict(low)
    assert volcano.predicate(SIX) == FITS
    assert not allocate(volcano.session, Task(UID=low.uid, NodeName="a", Status=32), low)  # it runs on
    assert volcano.predicate(SIX) == FULL


def test_holds_that_the_watch_has_shown_are_not_kept() -> None:
    pods = [make_pod(f"p{n}", 1) for n in range(600)]
    nodes = [make_node(f"n{n}", 8, cpu="64") for n in range(100)]
    volcano = Volcano(*nodes, *pods)
    for number, pod in enumerate(pods):
        node = f"n{number // 8}"
        assert not volcano.allocate(pod, node=node)
        volcano.shows(make_pod(pod.name, 1, node_name=node))
    assert len(volcano.session) <= 256


def tasks(*pods: Pod) -> list[Task]:
    return [Task(UID=pod.uid, NodeName=pod.node_name, Status=32) for pod in pods]


URGENT = make_pod("urgent", 4, priority=100)


def test_of_candidates_on_many_nodes_those_of_the_first_nodes_are_taken_all() -> None:
    names = [f"n{number}" for number in range(VOLCANO_NODES + 1)]
    halves = [make_pod(f"{half}-{name}", 4, node_name=name) for half in ("first", "second") for name in names]
    whole = make_pod("whole", 8, priority=100)
    volcano = Volcano(*(make_node(name) for name in names), *halves, whole)
    plans = victims(volcano.session, whole, tasks(*halves)).plans
    assert [plan.node for plan in plans] == names[:VOLCANO_NODES]


def test_where_the_pod_fits_volcano_may_evict_for_its_own_reasons() -> None:
    """Such as the bounds of a queue. Whom the rules protect stays protected."""
    low, high = make_pod("low", 1, node_name="a"), make_pod("high", 1, node_name="a", priority=500)
    volcano = Volcano(make_node("a"), low, high, URGENT)
    found = victims(volcano.session, URGENT, tasks(low, high))
    assert (found.vote, found.uids) == (Vote.PERMIT, {low.uid})


def test_scores_once_others_have_left() -> None:
    low, gone = make_pod("low", 8, node_name="a"), make_pod("gone", 8, node_name="b", deleting=True)
    volcano = Volcano(make_node("a"), make_node("b"), low, gone, SIX)
    assert prioritize_nodes(volcano.session, SIX, ["a", "b"]) == {"a": 0.0, "b": 10 * POINTS}
