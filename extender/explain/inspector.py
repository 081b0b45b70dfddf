"""What the debug endpoint shows: nodes, the report of a pod, and an explanation of a manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time

from extender.cluster.state import PossiblyBound, State
from extender.explain.decision_log import Decision, Decisions
from extender.explain.evictions import EvictorMode
from extender.explain.fleet_feed import FleetFeed
from extender.explain.fleet_history import INTERVAL, FleetHistory
from extender.explain.fragmentation import FragmentationReport
from extender.explain.node import NodeView, view_node
from extender.explain.pod import Explanation, candidates_of, explain
from extender.k8s.objects import Pod
from extender.source.workloads import parse_pod

_NEVER_ASKED = (
    "kube-scheduler has not asked about this pod: it is for another scheduler, or no node passed "
    'kube-scheduler\'s own filters ("Insufficient nvidia.com/gpu" never reaches an extender)'
)


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod: its node, the last decisions about it (newest first), and, if it waits, where it fits now."""

    pod: str
    node: str
    note: str
    decisions: list[Decision]
    now: Explanation | None


class Inspector:
    """Reads the state and the decisions, and changes neither of them. ``fleet`` and ``history`` are what the
    page at ``/`` shows."""

    def __init__(
        self,
        state: State,
        decisions: Decisions,
        possibly_bound: Callable[[], PossiblyBound] = lambda: (),
        evictor: EvictorMode = "unknown",
    ) -> None:
        self._evictor: EvictorMode = evictor
        self._state, self._decisions, self._possibly_bound = state, decisions, possibly_bound
        self.fragmentation = FragmentationReport(state)
        self.fleet, self.history = FleetFeed(state), FleetHistory(state, self.fragmentation)

    async def run(self, is_ready: Callable[[], bool]) -> None:
        """Note how the fleet is used, now and then, until cancelled."""
        while True:
            if is_ready():
                await self.history.sample(time())
            self.fleet.forget_if_idle()
            await asyncio.sleep(INTERVAL if is_ready() else 0.2)

    def node_names(self) -> list[str]:
        return sorted(self._state.fleet.rows)

    def node(self, name: str) -> NodeView | None:
        """A node; None where it is not known (any more)."""
        return view_node(self._state, name, monotonic())

    async def pod(self, key: str) -> PodReport | None:
        """The pod ``namespace/name``; None where neither the watch nor kube-scheduler has shown it."""
        asked = self._decisions.pod(key)
        pod = self._state.pods.get(key) or asked
        if pod is None:
            return None
        assumed_pods = self._state.assumed_pods.of(pod.uid)
        if assumed_pods and not pod.node_name:
            node = assumed_pods[-1].pod.node_name
            seconds = monotonic() - assumed_pods[-1].since
            note = f"assumed to be bound for {seconds:.1f} s: the watch has not shown it yet"
            return PodReport(key, node, note, self._decisions.about(key), None)
        is_same = asked is not None and asked.uid == pod.uid  # else another pod had this name before
        decisions = self._decisions.about(key) if is_same else []
        now = None if pod.node_name else await self._explain(pod)
        note = "" if decisions or pod.node_name else _NEVER_ASKED
        return PodReport(key, pod.node_name, note, decisions, now)

    async def explain(self, manifest: str) -> Explanation:
        """A pod that need not exist. Raises ``ValueError`` where the manifest is not that of one pod."""
        return await self._explain(parse_pod(manifest, "the manifest"))

    async def _explain(self, pod: Pod) -> Explanation:
        """The pod against every node."""
        candidates = await candidates_of(self._state, pod)
        return explain(self._state, pod, candidates, self._possibly_bound(), time(), self._evictor)
