"""The allocations against a trivial oracle, through all that can happen between Stowage and the API server.

The oracle is what the API server has: pods, each bound to one node and one GPU, or waiting. Stowage sees it
through a watch that lags, and changes it through bindings that are answered, refused, or made while the
answer is lost. At every moment, pods take no more of a GPU than it has, also with bindings that may still
happen, and all pods that are bound or may be bound are allocated. Once nothing is in flight, the allocations
are those of the API server and no others. Owners edit the annotations of running pods, which keep what they
were bound with.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.cluster.reservations import TIME_TO_LIVE
from extender.cluster.state import State
from extender.k8s.objects import Container, Deleted, Event, Pod, PodSpec, Upserted
from extender.protocol.messages import ExtenderBindingArgs
from extender.settings import Settings
from extender.source.errors import BindError, Unreachable
from extender.verbs.bind import Binder, expire_assumed
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.cluster.simulated_api import GPUS, NODES, Binding, Truth, make_node

SIZES = (300, 500, 700, 1000)
COMPUTE, INDICES = "stowage.dev/gpu-compute", "stowage.dev/gpu-indices"
FRACTION, MODE = "gpu-fraction", "kai.scheduler/gpu-compute-sharing-mode"
names, nodes, sizes = st.sampled_from("abcd"), st.sampled_from(NODES), st.sampled_from(SIZES)
modes = st.sampled_from(["", "time-slicing", "sm-sharing"])
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
        {FRACTION: "0.1", MODE: "sm-sharing", "nvidia.com/container.main.gpus.devices": "n1-1"},
        {FRACTION: "0.1", MODE: "time-slicing", INDICES: "1"},
    ]
)
answered = st.sampled_from(["ok", "refused", "made", "lost", "late"])


def size_of(pod: Pod) -> int:
    if FRACTION in pod.annotations:
        return int(float(pod.annotations[FRACTION]) * 1000)
    return int(pod.annotations[COMPUTE].removesuffix("m"))


# Named functions: hypothesis parses the source of a lambda again and again, which can fail on CPython 3.11.
def has_events(model: StateModel) -> bool:
    return bool(model.truth.events and not model.listing)


def is_listing(model: StateModel) -> bool:
    return bool(model.listing)


def watches(model: StateModel) -> bool:
    return not model.listing


def has_awaited(model: StateModel) -> bool:
    return bool(model.awaited())


def has_abandoned(model: StateModel) -> bool:
    return bool(model.abandoned())


class StateModel(RuleBasedStateMachine):
    """Random interleavings of all these events."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.truth = Truth()
        self.uids = 0
        self.bound_with: dict[str, Pod] = {}  # of those that have ever been edited
        self.binds: list[asyncio.Task[str]] = []
        self.listing: list[Event] = []  # a list that has not arrived yet

    @initialize(sizes=st.lists(st.tuples(sizes, modes), min_size=4, max_size=4))
    def set_up(self, sizes: list[tuple[int, str]]) -> None:
        for name, (size, mode) in zip("abcd", sizes, strict=True):
            self.create(name, size, mode)
        self.begin()

    def begin(self) -> None:
        """A new Stowage process: it knows only what it lists."""
        self.listing = []
        self.truth.events.clear()
        self.become(self.truth.everything())

    def become(self, known: Iterable[Event]) -> None:
        """A Stowage that has seen these events, and that was not called yet."""
        self.state = State(POLICIES["best-fit"]())
        self.state.binds = True
        self.binder = Binder(self.state, self.truth, Settings(bind=True))
        self.state.apply(list(known))
        known_bound = {pod.uid for pod in self.state.pods.values() if pod.node_name}
        self.unseen = {pod.uid for pod in self.bound_in_truth()} - known_bound

    # What others do to the cluster.

    @rule(name=names, size=sizes, mode=modes)
    def create(self, name: str, size: int, mode: str) -> None:
        """A pod with a share by Stowage's annotation, or with one that agents enforce in this mode."""
        if f"d/{name}" in self.truth.pods:
            return
        asks = {FRACTION: f"{size / 1000}", MODE: mode} if mode and size < 1000 else {COMPUTE: f"{size}m"}
        self.uids += 1
        spec = PodSpec((Container("main", (("cpu", "1"),)),))
        self.truth.put(Pod("d", name, f"u{self.uids}", spec, annotations=asks))

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
        """Whether Stowage knows that the pod is bound, and with which annotations."""
        known = self.state.pods.by_uid(uid)
        return bool(known and known.node_name) or any(
            one.confirmed for one in self.state.assumed_pods.of_pod(uid)
        )

    def as_bound(self, pod: Pod) -> Pod:
        bound = self.bound_with.get(pod.uid, pod)
        return replace(pod, annotations=bound.annotations) if pod.node_name == bound.node_name else pod

    def repair(self) -> None:
        """A new process takes the annotations that it finds, so make them again what pods were bound with."""
        for pod in self.bound_in_truth():
            if pod != self.as_bound(pod):
                self.truth.put(self.as_bound(pod))

    @rule(name=names, node=nodes)
    def nominate(self, name: str, node: str) -> None:
        pod = self.truth.pods.get(f"d/{name}")
        if pod and not pod.node_name:
            self.truth.put(replace(pod, nominated_node=node))

    @rule(name=nodes)
    def remove_or_add_node(self, name: str) -> None:
        if self.truth.nodes.pop(name, None):
            self.truth.events.append(Deleted("Node", name))
        else:
            self.truth.nodes[name] = make_node(name)
            self.truth.events.append(Upserted(self.truth.nodes[name]))

    # What Stowage is told.

    @precondition(has_events)
    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.truth.events))):
            event = self.truth.events.popleft()
            before = self.state.pods.get(event.key) if isinstance(event, Deleted) else None
            self.state.apply([event])
            if isinstance(event, Upserted) and isinstance(event.obj, Pod) and event.obj.node_name:
                self.unseen.discard(event.obj.uid)
            if before:
                self.nothing_is_assumed_of([before.uid])
            elif isinstance(event, Upserted) and isinstance(event.obj, Pod) and event.obj.node_name:
                self.nothing_is_assumed_of([event.obj.uid])

    @rule()
    def relist(self) -> None:
        before = {pod.uid for pod in self.state.pods.values()}
        before |= {one.pod.uid for one in self.state.assumed_pods if one.confirmed}
        self.listing = self.truth.everything(began=math.inf)
        self.truth.events.clear()
        self.list_arrives()
        listed = {pod.uid: pod for pod in self.truth.pods.values()}
        self.nothing_is_assumed_of(before - listed.keys())
        self.nothing_is_assumed_of(pod.uid for pod in listed.values() if pod.node_name)

    @precondition(watches)
    @rule()
    def list_begins(self) -> None:
        """The watch broke. Bindings and their answers go on until the list arrives."""
        self.listing = self.truth.everything(began=time.monotonic())
        self.truth.events.clear()

    @precondition(is_listing)
    @rule()
    def list_arrives(self) -> None:
        pods = (event.obj for event in self.listing if isinstance(event, Upserted))
        self.unseen -= {pod.uid for pod in pods if isinstance(pod, Pod) and pod.node_name}
        self.state.apply(self.listing)
        self.listing = []

    def nothing_is_assumed_of(self, uids: Iterable[str]) -> None:
        """One event ends all that was assumed of a pod."""
        assert not any(self.state.assumed_pods.of_pod(uid) for uid in uids)

    # What kube-scheduler asks, and what becomes of the bindings.

    @rule(calls=calls)
    def bind(self, calls: list[tuple[str, str]]) -> None:
        for name, node in calls:
            pod = self.truth.pods.get(f"d/{name}")  # kube-scheduler may know it before Stowage does
            if pod and pod.uid not in self.bound_with:  # else it has been bound for long
                known = self.state.pods.by_uid(pod.uid) or replace(self.as_bound(pod), node_name="")
                args = ExtenderBindingArgs(pod.namespace, pod.name, pod.uid, node)
                self.binds.append(self.loop().create_task(self.binder.bind(known, args)))
        self.turn()

    @precondition(has_awaited)
    @rule(outcomes=st.lists(st.tuples(which, answered, st.booleans()), min_size=1, max_size=4))
    def answer(self, outcomes: list[tuple[int, str, bool]]) -> None:
        """Bindings are answered in any order; the boolean: whether a look-up after it is answered."""
        for index, outcome, answers in outcomes[: len(self.awaited())]:
            binding = self.awaited()[index % len(self.awaited())]
            self.truth.answers = answers
            self.settle(binding, outcome)
            self.turn()
        self.truth.answers = True

    def settle(self, binding: Binding, outcome: str) -> None:
        """``made``: it happens, and the answer is lost. ``late``: the same, but after the client gave up."""
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

    @precondition(has_abandoned)
    @rule(index=which)
    def late_binding_happens(self, index: int) -> None:
        """A binding whose client gave up."""
        binding = self.abandoned()[index % len(self.abandoned())]
        self.truth.sent.remove(binding)
        self.make_if_possible(binding)

    @rule(answers=st.booleans())
    def time_to_live_passes(self, answers: bool) -> None:
        """The API server has given up all requests that nobody waits for."""
        for binding in self.abandoned():
            self.truth.sent.remove(binding)
        self.truth.answers = answers
        now = time.monotonic() + TIME_TO_LIVE + 1
        self.loop().run_until_complete(expire_assumed(self.state, self.truth, now))
        self.truth.answers = True

    @rule(made=st.booleans())
    def restart(self, made: bool) -> None:
        """The process is killed."""
        self.end(made)
        self.repair()
        self.begin()

    @precondition(watches)
    @rule(made=st.booleans(), calls=calls)
    def take_over(self, made: bool, calls: list[tuple[str, str]]) -> None:
        """Another replica is called from now on. Its watch is as far as that of the one before."""
        self.end(made)
        known = [*self.state.nodes.values(), *map(self.as_bound, self.state.pods.values())]
        self.repair()
        self.become(map(Upserted, known))
        self.bind(calls)

    def end(self, made: bool) -> None:
        """The process is killed, which ends its requests: each binding has happened by now, or never will."""
        for binding in self.truth.sent:
            if made:
                self.make_if_possible(binding)
        self.truth.sent.clear()
        self.runner.close()  # cancels and awaits every task
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.binds.clear()

    def make_if_possible(self, binding: Binding) -> None:
        with suppress(BindError):
            self.truth.make(binding.pod)

    def awaited(self) -> list[Binding]:
        return [binding for binding in self.truth.sent if binding.answer]

    def abandoned(self) -> list[Binding]:
        return [binding for binding in self.truth.sent if not binding.answer]

    def loop(self) -> asyncio.AbstractEventLoop:
        return self.runner.get_loop()

    def turn(self) -> None:
        for _ in range(8):
            self.loop().run_until_complete(asyncio.sleep(0))
        for task in [task for task in self.binds if task.done()]:
            self.binds.remove(task)
            assert task.cancelled() or isinstance(task.result(), str)

    # What must be true at every moment.

    def bound_in_truth(self) -> list[Pod]:
        return [pod for pod in self.truth.pods.values() if pod.node_name and not pod.terminated]

    def possible(self) -> list[Pod]:
        """Every pod as it is bound, or may be bound by a binding in flight."""
        waiting = {pod.uid for pod in self.truth.pods.values() if not pod.node_name}
        return [*map(self.as_bound, self.bound_in_truth())] + [
            one.pod for one in self.truth.sent if one.pod.uid in waiting
        ]

    @invariant()
    def no_gpu_is_allocated_twice(self) -> None:
        held: Counter[tuple[str, str]] = Counter()
        for pod in {(pod.uid, pod.node_name): pod for pod in self.possible()}.values():
            held[pod.node_name, pod.annotations[INDICES]] += size_of(pod)
        assert all(milli <= 1000 for milli in held.values()), held

    @invariant()
    def no_gpu_has_pods_of_two_modes(self) -> None:
        found: dict[tuple[str, str], set[bool]] = {}
        for pod in self.possible():
            of_gpu = found.setdefault((pod.node_name, pod.annotations[INDICES]), set())
            of_gpu.add(pod.annotations.get(MODE) == "sm-sharing")
        assert all(len(kinds) == 1 for kinds in found.values()), found

    @invariant()
    def what_is_true_or_may_become_true_is_allocated(self) -> None:
        allocated = self.allocated()
        for pod in self.possible():
            assert pod.uid in self.unseen or (pod.uid, pod.node_name, pod.annotations[INDICES]) in allocated

    @invariant()
    def the_fleet_is_what_the_allocations_say(self) -> None:
        taken: Counter[tuple[str, int]] = Counter()
        for uid, node, index in self.allocated():
            if node in self.state.fleet.rows:
                pod = next(pod for pod in self.state.pods.on_node(node) if pod.uid == uid)
                taken[node, int(index)] += size_of(self.as_bound(pod))
        for name, row in self.state.fleet.rows.items():
            free = self.state.fleet.arrays.compute[:GPUS, row].tolist()
            assert free == [1000 - taken[name, index] for index in range(GPUS)]

    def allocated(self) -> set[tuple[str, str, str]]:
        pods = [self.as_bound(pod) for node in NODES for pod in self.state.pods.on_node(node)]
        return {(pod.uid, pod.node_name, pod.annotations[INDICES]) for pod in pods}

    def teardown(self) -> None:
        try:
            if hasattr(self, "state"):
                self.nothing_is_left_once_all_has_arrived()
        finally:
            self.runner.close()

    def nothing_is_left_once_all_has_arrived(self) -> None:
        while self.awaited():
            self.answer([(0, "made", True)])
        self.time_to_live_passes(True)
        self.repair()
        if self.listing:
            self.list_arrives()
        if self.truth.events:
            self.deliver(len(self.truth.events))
        true = {(pod.uid, pod.node_name, pod.annotations[INDICES]) for pod in self.bound_in_truth()}
        assert self.allocated() == true
        assert len(self.state.assumed_pods) == 0
        assert self.state.problems == {}
        self.the_fleet_is_what_the_allocations_say()


TestState = StateModel.TestCase
TestState.settings = settings(max_examples=examples(150), stateful_step_count=50)
