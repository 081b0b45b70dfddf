"""Runs Volcano's verbs on the current state: parses the message, calls the verb, encodes the reply.

Volcano treats any status but 200 as a failed call, which ``extender.ignorable`` tells it to ignore or not.
So a refusal is another status, and an answer is always 200.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from extender.cluster.state import State
from extender.explain.decision_log import LONGEST_ANSWER
from extender.k8s.objects import Pod
from extender.logs import DECISION, log_decision
from extender.protocol import volcano as codec
from extender.protocol.volcano import Code, Task, VolcanoVerb, Vote
from extender.server.metrics import Metrics
from extender.source.errors import BEHIND
from extender.source.interface import RECENT, Source
from extender.untrusted.limits import shorten
from extender.verbs.eviction.plan import in_one_line
from extender.verbs.volcano_verbs import (
    VolcanoSession,
    VolcanoVictims,
    allocate,
    deallocate,
    predicate,
    prioritize_nodes,
    victims,
)

_log = logging.getLogger(__name__)

KeepDecision = Callable[[str, Pod, str], None]
Answer = Awaitable[tuple[bytes, str]]


class VolcanoVerbs:
    """The verbs by name. Each returns the reply and a result for the metric."""

    def __init__(
        self,
        state: State,
        source: Source,
        metrics: Metrics,
        keep_decision: KeepDecision,
    ) -> None:
        self._state, self._source, self._metrics, self._keep_decision = state, source, metrics, keep_decision
        self.session = VolcanoSession(state)
        self.by_name: Mapping[str, Callable[[bytes], Answer]] = {
            "volcano/onSessionOpen": self._end_session,
            "volcano/onSessionClose": self._end_session,
            "volcano/predicate": self._predicate,
            "volcano/prioritize": self._prioritize,
            "volcano/preemptable": partial(self._victims, "volcano/preemptable"),
            "volcano/reclaimable": partial(self._victims, "volcano/reclaimable"),
            "volcano/allocate": self._allocate,
            "volcano/deallocate": self._deallocate,
        }

    async def _end_session(self, body: bytes) -> tuple[bytes, str]:
        self.session.end()
        return b"{}", "done"

    async def _predicate(self, body: bytes) -> tuple[bytes, str]:
        args = codec.parse_predicate(body)
        if not await self._source.caught_up(RECENT):
            return codec.encode_predicate(BEHIND, Code.ERROR), "behind"
        pod = self._state.pods.by_uid(args.task.UID) or codec.task_pod(args.head)
        text, code = predicate(self.session, pod, args.node, args.counted)
        self._metrics.nodes_filtered({text or "fits": 1})
        return codec.encode_predicate(text, code), "refused" if text else "fits"

    async def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        args = codec.parse_prioritize(body)
        pod = self._state.pods.by_uid(args.task.UID) or codec.task_pod(args.head)
        return codec.encode_priorities(prioritize_nodes(self.session, pod, args.nodes)), "scored"

    async def _victims(self, verb: VolcanoVerb, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        args = codec.parse_eviction(body)
        pod = self._state.pods.by_uid(args.evictor.UID) or codec.evictor_pod(args.body)
        found = victims(self.session, pod, args.candidates)
        chosen = [
            evictee
            for evictee, task in zip(args.evictees, args.candidates, strict=True)
            if task.UID in found.uids
        ]
        answer = self._note_victims(verb, pod, found, args.candidates)
        result = "no_opinion" if found.vote is Vote.ABSTAIN else "victims" if chosen else "no_victims"
        level, seconds = logging.INFO if found.uids else DECISION, time.perf_counter() - started
        log_decision(_log, answer, verb, pod.key, result=result, seconds=seconds, level=level)
        return codec.encode_victims(found.vote, chosen), result

    def _note_victims(
        self, verb: VolcanoVerb, pod: Pod, found: VolcanoVictims, candidates: Sequence[Task]
    ) -> str:
        """Count and keep an answer; returns it as text."""
        queue_of, now = self._state.rights.queues.name_of, time.time()
        for plan in found.plans:
            chosen = [victim for victim in plan.victims if victim.uid in found.uids]
            self._metrics.victims_proposed(map(queue_of, chosen), queue_of(pod))
        plans = "; ".join(in_one_line(self._state, plan, now) for plan in found.plans)
        answer = f"{len(found.uids)} of {len(candidates)} candidates"
        answer = shorten(f"{answer}: {plans}" if plans else answer, LONGEST_ANSWER)
        self._keep_decision(verb, pod, answer)
        return answer

    async def _allocate(self, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        task = codec.parse_event(body)
        if not await self._source.caught_up():
            return codec.encode_event(BEHIND), "behind"
        pod = self._state.pods.by_uid(task.UID)
        error = allocate(self.session, task, pod)
        result = "refused" if error else "allocated"
        if pod is not None and not pod.node_name:
            answer, seconds = error or f"allocated to {task.NodeName}", time.perf_counter() - started
            verb, node = "volcano/allocate", task.NodeName
            log_decision(_log, answer, verb, pod.key, node=node, result=result, seconds=seconds)
            self._keep_decision(verb, pod, answer)
        return codec.encode_event(error), result

    async def _deallocate(self, body: bytes) -> tuple[bytes, str]:
        deallocate(self.session, codec.parse_event(body))
        return codec.encode_event(), "deallocated"
