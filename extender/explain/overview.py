"""The fleet in one table: the free resources of each node, and the pending pods with their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from extender.background import with_turns
from extender.cluster.census import CensusTaker, counts_units, pods_waiting_for_devices
from extender.cluster.permitted_rows import ZONE
from extender.cluster.state import State
from extender.cluster.unoffered import closed_text, not_offered, rejections, unoffered
from extender.explain.answers import NodeLine, Overview, StartForecast, Verdict, WaitingLine
from extender.explain.candidates import Candidates, candidates_of
from extender.explain.fleet_row import labels_of
from extender.explain.holders import check_namespace
from extender.explain.job_runs import controller_text
from extender.explain.pod import explain
from extender.explain.room import held_without_gpus
from extender.explain.words import Word
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import many

Starts: TypeAlias = Callable[[Pod], StartForecast | None]
"""When a pending pod will start, as far as that is forecast."""
_UNREAD = 10
"""Maximum number of unreadable pods and objects named."""
_LINES_AT_ONCE = 50


async def overview(
    state: State,
    census: CensusTaker,
    most_waiting: int,
    namespace: str | None = None,
    starts: Starts = lambda pod: None,
) -> Overview:
    """All nodes with GPUs by name, and at most ``most_waiting`` pending pods, the highest priority first and
    those with scheduling gates last, of all namespaces or one. Other tasks run in between, so each line shows
    the state at its own time. Raises ``ValueError`` for a namespace without pods."""
    check_namespace(state, namespace)
    totals = (await census.take()).totals
    lines = node_lines(state, census, sorted(state.fleet.rows))
    nodes = [line async for line in with_turns(lines, _LINES_AT_ONCE)]
    in_order = enumerate(pods_waiting_for_devices(state), 1)
    pending = *in_order, *((0, pod) for pod in pods_waiting_for_devices(state, gated=True))
    waiting = [(place, pod) for place, pod in pending if namespace in (None, "", pod.namespace)]
    shown = [
        waiting_line(state, pod, await candidates_of(state, pod), starts(pod), place)
        for place, pod in waiting[:most_waiting]
    ]
    problems = [*sorted(state.pods.problems.items()), *sorted(state.object_problems.items())]
    unread = [f"{shorten(name, KEY)}: {shorten(text)}" for name, text in problems[:_UNREAD]]
    unread = [*state.unlisted_texts(), *unread][:_UNREAD]
    return Overview(totals, tuple(nodes), tuple(shown), len(waiting) - len(shown), tuple(unread))


def node_lines(state: State, census: CensusTaker, names: Iterable[str]) -> Iterator[NodeLine]:
    """These nodes, except those without GPUs in the last census."""
    for name in names:
        count, spec = census.node(name), state.fleet.spec_of(name)
        if count is None or spec is None:
            continue
        row, arrays, gpus = state.fleet.rows[name], state.fleet.arrays, len(spec.gpus)
        hidden = unoffered(state, name)
        missing = hidden.note if hidden else not_offered(state, name)
        rejected, closed = rejections(state, name), (closed_text(state, name), state.large_jobs.note(name))
        others = _held_by_others(state, name) if count.on_offer and count.whole else ""
        yield NodeLine(
            node=name,
            model=shorten(hidden.model if hidden else spec.model or spec.product, KEY),
            gpus=count.gpus,
            not_offered=count.not_offered,
            whole=count.whole,
            used_gpus=count.used,
            free_gpus=count.free,
            on_offer=count.on_offer,
            free_memory_mib=(hidden.free_mib if hidden else 0)
            + int(np.maximum(arrays.memory[:gpus, row], 0)[arrays.offered[:gpus, row] > 0].sum()),
            memory_mib=sum(gpu.memory_mib for gpu in spec.gpus) or (hidden.memory_mib if hidden else 0),
            free_cpu_milli=int(arrays.free_cpu[row]),
            free_host_memory_mib=int(arrays.free_memory[row]) >> 20,
            pods=len(state.allocations.pods_on(name)),
            used_percent=_used_percent(state, row, gpus),
            islands=tuple(len(island) for island in spec.islands),
            note="; ".join(filter(None, ("spot" * spec.spot, *closed, missing, rejected, others))),
            problem=shorten(state.nodes.problems.get(name, "")),
            zone=shorten(state.nodes.labels_of(name).get(ZONE, ""), KEY),
            mig=census.mig_on(name),
            in_units=counts_units(state, name),
        )


_LITTLE, _MUCH = 0.1, 0.5
"""Fractions of a node's CPU or memory: little is free, and pods without GPUs hold much."""


