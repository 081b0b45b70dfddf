"""A shard: which nodes and pods pass, and what happens to a node that changes sides."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source.errors import Unavailable, Unreachable
from extender.source.shard import Shard
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.extender.apiserver import ApiServer, node, pod, source_of

OURS = "stowage-a"


class Books:
    """What has passed. ``on_join`` is called when a node comes."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self.on_join: Callable[[str], None] = lambda name: None

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Upserted(Node() as one):
                    if one.name not in self.nodes:
                        self.on_join(one.name)
                    self.nodes.add(one.name)
                case Upserted(Pod() as one):
                    self.pods[one.key] = one
                case Deleted("Node", key):
                    self.nodes.discard(key)
                case Deleted("Pod", key):
                    self.pods.pop(key, None)
                case Listed("Pod", keys):
                    self.pods = {key: one for key, one in self.pods.items() if key in keys}


def a_pod(name: str, on: str = "", scheduler: str = "others", nominated: str = "") -> Pod:
    return Pod("ml", name, f"u-{name}", node_name=on, scheduler_name=scheduler, nominated_node=nominated)


def place_of(pod: Pod) -> str:
    """The node that it is bound or nominated to, "" for none."""
    return pod.node_name or pod.nominated_node


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_shard(pods_on: Callable[[str], Sequence[Pod]] = lambda name: ()) -> tuple[Shard, Books]:
    """A shard whose nodes n1 and n2 are listed; the pods are listed, too."""
    shard, books = Shard([OURS], pods_on, now=Clock()), Books()
    take = shard.filtered(books.apply)
    take([Upserted(Node("n1")), Upserted(Node("n2")), Listed("Node", frozenset({"n1", "n2"}))])
    take([Listed("Pod", frozenset())])
    return shard, books


def test_a_list_of_pods_names_only_ours() -> None:
    shard, books = a_shard()
    shard.filtered(books.apply)([Upserted(a_pod("p", "n1")), Upserted(a_pod("q", "n1"))])
    passed: list[Event] = []
    shard.filtered(passed.extend)([Listed("Pod", frozenset({"ml/p", "ml/theirs"}))])
    assert passed == [Listed("Pod", frozenset({"ml/p"}))]
    shard.filtered(passed.extend)([Listed("Pod", frozenset(), began=7.0)])
    assert passed[1:] == [Listed("Pod", frozenset(), began=7.0)]


def test_a_node_that_joins_comes_with_its_pods_after_a_while() -> None:
    shard, books = a_shard(lambda name: [a_pod("old", name)])
    clock = Clock()
    shard._now = clock
    shard.filtered(books.apply)([Upserted(Node("n3"))])
    clock.now = 9.9
    assert not shard._due()
    clock.now = 10.0
    assert shard._due() == ["n3"]
    assert "n3" not in books.nodes
    shard.let_in("n3", books.apply)
    assert "n3" in books.nodes
    assert books.pods.keys() == {"ml/old"}


def test_a_node_stays_out_until_its_pods_can_be_read() -> None:
    answers: deque[Sequence[Pod] | Exception] = deque([Unreachable("no answer"), [a_pod("old", "n3")]])

    def pods_on(name: str) -> Sequence[Pod]:
        answer = answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    shard, books = a_shard(pods_on)
    shard.filtered(books.apply)([Upserted(Node("n3"))])
    shard.let_in("n3", books.apply)
    assert "n3" not in books.nodes
    shard.let_in("n3", books.apply)
    assert "n3" in books.nodes
    assert books.pods.keys() == {"ml/old"}


def test_a_node_that_leaves_while_its_pods_are_read_stays_out() -> None:
    shard, books = a_shard()
    take = shard.filtered(books.apply)

    def leaves(name: str) -> Sequence[Pod]:
        take([Upserted(a_pod("new", name)), Deleted("Node", name)])
        return [a_pod("old", name)]

    shard._pods_on = leaves
    take([Upserted(Node("n3"))])
    shard.let_in("n3", books.apply)
    assert "n3" not in books.nodes
    assert not books.pods


def test_a_pod_that_ends_while_the_pods_are_read_does_not_come_back() -> None:
    shard, books = a_shard()
    take = shard.filtered(books.apply)

    def ends(name: str) -> Sequence[Pod]:
        take([Deleted("Pod", "ml/old")])
        return [a_pod("old", name)]

    shard._pods_on = ends
    take([Upserted(Node("n3"))])
    shard.let_in("n3", books.apply)
    assert "n3" in books.nodes
    assert not books.pods


def test_a_node_that_joins_comes_with_the_pods_that_others_have_nominated_to_it() -> None:
    shard, books = a_shard()
    take = shard.filtered(books.apply)
    names = ("waits", "cleared", "moved", "bound", "gone", "unlisted")
    take([Upserted(a_pod(name, nominated="n3")) for name in names])
    changed = a_pod("cleared"), a_pod("moved", nominated="n9"), a_pod("bound", "n9")
    take([*map(Upserted, changed), Deleted("Pod", "ml/gone")])
    take([Listed("Pod", frozenset(f"ml/{name}" for name in names[:4]))])
    take([Upserted(Node("n3"))])
    shard.let_in("n3", books.apply)
    assert books.pods.keys() == {"ml/waits"}


