"""The books against a trivial oracle, through whatever can happen between Stowage and the API server.

The oracle is the API server's truth: pods, each on one node and one GPU or waiting. Stowage sees it through a
watch that lags, and changes it through bindings that are answered, refused, lost, or made and then lost. At
every moment no GPU may hold more than it has, in truth and in what may become true; and whatever is true, or
may be, is in the books. Once nothing is under way, the books are the truth and hold nothing else. Owners edit
the annotations of pods that run; what they were bound with is what they hold.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.cluster.assumed_pods import TIME_TO_LIVE
from extender.cluster.state import State
from extender.k8s.objects import Container, Deleted, Event, Listed, Node, Pod, PodSpec, Upserted
from extender.protocol.codec import BindArgs
from extender.server.assumed_pod_expiry import check
from extender.settings import Settings
from extender.source.interface import BindConflict, BindError, PodNotFound, Unreachable
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.verbs.bind import Binder
from packing.policies.registry import POLICIES

NODES = ("n1", "n2")
GPUS, MIB = 2, 1000
SIZES = (300, 500, 700, 1000)
COMPUTE, INDICES = "stowage.dev/gpu-compute", "stowage.dev/gpu-indices"
names, nodes, sizes = st.sampled_from("abcd"), st.sampled_from(NODES), st.sampled_from(SIZES)
calls = st.lists(st.tuples(names, nodes), min_size=1, max_size=4)
which = st.integers(0, 7)
edits = st.sampled_from(
    [
        {},
        {COMPUTE: "1m", INDICES: "1"},
        {COMPUTE: "a lot", INDICES: "0"},
        {COMPUTE: "1m", "gpu-fraction": "0.9"},
        {INDICES: "0,1", "stowage.dev/nvlink": "yes"},
        {COMPUTE: "300m", INDICES: "zero", "hami.io/vgpu-devices-allocated": ";"},
    ]
)
answered = st.sampled_from(["ok", "refused", "made", "lost", "late"])


def make_node(name: str) -> Node:
    labels = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    labels |= {"nvidia.com/gpu.memory": str(MIB), "nvidia.com/gpu.count": str(GPUS)}
    return Node(name, labels=labels, allocatable={"cpu": "64", "memory": "512Gi"})


def size_of(pod: Pod) -> int:
    return int(pod.annotations[COMPUTE].removesuffix("m"))


@dataclass
class Binding:
    """A Binding that was sent: the pod as it will be, and where its answer goes (None: it is not awaited)."""

    pod: Pod
    answer: asyncio.Future[None] | None


class Truth(SnapshotSource):
    """The API server: what is true, the events that tell of it, and the bindings that are on their way."""

    def __init__(self) -> None:
        super().__init__(Snapshot(), "truth")
        self.nodes: dict[str, Node] = {name: make_node(name) for name in NODES}
        self.pods: dict[str, Pod] = {}
        self.events: deque[Event] = deque()
        self.sent: list[Binding] = []
        self.answers = True  # whether a look-up is answered

    def put(self, pod: Pod) -> None:
        self.pods[pod.key] = pod
        self.events.append(Upserted(pod))

    def everything(self) -> list[Event]:
        listed = [*map(Upserted, self.nodes.values()), Listed("Node", frozenset(self.nodes))]
        return [*listed, *map(Upserted, self.pods.values()), Listed("Pod", frozenset(self.pods))]

    def make(self, pod: Pod) -> None:
        """Make a binding, as the API server does. Raises BindError."""
        now = self.pods.get(pod.key)
        if now is None:
            raise PodNotFound("no such pod")
        if now.uid != pod.uid or now.node_name or now.terminated:
            raise BindConflict("not this one, or not any more")
        self.put(replace(now, node_name=pod.node_name, nominated_node="", annotations=pod.annotations))

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        placed = replace(pod, node_name=node, annotations={**pod.annotations, **(annotations or {})})
        self.sent.append(Binding(placed, answer))
        await answer

    async def look_up(self, pod: Pod) -> Pod | None:
        if not self.answers:
            raise Unreachable("no answer")
        return self.pods.get(pod.key)

    async def pods_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node_name == node]


class Books(RuleBasedStateMachine):
    """Random interleavings of all that."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.truth = Truth()
        self.uids = 0
        self.bound_with: dict[str, Pod] = {}  # of those that have ever been edited
        self.binds: list[asyncio.Task[str]] = []

    @initialize(sizes=st.lists(sizes, min_size=4, max_size=4))
    def set_up(self, sizes: list[int]) -> None:
        for name, size in zip("abcd", sizes, strict=True):
            self.create(name, size)
        self.begin()

    def begin(self) -> None:
        """A fresh Stowage, as after a start or a restart: it knows nothing but what it lists."""
        self.truth.events.clear()
        self.become(self.truth.everything())

    def become(self, known: Iterable[Event]) -> None:
        """A Stowage that has seen these events, and has not been asked anything yet."""
        self.state = State(POLICIES["best-fit"]())
        self.state.binds = True
        self.binder = Binder(self.state, self.truth, Settings(bind=True))
        self.state.apply(list(known))
        known_bound = {pod.uid for pod in self.state.pods.values() if pod.node_name}
        self.unseen = {pod.uid for pod in self.held_in_truth()} - known_bound

    # What others do to the cluster.

    @rule(name=names, size=sizes)
    def create(self, name: str, size: int) -> None:
        if f"d/{name}" in self.truth.pods:
            return
        self.uids += 1
        spec = PodSpec((Container("main", (("cpu", "1"),)),))
        self.truth.put(Pod("d", name, f"u{self.uids}", spec, annotations={COMPUTE: f"{size}m"}))

    @rule(name=names)
    def delete(self, name: str) -> None:
        if pod := self.truth.pods.pop(f"d/{name}", None):
            self.truth.events.append(Deleted("Pod", pod.key))

    @rule(name=names)
    def finish(self, name: str) -> None:
        pod = self.truth.pods.get(f"d/{name}")
        if pod and pod.node_name:
            self.truth.put(replace(pod, phase="Succeeded"))

    @rule(name=names, change=edits)
    def edit(self, name: str, change: dict[str, str]) -> None:
        """The owner edits the annotations of a pod that runs."""
        pod = self.truth.pods.get(f"d/{name}")
        if pod and pod.node_name and not pod.terminated and self.knows_bound(pod.uid):
            self.bound_with.setdefault(pod.uid, pod)
            self.truth.put(replace(pod, annotations=change))

    def knows_bound(self, uid: str) -> bool:
        """Whether Stowage knows for sure that the pod is bound, and as what."""
        known = self.state.pod_by_uid(uid)
        return bool(known and known.node_name) or any(one.sure for one in self.state.assumed_pods.of(uid))

    def as_bound(self, pod: Pod) -> Pod:
        bound = self.bound_with.get(pod.uid, pod)
        return replace(pod, annotations=bound.annotations) if pod.node_name == bound.node_name else pod

    def repair(self) -> None:
        """A Stowage that starts anew believes what it finds, so all is as it was bound by then."""
        for pod in self.held_in_truth():
            if pod != self.as_bound(pod):
                self.truth.put(self.as_bound(pod))

    @rule(name=names, node=nodes)
    def nominate(self, name: str, node: str) -> None:
        pod = self.truth.pods.get(f"d/{name}")
        if pod and not pod.node_name:
            self.truth.put(replace(pod, nominated_node=node))

    @rule(name=nodes)
    def node_goes_or_comes(self, name: str) -> None:
        if self.truth.nodes.pop(name, None):
            self.truth.events.append(Deleted("Node", name))
        else:
            self.truth.nodes[name] = make_node(name)
            self.truth.events.append(Upserted(self.truth.nodes[name]))

    # What Stowage is told.

    @precondition(lambda self: self.truth.events)
    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.truth.events))):
            event = self.truth.events.popleft()
            before = self.state.pods.get(event.key) if isinstance(event, Deleted) else None
            self.state.apply([event])
            if isinstance(event, Upserted) and isinstance(event.obj, Pod) and event.obj.node_name:
                self.unseen.discard(event.obj.uid)
            if before:
                self.nothing_is_tentative_of([before.uid])
            elif isinstance(event, Upserted) and isinstance(event.obj, Pod) and event.obj.node_name:
                self.nothing_is_tentative_of([event.obj.uid])

    @rule()
    def relist(self) -> None:
        before = {pod.uid for pod in self.state.pods.values()}
        self.truth.events.clear()
        self.unseen.clear()
        self.state.apply(self.truth.everything())
        listed = {pod.uid: pod for pod in self.truth.pods.values()}
        self.nothing_is_tentative_of(before - listed.keys())
        self.nothing_is_tentative_of(pod.uid for pod in listed.values() if pod.node_name)

    def nothing_is_tentative_of(self, uids: Iterable[str]) -> None:
        """One event is enough."""
        assert not any(self.state.assumed_pods.of(uid) for uid in uids)

    # What kube-scheduler asks, and what becomes of the bindings.

    @rule(calls=calls)
    def bind(self, calls: list[tuple[str, str]]) -> None:
        for name, node in calls:
            pod = self.truth.pods.get(f"d/{name}")  # kube-scheduler may know it before Stowage does
            if pod and pod.uid not in self.bound_with:  # else it has been bound for long
                known = self.state.pod_by_uid(pod.uid) or replace(self.as_bound(pod), node_name="")
                args = BindArgs(pod.namespace, pod.name, pod.uid, node)
                self.binds.append(self.loop.create_task(self.binder.bind(known, args)))
        self.turn()

    @precondition(lambda self: self.awaited())
    @rule(outcomes=st.lists(st.tuples(which, answered, st.booleans()), min_size=1, max_size=4))
    def answer(self, outcomes: list[tuple[int, str, bool]]) -> None:
        """Bindings are answered in any order; the boolean: whether a look-up after it is answered, too."""
        for index, outcome, answers in outcomes[: len(self.awaited())]:
            binding = self.awaited()[index % len(self.awaited())]
            self.truth.answers = answers
            self.reconcile_claims(binding, outcome)
            self.turn()
        self.truth.answers = True

    def reconcile_claims(self, binding: Binding, outcome: str) -> None:
        """``made``: it happens, and nobody says so. ``late``: so, but some time after the client gave up."""
        answer, binding.answer = binding.answer, None
        assert answer is not None
        if outcome != "late":
            self.truth.sent.remove(binding)
        error: BindError | None = BindError("forbidden") if outcome == "refused" else Unreachable("no answer")
        if outcome in ("ok", "made"):
            try:
                self.truth.make(binding.pod)
                error = None if outcome == "ok" else error
            except BindError as conflict:
                error = conflict if outcome == "ok" else error
        if error:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    @precondition(lambda self: self.abandoned())
    @rule(index=which)
    def come_through(self, index: int) -> None:
        """A binding whose client gave up."""
        binding = self.abandoned()[index % len(self.abandoned())]
        self.truth.sent.remove(binding)
        self.make_if_possible(binding)

    @rule(answers=st.booleans())
    def time_to_live_passes(self, answers: bool) -> None:
        """Longer than the API server works on a request that nobody awaits."""
        for binding in self.abandoned():
            self.truth.sent.remove(binding)
        self.truth.answers = answers
        now = time.monotonic() + TIME_TO_LIVE + 1
        self.loop.run_until_complete(check(self.state, self.truth, now))
        self.truth.answers = True

    @rule(made=st.booleans())
    def restart(self, made: bool) -> None:
        """The process is killed."""
        self.end(made)
        self.repair()
        self.begin()

    @rule(made=st.booleans(), calls=calls)
    def take_over(self, made: bool, calls: list[tuple[str, str]]) -> None:
        """Another replica is asked from now on. Its watch is as far as that of the one before."""
        self.end(made)
        known = [*self.state.nodes.values(), *map(self.as_bound, self.state.pods.values())]
        self.repair()
        self.become(map(Upserted, known))
        self.bind(calls)

    def end(self, made: bool) -> None:
        """A process that is killed ends its requests: what it asked for is made by now, or never."""
        for binding in self.truth.sent:
            if made:
                self.make_if_possible(binding)
        self.truth.sent.clear()
        for task in self.binds:
            task.cancel()
        self.turn()
        self.binds.clear()

    def make_if_possible(self, binding: Binding) -> None:
        with suppress(BindError):
            self.truth.make(binding.pod)

    def awaited(self) -> list[Binding]:
        return [binding for binding in self.truth.sent if binding.answer]

    def abandoned(self) -> list[Binding]:
        return [binding for binding in self.truth.sent if not binding.answer]

    def turn(self) -> None:
        for _ in range(8):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in [task for task in self.binds if task.done()]:
            self.binds.remove(task)
            assert task.cancelled() or isinstance(task.result(), str)

    # What must hold.

    def held_in_truth(self) -> list[Pod]:
        return [pod for pod in self.truth.pods.values() if pod.node_name and not pod.terminated]

    def possible(self) -> list[Pod]:
        """Every pod as it is held, or may come to be held by a binding on its way."""
        waiting = {pod.uid for pod in self.truth.pods.values() if not pod.node_name}
        return [*map(self.as_bound, self.held_in_truth())] + [
            one.pod for one in self.truth.sent if one.pod.uid in waiting
        ]

    @invariant()
    def no_gpu_is_given_out_twice(self) -> None:
        held: Counter[tuple[str, str]] = Counter()
        for pod in {(pod.uid, pod.node_name): pod for pod in self.possible()}.values():
            held[pod.node_name, pod.annotations[INDICES]] += size_of(pod)
        assert all(milli <= 1000 for milli in held.values()), held

    @invariant()
    def what_is_true_or_may_be_is_in_the_books(self) -> None:
        books = self.in_the_books()
        for pod in self.possible():
            assert pod.uid in self.unseen or (pod.uid, pod.node_name, pod.annotations[INDICES]) in books

    @invariant()
    def the_fleet_is_what_the_books_say(self) -> None:
        taken: Counter[tuple[str, int]] = Counter()
        for uid, node, index in self.in_the_books():
            if node in self.state.fleet.rows:
                pod = next(pod for pod in self.state.pods_on(node) if pod.uid == uid)
                taken[node, int(index)] += size_of(self.as_bound(pod))
        for name, row in self.state.fleet.rows.items():
            free = self.state.fleet.arrays.compute[:GPUS, row].tolist()
            assert free == [1000 - taken[name, index] for index in range(GPUS)]

    def in_the_books(self) -> set[tuple[str, str, str]]:
        pods = [self.as_bound(pod) for node in NODES for pod in self.state.pods_on(node)]
        return {(pod.uid, pod.node_name, pod.annotations[INDICES]) for pod in pods}

    def teardown(self) -> None:
        """Nothing more happens, and all that was on its way arrives."""
        if not hasattr(self, "state"):
            return
        while self.awaited():
            self.answer([(0, "made", True)])
        self.time_to_live_passes(True)
        self.repair()
        if self.truth.events:
            self.deliver(len(self.truth.events))
        true = {(pod.uid, pod.node_name, pod.annotations[INDICES]) for pod in self.held_in_truth()}
        assert self.in_the_books() == true
        assert len(self.state.assumed_pods) == 0
        assert self.state.problems == {}
        self.the_fleet_is_what_the_books_say()
        self.loop.close()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