def _held_by_others(state: State, name: str) -> str:
    """CPU or memory held by pods without GPUs, in words, if the node has little left for its free GPUs."""
    row, arrays, spec = state.fleet.rows[name], state.fleet.arrays, state.fleet.spec_of(name)
    scarce_cpu = spec is not None and arrays.free_cpu[row] < _LITTLE * spec.cpu_milli
    scarce_memory = spec is not None and arrays.free_memory[row] < _LITTLE * spec.memory_bytes
    if spec is None or not (scarce_cpu or scarce_memory):
        return ""
    held = [taken for _, taken in held_without_gpus(state, name)]
    cpu, memory = sum(taken.cpu_milli for taken in held), sum(taken.memory_mib for taken in held)
    if scarce_cpu and cpu > _MUCH * spec.cpu_milli:
        return f"{many(len(held), 'pod')} without GPUs hold {cpu / 1000:g} of {spec.cpu_milli / 1000:g} CPUs"
    if scarce_memory and memory > _MUCH * spec.memory_mib:
        return f"{many(len(held), 'pod')} without GPUs hold {memory >> 10} of {spec.memory_mib >> 10} GiB"
    return ""


def _used_percent(state: State, row: int, gpus: int) -> tuple[int, ...]:
    arrays = state.fleet.arrays
    compute, memory = arrays.compute[:gpus, row], arrays.memory[:gpus, row]
    capacity, memory_capacity = arrays.compute_capacity[:gpus, row], arrays.memory_capacity[:gpus, row]
    of_memory = np.where(memory_capacity > 0, memory / np.maximum(memory_capacity, 1), 1)  # 1: not known
    left = np.clip(np.minimum(compute / np.maximum(capacity, 1), of_memory), 0, 1)
    return tuple(round(100 * (1 - part)) for part in left.tolist())


def waiting_line(
    state: State,
    pod: Pod,
    candidates: Candidates | None = None,
    starts: StartForecast | None = None,
    position: int = 0,
) -> WaitingLine:
    """Where the pod fits now, or why not. ``candidates``: as for ``explain``."""
    explanation = explain(state, pod, candidates)
    verdict = explanation.verdict
    if pod.gates:
        held = Word.HELD(held=explanation.held, why=verdict.why)
        verdict = replace(verdict, why=str(held), kind=held.word.name)
    elif pod.nominated_node and not explanation.error:
        why = Word.RESERVED(node=pod.nominated_node)
        verdict = Verdict(str(why), kind=why.word.name)
    elif explanation.held and not pod.gates:
        why = Word.NEVER_TRIED(why=explanation.held)
        verdict = Verdict(str(why), kind=why.word.name)
    return WaitingLine(
        pod=shorten(pod.key, KEY),
        queue=state.rights.queues.name_of(pod),
        priority=pod.priority,
        asks=explanation.asks,
        created=pod.created,
        why=shorten(verdict.why),
        lacks=shorten(verdict.lacks),
        advice=shorten(next(iter(verdict.ways), "")),
        asked=explanation.asked,
        labels=labels_of(pod.labels),
        starts=starts,
        job=controller_text(pod),
        position=position,
        kind=verdict.kind,
    )