class Cluster:
    """Nodes that change sides and pods that come and go, with a watch of each that lags behind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ours: dict[str, bool] = {f"n{number}": number % 2 == 0 for number in range(4)}
        self.pods: dict[str, Pod] = {}
        self.clock, self.books, self.numbers = Clock(), Books(), 0
        self.watches: dict[str, deque[Event]] = {"Node": deque(), "Pod": deque()}
        self.shard = Shard([OURS], self.pods_on, now=self.clock)
        self.take = self.shard.filtered(self.books.apply)
        ours = frozenset(name for name, here in self.ours.items() if here)
        self.take([*(Upserted(Node(name)) for name in sorted(ours)), Listed("Node", ours)])
        self.take([Listed("Pod", frozenset())])
        self.books.on_join = self.check_join

    def pods_on(self, name: str) -> Sequence[Pod]:
        """What the API server has; meanwhile the watches go on."""
        for _ in range(self.random.randrange(3)):
            self.deliver()
        listed = [one for one in self.pods.values() if one.node_name == name]
        for _ in range(self.random.randrange(12)):
            self.random.choice((self.step, self.deliver))()
        return listed

    def check_join(self, name: str) -> None:
        """Whoever is bound or nominated there, and is not about to be shown as gone, is known when the node
        comes."""
        coming = {
            event.obj.key if isinstance(event, Upserted) else event.key for event in self.watches["Pod"]
        }
        there = {key for key, one in self.pods.items() if place_of(one) == name}
        assert there - coming <= self.books.pods.keys()

    def step(self) -> None:
        """Something happens in the cluster."""
        match self.random.randrange(6):
            case 0:
                name = self.random.choice(list(self.ours))
                self.ours[name] = not self.ours[name]
                event = Upserted(Node(name)) if self.ours[name] else Deleted("Node", name)
                self.watches["Node"].append(event)
            case 1:
                self.numbers += 1
                self.change(a_pod(f"p{self.numbers}", scheduler=self.random.choice((OURS, "others"))))
            case 2:
                waiting = [one for one in self.pods.values() if not one.node_name]
                if waiting:
                    node = self.random.choice(list(self.ours))
                    self.change(replace(self.random.choice(waiting), node_name=node))
            case 5:
                waiting = [one for one in self.pods.values() if not one.node_name]
                if waiting:
                    node = self.random.choice(["", *self.ours])
                    self.change(replace(self.random.choice(waiting), nominated_node=node))
            case 3 if self.pods:
                self.numbers += 1
                one = self.random.choice(list(self.pods.values()))
                self.change(replace(one, annotations={"version": str(self.numbers)}))
            case 4 if self.pods:
                key = self.random.choice(list(self.pods))
                del self.pods[key]
                self.watches["Pod"].append(Deleted("Pod", key))

    def change(self, one: Pod) -> None:
        self.pods[one.key] = one
        self.watches["Pod"].append(Upserted(one))

    def deliver(self) -> None:
        """A watch shows its next event."""
        for kind in self.random.sample(list(self.watches), 2):
            if self.watches[kind]:
                self.take([self.watches[kind].popleft()])
                return

    def let_in(self) -> None:
        for name in self.shard._due():
            self.shard.let_in(name, self.books.apply)


@pytest.mark.parametrize("seed", range(300))
def test_in_the_end_the_books_are_those_of_the_shard(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(60):
        cluster.random.choice((cluster.step, cluster.deliver, cluster.deliver, cluster.let_in))()
        cluster.clock.now += cluster.random.choice((0.0, 4.0))
    while any(cluster.watches.values()) or cluster.shard._joining:
        cluster.deliver()
        cluster.clock.now += 10.0
        cluster.let_in()
    nodes = {name for name, ours in cluster.ours.items() if ours}
    assert cluster.books.nodes == nodes
    expected = {
        key: one for key, one in cluster.pods.items() if one.scheduler_name == OURS or place_of(one) in nodes
    }
    assert cluster.books.pods == expected
    assert cluster.shard._node_of.keys() == expected.keys()


async def test_a_live_source_selects_nodes_and_lists_them_before_pods(api: ApiServer, tmp_path: Path) -> None:
    api.put(node("n1"))
    for name, where in (("p1", "n1"), ("p2", "n9"), ("p3", "")):
        api.put(pod(name, where))
    source, books = source_of(api, tmp_path), Books()
    source.select_nodes("pool in (a, b)", [OURS])
    source.start(books.apply)
    try:
        while "ml/p1" not in books.pods:
            await asyncio.sleep(0.01)
        assert await source.caught_up()
    finally:
        source.stop()
    assert books.nodes == {"n1"}
    assert books.pods.keys() == {"ml/p1"}
    asked = [(path, query.get("labelSelector")) for path, query in api.requests]
    assert asked.index(("/api/v1/nodes", "pool in (a, b)")) < asked.index(("/api/v1/pods", None))
    assert {selector for path, selector in asked if path == "/api/v1/nodes"} == {"pool in (a, b)"}


def test_a_source_that_is_stopped_before_the_nodes_are_listed(api: ApiServer, tmp_path: Path) -> None:
    api.script["/api/v1/nodes"].append("silent")
    source = source_of(api, tmp_path)
    source.select_nodes("pool=a", [OURS])
    source.start(lambda events: None)
    source.stop()
    assert not any(path == "/api/v1/pods" for path, _ in api.requests)


def test_a_file_cannot_be_a_shard() -> None:
    with pytest.raises(Unavailable, match="node_selector"):
        SnapshotSource(Snapshot(), "a file").select_nodes("pool=a", [OURS])
