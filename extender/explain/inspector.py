"""Data of the debug endpoint: nodes, pods, decisions, and explanations of manifests.

Work that grows with the cluster is done in small parts, so that requests of kube-scheduler come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from time import monotonic, time

from pydantic import FiniteFloat, TypeAdapter

from extender.background import with_turns
from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.explain.answers import (
    Decision,
    Explanation,
    HolderLine,
    NodeAnswer,
    Overview,
    PodAnswer,
    PodReport,
    Replica,
)
from extender.explain.candidates import candidates_of
from extender.explain.decision_log import Decisions
from extender.explain.fleet_feed import INTERVAL, PAST, FleetFeed, FleetHistory
from extender.explain.gpu_use import GpuUse, gpu_use
from extender.explain.hints import describe_gang, gates_said
from extender.explain.history import History
from extender.explain.holders import holder_lines
from extender.explain.job_runs import RUN, JobRuns, TeamUse
from extender.explain.needs import asked_text
from extender.explain.node import NodeView, view_node
from extender.explain.overview import overview
from extender.explain.pod import explain, explain_each, explain_template
from extender.explain.start_forecast import StartForecasts, forecast_new
from extender.explain.words import Word
from extender.k8s.objects import Pod
from extender.settings import Settings
from extender.source.workloads import Template, parse_pod, parse_templates, pods_named
from extender.untrusted import limits
from extender.untrusted.limits import shorten

_TEAMS_EVERY = 6
"""Samples of the fleet for one in the history, and for one of teams and jobs, which looks at every pod."""
_SAMPLE = TypeAdapter(dict[str, FiniteFloat])
_USE = 60.0
"""Seconds for which the use of the GPUs counts: each kind of pending pods costs a filter request."""
_OF_LARGE = 60.0
"""The same in a large cluster, in times that it took to compute: at most a sixtieth of a core."""
_EXPLAINED_AT_ONCE = 10
"""Nodes evaluated for a pod before other tasks run."""


class Inspector:
    """Reads the state and the decisions, and changes neither of them. ``replica`` says which one this is;
    ``fleet`` and ``history`` are what the page at ``/`` shows. ``kept``: what outlives a restart."""

    def __init__(
        self,
        state: State,
        decisions: Decisions,
        settings: Settings | None = None,
        kept: History | None = None,
    ) -> None:
        self._state, self._decisions = state, decisions
        self._settings, self._kept = settings, kept
        self.replica: Callable[[], Replica] = lambda: Replica("")
        self.census = CensusTaker(state)
        self.starts = StartForecasts(state)
        self.fleet = FleetFeed(state, self.census, starts=self.starts)
        self.history = FleetHistory(self.census)
        self.teams = TeamUse(state)
        self.jobs = JobRuns(state, kept)
        self._use, self._use_due, self._using = GpuUse((), 0), 0.0, asyncio.Lock()

    async def run(self, is_ready: Callable[[], bool]) -> None:
        """Sample the use of the fleet, by team and job, at intervals until canceled."""
        if self._kept:
            await self._restore(self._kept)
        for number in count():
            if is_ready():
                await self.history.sample(time())
                if number % _TEAMS_EVERY == 0:
                    await self.teams.count()
                    await self.jobs.look(time(), PAST)
                    if self._kept:
                        self._kept.add("sample", self.history.last(), time())
            self.fleet.forget_if_idle()
            await asyncio.sleep(INTERVAL if is_ready() else 0.2)

    async def _restore(self, kept: History) -> None:
        now = time()  # what is later was written while the clock was ahead
        samples = await kept.last(_SAMPLE, b'"sample":', limits.HISTORY_RUNS, now, now - PAST)
        self.history.restore(reversed(samples))
        began = await kept.last(RUN, b'"run":', limits.HISTORY_RUNS, now, now - PAST)
        self.jobs.restore([*await kept.last(RUN, b'"ended":', limits.HISTORY_RUNS, now, now - PAST), *began])

    async def gpu_use(self) -> GpuUse:
        """What the GPUs are used for, at most a minute old, or older if this takes over a second."""
        async with self._using:
            if (began := monotonic()) >= self._use_due:
                self._use = await gpu_use(self._state, self.census)
                self._use_due = began + max(_USE, _OF_LARGE * (monotonic() - began))
        return self._use

    def node_names(self) -> list[str]:
        return sorted(self._state.fleet.rows)

    def node(self, name: str) -> NodeView | None:
        """A node; None if unknown or removed."""
        return view_node(self._state, name, monotonic())

    async def pod(
        self, key: str, *, explained: bool = False, before: float = float("inf")
    ) -> PodReport | None:
        """The pod ``namespace/name``; None where neither the watch nor kube-scheduler has shown it.

        ``explained``: also where a copy of it would fit, if it has a node already. ``before``: only decisions
        before this moment.
        """
        past = await self._kept.decisions(key, before, limits.HISTORY_SHOWN) if self._kept else []
        report = await self._now(key, explained=explained, asked_before=bool(past))
        if report is None and not past:
            return None
        report = report or PodReport(key, "", f"{key} does not exist now", [], None, self.replica())
        recent = ((key, decision) for decision in report.decisions)
        last = [decision for _, decision in _newest((*past, *recent), before, limits.HISTORY_SHOWN)]
        return replace(report, decisions=last, runs=self.jobs.of_job(key, self._state.pods.get(key)))

    async def _now(self, key: str, *, explained: bool, asked_before: bool) -> PodReport | None:
        """The same, from the data of this process."""
        asked = self._decisions.pod(key)
        pod = self._state.pods.or_misaligned().get(key) or asked
        if pod is None:
            return None
        replica = self.replica()
        assumed_pods = self._state.assumed_pods.of_pod(pod.uid)
        if assumed_pods and not pod.node_name:
            node = assumed_pods[-1].pod.node_name
            seconds = monotonic() - assumed_pods[-1].since
            note = f"assumed to be bound for {seconds:.1f} s: the watch has not shown it yet"
            return PodReport(key, node, note, self._decisions.about(key), None, replica)
        is_same = asked is not None and asked.uid == pod.uid  # else another pod had this name before
        decisions = self._decisions.about(key) if is_same else []
        node = "" if pod.misaligned else pod.node_name
        now = None if node and not explained else await self._explain(pod)
        elsewhere = not (decisions or self._decisions.latest())  # who is asked keeps decisions about some pod
        notes = [replica.without_decisions()] if elsewhere or replica.leads is False else []
        if not (decisions or asked_before or pod.node_name or replica.leads is False):
            gates = gates_said(pod)
            notes.insert(0, str(Word.NO_CALL(gates=gates) if gates else Word.NEVER_ASKED()))
        return PodReport(
            key, node, ". ".join(filter(None, notes)), decisions, now, replica, *self._request(pod)
        )

    def _request(self, pod: Pod) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """The pod's request, its gang, and the members of the gang with their nodes."""
        request = self._state.request_or_none(pod)
        asked = asked_text(request, {}) if request else ""  # ``now.error`` says why it is not known
        gang = self._state.gangs.gang_of(pod)
        members = self._state.gangs.members(gang.key)[: limits.LISTED_NAMES] if gang else ()
        listed = sorted((shorten(m.key, limits.KEY), shorten(m.node_name, limits.KEY)) for m in members)
        return asked, describe_gang(self._state, pod), tuple(listed)

    def pods_named(self, name: str, kind: str) -> list[str]:
        """Keys of the pods of this name, or of the workload of this kind and name, bounded."""
        return pods_named(self._state.pods.or_misaligned().values(), name, kind)[: limits.LISTED_NAMES]

    async def decisions(self, before: float, most: int) -> Sequence[tuple[str, Decision]]:
        """The last decisions ``before`` a moment with the keys of their pods, newest first: of this replica,
        or in the history."""
        past = await self._kept.decisions("", before, most) if self._kept else []
        recent = self._decisions.latest(before)[:most]  # the disk may have failed
        return _newest((*past, *recent), before, most)

    async def overview(self, most_waiting: int, namespace: str = "") -> Overview:
        return await overview(self._state, self.census, most_waiting, namespace, self.starts.of)

    async def holders(self, nodes: Sequence[str], namespace: str, selector: str) -> list[HolderLine]:
        return await holder_lines(self._state, nodes, namespace, selector)

    async def explain(self, manifest: str) -> Explanation:
        """A pod that need not exist. Raises ``ValueError`` where the manifest is not that of one pod."""
        return await self._explain(parse_pod(manifest, "the manifest"))

    async def answers(
        self, manifest: str, nodes: Sequence[str] | None = None, complete: Sequence[int] = ()
    ) -> list[PodAnswer]:
        """All pods and pod templates of a manifest: against the cluster, or against each of these ``nodes``
        by itself. ``complete`` as in ``parse_templates``. Raises ``ValueError``."""
        templates = parse_templates(manifest, "the manifest", complete)
        if len(templates) > limits.EXPLAIN_PODS:
            raise ValueError(
                f"the manifest has {len(templates)} pods, at most {limits.EXPLAIN_PODS} are explained"
            )
        return [await self._answer(template, nodes, templates) for template in templates]

    async def nodes_for(self, key: str, nodes: Sequence[str]) -> PodAnswer | None:
        """The answers for these nodes about a known pod. Raises ``ValueError``."""
        pod = self._state.pods.or_misaligned().get(key) or self._decisions.pod(key)
        return None if pod is None else await self._answer(Template(pod), nodes)

    async def _answer(
        self, template: Template, nodes: Sequence[str] | None, beside: Sequence[Template] = ()
    ) -> PodAnswer:
        if nodes is None:
            candidates = await candidates_of(self._state, template.pod)
            found = explain_template(self._state, template, beside, candidates, time(), self._settings)
            if not (found.fits or found.error or found.held or found.node):
                found = replace(found, starts=await forecast_new(self._state, template.pod, time()))
            return PodAnswer(template.workload, template.pod.key, found)
        starts = range(0, len(nodes), _EXPLAINED_AT_ONCE)
        blocks = (
            explain_each(self._state, template.pod, nodes[at : at + _EXPLAINED_AT_ONCE]) for at in starts
        )
        each = [answer async for block in with_turns(blocks, 1) for answer in block]
        return PodAnswer(template.workload, template.pod.key, nodes=tuple(sorted(each, key=NodeAnswer.order)))

    async def _explain(self, pod: Pod) -> Explanation:
        candidates = await candidates_of(self._state, pod)
        found = explain(self._state, pod, candidates, time(), self._settings)
        return found if found.fits else replace(found, starts=self.starts.of(pod))


def _newest(
    decisions: Iterable[tuple[str, Decision]], before: float, most: int
) -> list[tuple[str, Decision]]:
    """The last decisions ``before`` a moment, newest first; one that is in memory and on disk, once."""
    merged = {(key, d.at, d.verb): (key, d) for key, d in decisions if d.at.timestamp() < before}
    return sorted(merged.values(), key=lambda pair: pair[1].at, reverse=True)[:most]
