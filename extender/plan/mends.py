"""The command that mends each kind of waste, carried out on a copy of the cluster first."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from itertools import islice
from typing import get_args

from extender.cluster.state import State
from extender.explain.candidates import all_candidates, uncordoned
from extender.explain.gpu_use import GpuUse, Part, Step, gpus_asked_by
from extender.explain.room import held_without_gpus
from extender.explain.rule_changes import openings
from extender.explain.what_if import Question, changed_like
from extender.inventory.node_state import SPOT_LABELS
from extender.k8s.objects import Deleted, Event, Pod, Upserted
from extender.plan.mig import carried_out, plan_changes
from extender.plan.moves import Free, plan_moves
from extender.plan.report import Progress
from extender.plan.slices import plan_slices, use_of
from extender.plan.source import ClusterSource
from extender.queues.queue import is_restartable
from extender.source.prometheus import Use
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import Trial
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed, many

_NAMED, _RULES, _MOVES, _DRAINED, _SPOT = 8, 3, 20, 300, 100
"""Maximum number of objects in one command, of kinds of pods whose rules change, of moves, of nodes that are
drained, and of pods that are tried on spot nodes."""
_WHOLE = 0.99
_IDLE = 0.01
"""Activity below which a GPU is not used."""


@dataclass(frozen=True, slots=True)
class Mend:
    """``command``: a line to paste, or what to change. ``frees``: the GPUs that come into use by pending
    pods, or could be removed, when it is carried out on a copy; None if it cannot be. ``starts``: the pending
    pods that then start."""

    command: str
    frees: float | None = None
    starts: tuple[str, ...] = ()


class Mender:
    """Carries out each mend in the ``state``, and undoes it. ``measured``: use by pod, from ``prometheus``
    (its URL). Pods need ``margin`` times their use."""

    def __init__(
        self,
        source: ClusterSource,
        state: State,
        measured: Mapping[str, Use],
        prometheus: str = "",
        margin: float = 1.2,
    ) -> None:
        self._source, self.state = source, state
        self._measured, self._prometheus, self._margin = measured, prometheus, margin
        self._spot: dict[str, str] = {}
        self._idle: dict[str, Sequence[Pod]] = {}
        """Replicas that are not used, each with all replicas."""

    def with_use(self, use: GpuUse) -> GpuUse:
        """The parts that pods hold, divided by their use as it is measured or declared."""
        self._spot, self._idle = dict(self._better_on_spot(use)), dict(self._idle_replicas())
        return replace(use, parts=tuple(found for part in use.parts for found in self._divided(part)))

    def _divided(self, part: Part) -> Iterator[Part]:
        state, pod = self.state, self.state.pods.get(part.pod)
        if part.step is not Step.NOT_MEASURED or pod is None:
            yield part
        elif node := self._spot.get(part.pod):
            yield replace(part, step=Step.CHEAPER, why=f"it is restartable, and spot node {node} has room")
        elif replicas := self._idle.get(part.pod):
            why = f"measured: busy less than {_IDLE:.0%} of the time, one of {many(len(replicas), 'replica')}"
            yield replace(part, step=Step.CHEAPER, why=why)
        else:
            spec, (use, source) = state.fleet.spec_of(part.node), use_of(pod, self._measured, {})
            memory = max((gpu.memory_mib for gpu in spec.gpus), default=0) if spec else 0
            if use.active is None or use.memory_mib is None or not memory or part.gpus < _WHOLE:
                yield part
                return
            of_memory = use.memory_mib / memory
            idle = part.gpus * (1 - min(self._margin * max(use.active, of_memory), 1.0))
            why = f"{source}: busy {use.active:.0%} of the time, {of_memory:.0%} of the GPU memory used"
            yield replace(part, step=Step.UNDERUSED, gpus=idle, why=why)
            yield replace(part, step=Step.IN_USE, gpus=part.gpus - idle, why=why)

    def _idle_replicas(self) -> Iterator[tuple[str, Sequence[Pod]]]:
        """Replicas of ReplicaSets whose GPUs were not used, but for the last one."""
        replicas = defaultdict[str, list[Pod]](list)
        for pod in self.state.pods.values():
            if pod.owner and pod.owner.kind == "ReplicaSet" and pod.node_name:
                replicas[f"{pod.namespace}/{pod.owner.name}"].append(pod)
        for pods in replicas.values():
            active = ((pod.key, self._measured.get(pod.key, Use()).active) for pod in pods)
            idle = [key for key, part in active if part is not None and part < _IDLE]
            yield from ((key, pods) for key in idle[len(idle) == len(pods) :])

    def _better_on_spot(self, use: GpuUse) -> Iterator[tuple[str, str]]:
        """Restartable pods on other nodes for which spot nodes have room, each with the node."""
        spot, rows = self._trial.fleet.arrays.spot > 0, self._trial.fleet.rows
        if not any(part.step is Step.IDLE and spot[rows[part.node]] for part in use.parts):
            return
        trial, rights = self._trial, self.state.rights
        value = trial.fleet.arrays.gpu_value
        items = (i for i in trial.movable.values() if i.request.wants_gpu and not spot[i.home])
        for item in islice((i for i in items if is_restartable(i.pod, rights.queue_of(i.pod))), _SPOT):
            before, no_less = trial.savepoint(), value >= value[item.home]
            trial.leave(item)
            if trial.place(replace(item, rows=item.rows & spot & no_less, home=-1)):
                yield item.key, trial.node_of(item.key)
            else:
                trial.undo_to(before)
        trial.undo_to(self._start)

    def mends(self, use: GpuUse, progress: Progress) -> Iterator[tuple[Step, Mend]]:
        """The mend of each step that has one."""
        ways: dict[Step, Callable[[Sequence[Part]], Mend]] = {
            Step.CLOSED: self._opened,
            Step.BROKEN: lambda parts: Mend(f"kubectl describe node {parts[0].node}"),
            Step.IDLE: self._removed,
            Step.STARTING: lambda parts: self._gain(_explain(parts), {}, self._today),
            Step.FRAGMENTED: self._moved,
            Step.CPU_OR_MEMORY: self._without_others,
            Step.MIG_LAYOUT: self._repartitioned,
            Step.RULE: self._past_rules,
            Step.GATED: self._released,
            Step.UNDERUSED: self._in_slices,
            Step.CHEAPER: self._cheaper,
            Step.NOT_MEASURED: lambda parts: Mend("stowage audit --prometheus http://PROMETHEUS:9090"),
        }
        for place, (step, way) in enumerate(ways.items()):
            progress("carrying out each mend", place / len(ways))
            parts = sorted((part for part in use.parts if part.step is step), key=lambda part: -part.gpus)
            if parts:
                yield step, way(parts)
        progress("carrying out each mend", 1.0)

    @cached_property
    def _trial(self) -> Trial:
        trial = trial_of(self.state, real_moves=True)
        self._start = trial.savepoint()
        return trial

    @contextmanager
    def _after(self, events: Sequence[Upserted | Deleted]) -> Iterator[Trial]:
        """The cluster after these events of nodes and pods, which are undone at the end."""
        state, before = self.state, list[Event]()
        for event in events:
            key = event.key if isinstance(event, Deleted) else event.obj.key
            before.append(Upserted(state.nodes[key] if event.kind == "Node" else state.pods[key]))
        state.apply(events)
        trial = trial_of(state, real_moves=True)
        yield trial
        trial.undo_to(0)
        state.apply(before)

    @cached_property
    def _today(self) -> dict[str, float]:
        """The pending pods that start without any change, with their GPUs."""
        found = self._started(self._trial)
        self._trial.undo_to(self._start)
        return found

    def _started(self, trial: Trial) -> dict[str, float]:
        placed, sizes = trial.place_waiting(), {item.key: item.request for item in trial.waiting}
        return {key: gpus_asked_by(self.state, sizes[key]) for key in placed}

    def _gain(self, command: str, before: Mapping[str, float], then: Mapping[str, float]) -> Mend:
        starts = tuple(shorten(pod, KEY) for pod in then if pod not in before)
        return Mend(command, round(max(sum(then.values()) - sum(before.values()), 0.0), 2), starts)

    def _tried(self, command: str, events: Sequence[Upserted | Deleted]) -> Mend:
        today = self._today
        with self._after(events) as then:
            return self._gain(command, today, self._started(then))

    def _opened(self, parts: Sequence[Part]) -> Mend:
        nodes = [self.state.nodes[name] for name in dict.fromkeys(part.node for part in parts)]
        cordoned = [node for node in nodes if node.unschedulable][:_NAMED]
        if not cordoned:
            return Mend(f"kubectl describe node {nodes[0].name}")
        today, free = self._today, self._trial.figures().free
        command = f"kubectl uncordon {' '.join(node.name for node in cordoned)}"
        with self._after([Upserted(uncordoned(node)) for node in cordoned]) as then:
            frees = round(then.figures().free - free, 2)
            return replace(self._gain(command, today, self._started(then)), frees=frees)

    def _removed(self, parts: Sequence[Part]) -> Mend:
        """Nodes drained one after the other, those with the least load first, until no idle GPU is left."""
        trial, wanted, gone = self._trial, sum(part.gpus for part in parts), 0
        trial.place_waiting()
        loads = {row: sum(item.gpus for item in trial.items_on(row)) for row in trial.gpu_rows}
        for row in sorted(loads, key=lambda row: loads[row])[:_DRAINED]:
            stays = trial.blockers(row) or trial.empty(row, trial.items_on(row))
            spec = trial.fleet.specs[row]
            gone += len(spec.gpus) if spec and not stays else 0
            if gone >= wanted:
                break
        trial.undo_to(self._start)
        return Mend("stowage plan drain", round(min(float(gone), wanted), 2))

    def _moved(self, parts: Sequence[Part]) -> Mend:
        """The better of moves that free nodes and moves that free GPUs, with few moves if they suffice."""
        tried, wanted = list[Mend](), sum(part.gpus for part in parts)
        for free, most in itertools.product(get_args(Free), (_MOVES // 4, _MOVES)):
            moves = sum(len(freed.moves) for freed in plan_moves(self._trial, most, free))
            command = f"stowage plan moves --free {free} --moves {moves or most}"
            tried.append(self._gain(command, self._today, self._started(self._trial)))
            self._trial.undo_to(self._start)
            if (tried[-1].frees or 0.0) > wanted - 1:
                break
        return max(tried, key=lambda mend: mend.frees or 0.0)

    def _without_others(self, parts: Sequence[Part]) -> Mend:
        """Without the pods that hold no GPU on these nodes."""
        nodes = list(dict.fromkeys(part.node for part in parts))
        held = [pair for name in nodes for pair in held_without_gpus(self.state, name) if pair[0].owner]
        gone = [pod for pod, _ in nlargest(_NAMED, held, key=lambda pair: pair[1].cpu_milli)]
        command = f"move pods without GPUs to other nodes: {' '.join(pod.key for pod in gone)}"
        mend = self._tried(command, [Deleted("Pod", pod.key) for pod in gone])
        return mend if mend.frees else Mend(_explain(parts))

    def _past_rules(self, parts: Sequence[Part]) -> Mend:
        """The first change that opens nodes to the pods that wait for most GPUs."""
        state, lines, events, seen = self.state, list[str](), list[Upserted | Deleted](), set[str]()
        for pod in filter(None, (state.pods.get(part.pod) for part in parts)):
            if pod.key in seen or len(lines) >= _RULES:
                continue
            asked = Question(state, pod, state.request_of(pod), all_candidates(state, pod), ())
            fixes = (opening.fix for opening in openings(asked)[0] if opening.fits)
            new = next(((fix.said, fix.pod) for fix in fixes if fix.pod and fix.change), None)
            template = pod.namespace, pod.spec, pod.scheduling_constraints
            alike = [p for p in self._pending if (p.namespace, p.spec, p.scheduling_constraints) == template]
            seen |= {other.key for other in alike}
            if new:
                events += [Upserted(changed_like(other, pod, new[1])) for other in alike]
                more = f" and {many(len(alike) - 1, 'pod')} like it" * (len(alike) > 1)
                lines.append(f"{new[0]} in {shorten(pod.key, KEY)}{more}")
        return self._tried("; ".join(lines), events) if lines else Mend(_explain(parts))

    def _released(self, parts: Sequence[Part]) -> Mend:
        held = {part.pod for part in parts}
        gated = [pod for pod in self._pending if pod.gates and pod.key in held]
        events = [Upserted(replace(pod, gates=())) for pod in self._pending if pod.gates]
        if not gated:  # kube-scheduler does not try them for another reason
            return Mend(_explain(parts))
        names = listed(sorted({" ".join(pod.gates) for pod in gated}), _RULES)
        see, first = _explain(parts), self.state.pods[parts[0].pod]
        if first.owner and first.uid == first.key:  # it is not created
            kind, namespace = first.owner.kind.lower(), first.namespace
            see = f"kubectl describe {kind} {first.owner.name} --namespace {namespace}"
        return self._tried(f"release {names}; see {see}", events)

    def _repartitioned(self, parts: Sequence[Part]) -> Mend:
        trial = self._source.trial()
        _, then = carried_out(self._source, plan_changes(self._source, trial, 3, 1.0, 90.0), trial)
        sizes = {item.key: gpus_asked_by(self.state, item.request) for item in then.waiting}
        started = {key: size for key, size in sizes.items() if key in then.held}
        return self._gain("stowage plan mig", self._today, started)

    def _in_slices(self, parts: Sequence[Part]) -> Mend:
        moves = plan_slices(self._trial, self._measured, self._margin).moves
        self._trial.undo_to(self._start)
        command = f"stowage plan slices --prometheus {self._prometheus}".removesuffix(" --prometheus ")
        return Mend(command, float(sum(move.frees for move in moves)))

    def _cheaper(self, parts: Sequence[Part]) -> Mend:
        gone = Counter(id(self._idle[part.pod]) for part in parts if part.pod not in self._spot)
        lines, pods = list[str](), [shorten(part.pod, KEY) for part in parts if part.pod in self._spot]
        if pods:
            labels = self.state.nodes.labels_of(next(iter(self._spot.values())))
            spot = next((f"{key}: {labels[key]}" for key in SPOT_LABELS if key in labels), "")
            lines.append(f"write nodeSelector: {{{spot}}} in {listed(list(dict.fromkeys(pods)), _RULES)}")
        for replicas in {id(pods): pods for pods in self._idle.values() if id(pods) in gone}.values():
            first, left = replicas[0], len(replicas) - gone[id(replicas)]
            name = first.owner.name.rpartition("-")[0] if first.owner else ""
            lines.append(f"kubectl scale deployment {name} --namespace {first.namespace} --replicas {left}")
        return Mend("; ".join(lines[:_RULES]), round(sum(part.gpus for part in parts), 2))

    @cached_property
    def _pending(self) -> list[Pod]:
        return [self.state.pods[key] for key in self.state.pods.waiting]


def _explain(parts: Sequence[Part]) -> str:
    return f"stowage explain {next((part.pod for part in parts if part.pod), '-A')}"
