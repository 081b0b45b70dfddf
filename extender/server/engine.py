"""The verbs at work: messages in and out of the pure functions, on the state as it is now.

Loading this module compiles the kernels, which takes seconds; nothing that must answer before that may
import it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import PolicyRefresher
from extender.cluster.state import PossiblyBound
from extender.cluster.unconfirmed import UnconfirmedBindings
from extender.explain.decision_log import Decision, Decisions
from extender.explain.inspector import Inspector
from extender.explain.pod import explain_verdict
from extender.k8s.objects import DEVICE_KINDS, Event, Kind, Pod
from extender.protocol import codec as wire
from extender.protocol.messages import Verb, bind_error, filter_error
from extender.protocol.node_names import NO_NAMES, Bytes, NodeNames
from extender.server.metrics import Gauges, Gpus, Metrics
from extender.settings import Settings
from extender.source.interface import Source
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import KEPT_PODS
from extender.verbs.bind import Binder
from extender.verbs.evaluate import Evaluation
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from extender.verbs.prioritize import prioritize
from extender.verbs.recheck import LONGEST, RefusalRecheck
from extender.verbs.scores import TOP_LEVEL
from packing.fleet.fleet import Fleet

_log = logging.getLogger(__name__)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_RESOURCES: dict[Kind, str] = {"Node": "nodes", "Pod": "pods"}
_SEEN = 4096
"""Pods of filter requests that are remembered for bind: more than are ever on their way between the two."""
_UNSURE = "the API server was away, and other pods may have been bound where this one fits"
_NEXT_ANSWER = 0.01
"""Seconds after which the calls for one pod are over, most of the time."""
_BEHIND = "Stowage was cut off from the API server, and has not caught up yet"


class Engine:
    """State, where it comes from, and the verbs. Each verb returns the reply and what came of it."""

    def __init__(self, source: Source, settings: Settings, metrics: Metrics) -> None:
        self.state = state_of(settings)
        self.source, self._settings, self._metrics = source, settings, metrics
        self._seen: BoundedMap[str, Pod] = BoundedMap(_SEEN, KEPT_PODS)
        self._unseen = UnconfirmedBindings()
        self._decisions = Decisions(settings.decisions_kept, self.state.failures)
        self.state.binds = settings.bind
        self._binder = Binder(self.state, source, settings, self._possibly_bound)
        self.refresher = PolicyRefresher(self.state)
        self.inspector = Inspector(self.state, self._decisions, self._possibly_bound)
        self._recheck = RefusalRecheck(LONGEST if source.staleness() else 0.0)
        self.verbs: Mapping[Verb, Callable[[bytes], Awaitable[tuple[bytes, str]]]] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "preempt": self._preempt,
            "bind": self._bind,
        }

    def missing(self) -> str:
        """What has not been listed yet, "" when all has."""
        absent = [name for kind, name in _RESOURCES.items() if kind not in self.state.synced]
        # Who does not know which GPUs are given out as devices would refuse nodes for having none.
        absent = absent or (["devices"] if DEVICE_KINDS - self.state.synced else [])
        return f"{' and '.join(absent)} are not listed yet" if absent else ""

    def apply(self, events: Sequence[Event]) -> None:
        """Take in what the source says."""
        self._decisions.flush()  # in numbers of the moment when they were made
        unready = self.missing()
        for event in events:
            # A fault of ours must neither take other events with it nor end the service.
            try:
                self.state.apply([event])
            except Exception:
                _log.exception("the state did not take an event (%s)", type(event).__name__)
        try:
            self.state.devices.refresh(self.state.labels_of)  # now, that no verb has to wait for it
        except Exception:
            _log.exception("what is left of the devices of a node is not known")
        self._recheck.news()
        if unready and not self.missing():
            _log.info("ready: %s", self.source.describe())

    def set_server_version(self, version: str) -> None:
        """What kube-scheduler does with our reasons depends on its version, which is the API server's."""
        numbers = _VERSION.match(self._settings.kubernetes_version or version)
        known = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
        self.state.eviction_helps_extenders = known >= (1, 38)

    def gauges(self) -> Gauges:
        """The state in figures."""
        state, resources = self.state, _RESOURCES.items()
        ages = self.source.staleness()
        return Gauges(
            nodes=len(state.nodes),
            pods=len(state.pods),
            problems=len(state.problems),
            overcommitted=len(state.overcommitted),
            contradictions=state.contradictions,
            policy_failures=state.failures.counts,
            synced={name: kind in state.synced for kind, name in resources},
            assumed_pods=len(state.assumed_pods),
            tentative_seconds=state.assumed_pods.oldest(time.monotonic()),
            age_seconds={name: ages[kind] for kind, name in resources if kind in ages},
            gpus=gpus_by_model(state.fleet),
        )

    async def _filter(self, body: bytes) -> tuple[bytes, str]:
        args = wire.parse_filter(body)
        self._remember(args.pod)
        if not await self.source.caught_up():
            return filter_error(_BEHIND), "behind"
        result, verdict = await self._recheck.evaluate(
            lambda: filter_nodes(self.state, args, self._settings, self._possibly_bound()),
            lambda said: not (said[0].names or said[0].error),
        )
        if not (result.names or result.error) and verdict and verdict.possibly_bound:
            result, verdict = filter_nodes(self.state, args, self._settings)
            if result.names:
                result = wire.FilterResult(error=_UNSURE)
        if not (result.names or result.error):
            self._metrics.nothing_fitted([*result.failed, *result.unresolvable])
        if len(result.names) == 1:
            self._unseen.note(args.pod, result.names[0], time.monotonic())
        outcome = "refused" if result.error else "fits" if result.names else "nothing_fits"
        said = result.error or f"{len(result.names)} of {len(args.names)} nodes answered"
        self._note("filter", args.pod, said, verdict, args.names)
        return wire.encode_filter(result, args.nodes), outcome

    async def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        args = wire.parse_filter(body)
        scores, verdict = prioritize(self.state, args, self._possibly_bound())
        if scores.max(initial=0) == TOP_LEVEL:
            self._unseen.note(args.pod, args.names[int(scores.argmax())], time.monotonic())
        self._note("prioritize", args.pod, f"{len(scores)} nodes scored", verdict, args.names, scores)
        return wire.encode_priorities(args.names, scores), "scored"

    def _possibly_bound(self) -> PossiblyBound:
        """Which pods may have been bound where, as of now: while the watch is broken, and shortly after, some
        room may have been taken unseen."""
        if (interruption := self.source.interruption()) is None:
            return ()
        current = interruption.ended_at is not None  # then a pod that is not known is gone
        return [
            (pod, node)
            for pod, node in self._unseen.after(interruption, time.monotonic())
            if not (current and self.state.pod_by_uid(pod.uid) is None) and not self.state.is_bound(pod.uid)
        ]

    async def _preempt(self, body: bytes) -> tuple[bytes, str]:
        args = wire.parse_preempt(body)
        result = await self._recheck.evaluate(
            lambda: preempt(self.state, args, self._possibly_bound()), lambda said: not said.candidates
        )
        kept = ", ".join(result.candidates)
        said = f"{len(result.candidates)} of {len(args.candidates)} candidates kept{kept and ': '}{kept}"
        self._note("preempt", args.pod, said)
        return wire.encode_preempt(result), "victims" if result.candidates else "no_victims"

    async def _bind(self, body: bytes) -> tuple[bytes, str]:
        args = wire.parse_bind(body)
        self._decisions.flush()
        pod = self.state.pod_by_uid(args.uid) or self._seen.get(args.uid)
        error = await self._binder.bind(pod, args)
        if pod is not None:
            self._note("bind", pod, error or f"bound to {args.node}")
        return bind_error(error), "refused" if error else "bound"

    def _note(
        self,
        verb: Verb,
        pod: Pod,
        answer: str,
        verdict: Evaluation | None = None,
        names: NodeNames = NO_NAMES,
        scores: Bytes | None = None,
    ) -> None:
        """Keep a decision for the debug endpoint, explained once kube-scheduler has had its next answer."""
        _log.debug("%s %s: %s", verb, pod.key, answer)
        at = datetime.now(UTC)

        def explained() -> Decision:
            explanation = explain_verdict(self.state, names, verdict, scores) if verdict else None
            return Decision(at, verb, answer, explanation)

        if self._decisions.wanted and self._decisions.defer(pod, explained):
            asyncio.get_running_loop().call_later(_NEXT_ANSWER, self._decisions.flush)

    def _remember(self, pod: Pod) -> None:
        self._seen.put(pod.uid, pod, min(pod.size, KEPT_PODS // 16))


def gpus_by_model(fleet: Fleet) -> dict[str, Gpus]:
    """Sums over the nodes of each GPU model."""
    exists = fleet.arrays.compute_capacity > 0
    whole = (
        exists
        & (fleet.arrays.compute == fleet.arrays.compute_capacity)
        & (fleet.arrays.memory == fleet.arrays.memory_capacity)
    )
    free = np.maximum(fleet.arrays.compute, 0).sum(axis=0) / 1000
    sums: dict[str, Gpus] = {}
    for index, name in enumerate(fleet.names.model_names):
        here = fleet.arrays.model == index
        if installed := int(exists[:, here].sum()):
            before = sums.get(name or "unknown", Gpus(0, 0.0, 0))  # of another product of the same model
            sums[name or "unknown"] = Gpus(
                before.installed + installed,
                before.free + float(free[here].sum()),
                before.whole + int(whole[:, here].sum()),
            )
    return sums
