"""Runs the verbs on the current state: parses the message, calls the verb, encodes the reply.

Importing this module loads the kernels, which takes seconds if they must be compiled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pydantic_core import from_json, to_json

from extender.background import Run
from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import INTERVAL, PolicyRefresher, choose_node_sets_now
from extender.cluster.reservations import Reserved, RetryOrder
from extender.dialects.pod_request import bound_request
from extender.evictor.book import Schedulers
from extender.evictor.planner import Asked
from extender.explain.answers import Decision
from extender.explain.decision_log import LONGEST_ANSWER, Decisions
from extender.explain.history import LEARNED, History, history_of
from extender.explain.inspector import Inspector
from extender.explain.pod import explain_evaluation
from extender.k8s.node_filter import has_unknown_filters
from extender.k8s.objects import Event, Pod
from extender.logs import DECISION, log_decision
from extender.protocol import codec
from extender.protocol.messages import bind_error, filter_error
from extender.protocol.node_names import NO_NAMES, Bytes, NodeNames
from extender.server.between_answers import AfterAnswer
from extender.server.gauges import Gauges
from extender.server.metrics import Metrics
from extender.server.volcano import VolcanoVerbs
from extender.settings import Settings
from extender.source.errors import BEHIND
from extender.source.interface import RECENT, Source
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import HISTORY_RUNS, KEPT_PODS, LARGE_BODY, STEPS_AT_ONCE, shorten
from extender.untrusted.visible import listed
from extender.verbs.bind import Binder, expire_forever
from extender.verbs.evaluate import Evaluation, search_devices
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import GO_FOR_ANOTHER, STILL_THERE, NamedVictims, Preemption, in_words, preempt
from extender.verbs.prioritize import LastFilter, Scored, prioritize, scored
from extender.verbs.recheck import LONGEST, RefusalRecheck

if TYPE_CHECKING:
    from extender.server.tracing import Tracing

_log = logging.getLogger(__name__)
_AWAITED = frozenset(WATCHED_KINDS)  # faster than its keys
_RECENT_PODS = 4096
"""Pods of filter requests that are kept for bind: more than can be between filter and bind at once."""
_POSSIBLY_TAKEN = "the API server did not answer, and other pods may have been bound where this pod fits"
_JOINING = "no node fits, but a node joins the shard of this Stowage within seconds"
_OTHERS_FIRST = "pods of higher priority are tried first after an interruption"
_Args = TypeVar("_Args")
_NEXT_ANSWER = 0.01  # seconds in which kube-scheduler usually makes all calls for one pod


class Engine:
    """The state and the verbs. Each verb returns the reply and a result for the metric."""

    def __init__(self, source: Source, settings: Settings, metrics: Metrics) -> None:
        self.state = state_of(settings, live=True)
        self.state.allocations.deferred = True  # until the first lists are complete; until then no verb runs
        self.state.simulator.at_once = STEPS_AT_ONCE
        self.source, self._settings, self._metrics = source, settings, metrics
        self.tracing: Tracing | None = None
        self._recent_pods: BoundedMap[str, Pod] = BoundedMap(_RECENT_PODS, KEPT_PODS)
        self._retry_order, self._named_victims = RetryOrder(), NamedVictims()
        self._schedulers = Schedulers(settings.evictor_schedulers)
        self._refused_nodes: BoundedMap[str, bytes] = BoundedMap(_RECENT_PODS, KEPT_PODS)
        self._last_filter, self._parsing = LastFilter(self.state), asyncio.Lock()
        self.after = AfterAnswer()
        self.history = history_of(settings)
        record = [self.history.add_decision] if self.history else []
        self._decisions = Decisions(settings.decisions_kept, self.state.failures, *record)
        self.state.binds, self.server_version = settings.bind, ""
        self.state.reservations.interruption = source.interruption
        self._binder = Binder(self.state, source, settings)
        self.refresher = PolicyRefresher(self.state)
        self.inspector = Inspector(self.state, self._decisions, settings, self.history)
        self._recheck = RefusalRecheck(LONGEST if source.watches() else 0.0)
        self.gauges = Gauges(self.state, source, self._recheck, self.inspector)
        self.state.pods.on_bound = self._pod_bound
        self.verbs: dict[str, Callable[[bytes], Awaitable[tuple[bytes, str]]]] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "preempt": self._preempt,
            "bind": self._bind,
        }
        if settings.volcano:
            self.verbs |= VolcanoVerbs(self.state, source, metrics, self._keep_decision).by_name

    def tasks(self) -> Iterator[tuple[str, Run]]:
        """Background tasks, each with its name. They run until cancelled."""
        yield "refresh of the policy", self._refresh
        yield "expiry of assumed pods", lambda: expire_forever(self.state, self.source)
        yield "history of the fleet", lambda: self.inspector.run(lambda: not self.missing())
        if self.history:
            yield "history on disk", partial(self._keep_history, self.history)
        yield "forecast of starts", lambda: self.inspector.starts.run(lambda: not self.missing())

    async def _keep_history(self, kept: History) -> None:
        """Write what is added, and first read the run times of earlier processes."""
        for uid, kinds, seconds in reversed(await kept.last(LEARNED, b'"learned":', HISTORY_RUNS)):
            self.state.end_costs.learn(uid, kinds, seconds)
        self.state.end_costs.on_learned = lambda *run: kept.add("learned", run, time.time())
        await kept.run()

    async def _refresh(self) -> None:
        while self.missing():  # no verb runs yet, and the lists would outdate the first tables
            await asyncio.sleep(INTERVAL)
        await self.refresher.run()

    def missing(self) -> str:
        """The first kinds that have not been listed yet, and why, as text; "" if no verb waits for any."""
        if self.state.synced >= _AWAITED:
            return ""
        awaited = [row for kind, row in WATCHED_KINDS.items() if kind not in self.state.synced]
        watch = self.source.watches().get(awaited[0].kind)
        why = f": {shorten(watch.problem)}" if watch and watch.problem else ""
        return f"{listed([row.full_resource for row in awaited], 2)} are not listed yet{why}"

    def apply(self, events: Sequence[Event]) -> None:
        """Apply events of the source to the state."""
        self.finish_answers()
        unready = self.missing()
        for event in events:
            # An error must neither lose other events nor end the service.
            try:
                self.state.apply([event])
            except Exception:
                _log.exception("the state could not apply an event (%s)", type(event).__name__)
        try:
            self.state.devices.refresh(self.state.nodes.labels_of)  # now, so that no verb waits for it
        except Exception:
            _log.exception("the free devices of a node could not be computed")
        self._recheck.state_changed()
        if unready and not self.missing():
            choose_node_sets_now(self.state)  # so that the first costs reflect what pods require of nodes
            self._warm_up()
            _log.info("ready: %s", self.source.describe())

    def _warm_up(self) -> None:
        """Evaluate a made-up pod with one GPU before the first real pod, whose answer would take ten times as
        long: names become rows, all nodes get prices and costs, and code runs for the first time. Some
        10 ms for 5,000 nodes. No other effect remains."""
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        metadata = {"name": "warm-up", "namespace": "stowage", "uid": "warm-up"}
        pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": limits}]}}
        try:
            names = list(self.state.fleet.rows)
            args = codec.parse_filter(to_json({"Pod": pod, "Nodes": None, "NodeNames": names}))
            result, evaluation = filter_nodes(self.state, args, self._settings)
            codec.encode_filter(result, args.nodes)
            scores, _ = prioritize(self.state, args)
            codec.encode_priorities(args.names, scores)
            if evaluation is not None:
                explain_evaluation(self.state, args.names, evaluation, scores)
        except Exception:  # if the first request also fails, its log entry is clearer
            _log.exception("the first evaluation failed")

    def finish_answers(self) -> None:
        """Run the calls deferred until after the answers, with the state of these answers: call this before
        the state changes, and before answers are shown."""
        self.after.run()
        self._decisions.flush()

    def set_server_version(self, version: str) -> None:
        """``version``: of the API server, and so of kube-scheduler unless the settings name another one."""
        self.server_version = version
        self.state.set_version(self._settings.kubernetes_version or version)

    def asked(self) -> Asked:
        """Facts that the evictor learns from the verbs."""
        return Asked(self._schedulers, lambda uid: from_json(self._refused_nodes.get(uid) or b"[]"))

    async def _parsed(self, parse: Callable[[bytes], _Args], body: bytes) -> _Args:
        """Large messages are parsed in a thread, so that other requests are answered."""
        if len(body) < LARGE_BODY:
            return parse(body)
        async with self._parsing:
            return await asyncio.to_thread(parse, body)

    async def _parsed_filter(self, body: bytes) -> codec.FilterArgs:
        if len(body) < LARGE_BODY:
            args = codec.parse_filter(body, self.state.pods.by_uid)
        else:
            args = await self._parsed(codec.parse_filter, body)
        if self.tracing:
            self.tracing.note(pod=args.pod.key, nodes=len(args.names))
        return args

    async def _filter(self, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        args = await self._parsed_filter(body)
        self.after.add(partial(self._remember, args.pod))
        if not await self.source.caught_up(RECENT):
            self._retry_order.interrupted(time.monotonic())
            return filter_error(BEHIND), "behind"
        if self._retry_order.must_wait(self.state.pods.failed_pods(), args.pod, time.monotonic()):
            return filter_error(_OTHERS_FIRST), "others_first"
        result, evaluation = await self._evaluated(args)
        if not (result.names or result.error) and evaluation and self.state.reservations.possibly_bound():
            with self.state.reservations.without_possibly_bound():
                result, evaluation = filter_nodes(self.state, args, self._settings)
            if result.names:
                result = codec.FilterResult(error=_POSSIBLY_TAKEN)
        if not (result.names or result.error) and (reason := self._expected(args)):
            result = codec.FilterResult(error=reason)
        self._last_filter.keep(evaluation, args, result)
        self._schedulers.note(args.pod.scheduler_name)
        if not (result.names or result.error):
            self._nothing_fits(args, [*evaluation.counts()] if evaluation else [*result.unresolvable])
        if len(result.names) == 1:
            self._answered(args.pod, result.names[0])
        if self.tracing:
            self.tracing.note(answered=len(result.names))
        outcome = "refused" if result.error else "fits" if result.names else "nothing_fits"
        seconds = time.perf_counter() - started
        self.after.add(partial(self._filtered, args, result, evaluation, outcome, seconds))
        if args.nodes is None:
            return codec.encode_filter(result), outcome
        return await asyncio.to_thread(codec.encode_filter, result, args.nodes), outcome

    async def _evaluated(self, args: codec.FilterArgs) -> tuple[codec.FilterResult, Evaluation | None]:
        result, evaluation = await self._recheck.evaluate(
            lambda: filter_nodes(self.state, args, self._settings),
            lambda answer: not (answer[0].names or answer[0].error),
        )
        if evaluation and evaluation.unfinished:
            await search_devices(self.state, args.pod, args.names)
            result, evaluation = filter_nodes(self.state, args, self._settings)
        return result, evaluation

    def _nothing_fits(self, args: codec.FilterArgs, reasons: Sequence[str]) -> None:
        self._metrics.nothing_fitted(reasons)
        if self._settings.evictor != "off" and has_unknown_filters(args.pod):
            names = args.names.json()
            self._refused_nodes.put(args.pod.uid, names, len(names))

    def _answered(self, pod: Pod, node: str) -> None:
        """Reserve the node that kube-scheduler will most likely choose."""
        self.state.reservations.answered(pod, node, self.state.gangs.cycle_of(pod))

    def _filtered(
        self,
        args: codec.FilterArgs,
        result: codec.FilterResult,
        found: Evaluation | None,
        outcome: str,
        seconds: float,
    ) -> None:
        self._last_filter.prepare()
        if found is not None:
            self._metrics.nodes_filtered(found.counts())
        fitting = found.fitting if found else len(result.names)
        answer = result.error or f"{fitting} of {len(args.names)} nodes fit"
        node = result.names[0] if len(result.names) == 1 else ""
        log_decision(_log, answer, "filter", args.pod.key, node=node, result=outcome, seconds=seconds)
        self._keep_decision("filter", args.pod, answer, found, args.names, fits=fitting > 0)

    async def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        answer = await self._scores(body)
        if self.tracing:
            self.tracing.note(pod=answer.args.pod.key, node=answer.best, nodes=answer.scores.size)
        if answer.best:
            self._answered(answer.args.pod, answer.best)
        self.after.add(partial(self._prioritized, answer, time.perf_counter() - started))
        return answer.reply, "scored"

    def _prioritized(self, answer: Scored, seconds: float) -> None:
        args, text = answer.args, f"{answer.scores.size} nodes scored"
        pod, best = args.pod.key, answer.best
        log_decision(_log, text, "prioritize", pod, node=best, result="scored", seconds=seconds)
        self._keep_decision("prioritize", args.pod, text, answer.evaluation, args.names, answer.scores)

    def _expected(self, args: codec.FilterArgs) -> str:
        """A change expected within seconds that may make the pod fit, "" for none. No cluster event would
        requeue an unschedulable pod then; a failed attempt is retried."""
        if (joining := self.source.joining()) and any(name in joining for name in args.names):
            return _JOINING
        unseen = self._named_victims.still_there(args.pod.uid, self.state.pods, time.monotonic())
        return STILL_THERE if unseen else ""

    async def _scores(self, body: bytes) -> Scored:
        if (continued := self._last_filter.continued(body)) is not None:
            return continued
        args = await self._parsed_filter(body)
        scores, evaluation = prioritize(self.state, args)
        if evaluation and evaluation.unfinished:
            await search_devices(self.state, args.pod, args.names)
            scores, evaluation = prioritize(self.state, args)
        return scored(args, scores, evaluation)

    async def _preempt(self, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        args = await self._parsed(codec.parse_preempt, body)
        result = await self._recheck.evaluate(
            lambda: preempt(self.state, args, time.time(), most=self._settings.preempt_nodes),
            lambda answer: not answer.candidates,
        )
        uid, now = args.pod.uid, time.monotonic()
        if self._named_victims.go_for_another(uid, result.candidates, self.state.pods, now):
            result = Preemption(empty=GO_FOR_ANOTHER)
        if len(result.plans) == 1:
            self.state.reservations.reserve(uid, Reserved.NOMINATING, result.plans[0].node)
        if self.tracing:
            nodes, answered = len(args.candidates), len(result.candidates)
            self.tracing.note(pod=args.pod.key, nodes=nodes, answered=answered)
        self._named_victims.remember_named(uid, result.candidates, now)
        self._log_preemption(args.pod, result, len(args.candidates), time.perf_counter() - started)
        return codec.encode_preempt(result.candidates), "victims" if result.candidates else "no_victims"

    def _log_preemption(self, pod: Pod, result: Preemption, proposed: int, seconds: float) -> None:
        queue_of = self.state.rights.queues.name_of
        for plan in result.plans:
            self._metrics.victims_proposed([queue_of(victim) for victim in plan.victims], queue_of(pod))
        answer = shorten(in_words(self.state, result, proposed, time.time()), LONGEST_ANSWER)
        level, outcome = (logging.INFO, "victims") if result.candidates else (DECISION, "no_victims")
        node = result.plans[0].node if len(result.plans) == 1 else ""
        log_decision(
            _log, answer, "preempt", pod.key, node=node, result=outcome, seconds=seconds, level=level
        )
        self._keep_decision("preempt", pod, answer)

    async def _bind(self, body: bytes) -> tuple[bytes, str]:
        started = time.perf_counter()
        args = codec.parse_bind(body)
        if self.tracing:
            self.tracing.note(pod=f"{args.namespace}/{args.name}", node=args.node)
        self.finish_answers()
        pod = self.state.pods.by_uid(args.uid) or self._recent_pods.get(args.uid)
        if pod is not None and pod.key != f"{args.namespace}/{args.name}":
            pod = None
        error = await self._binder.bind(pod, args)
        answer, outcome = error or f"bound to {args.node}", "refused" if error else "bound"
        key, seconds = f"{args.namespace}/{args.name}", time.perf_counter() - started
        log_decision(_log, answer, "bind", key, node=args.node, result=outcome, seconds=seconds)
        if pod is not None:
            self._keep_decision("bind", pod, answer)
        return bind_error(error), outcome

    def _pod_bound(self, pod: Pod) -> None:
        self.inspector.starts.bound(pod)
        if pod.created and bound_request(pod).request.wants_gpu:
            waited = max(0.0, time.time() - pod.created)
            self._metrics.pod_bound(self.state.rights.queue_name(pod), waited)

    def _keep_decision(
        self,
        verb: str,
        pod: Pod,
        answer: str,
        evaluation: Evaluation | None = None,
        names: NodeNames = NO_NAMES,
        scores: Bytes | None = None,
        *,
        fits: bool = True,
    ) -> None:
        """Keep a decision for the debug endpoint. It is explained after kube-scheduler's next calls."""
        if not self._decisions.wanted:
            return
        explain = partial(explain_evaluation, self.state, names, evaluation, scores) if evaluation else None
        if self._decisions.defer(pod, Decision(datetime.now(UTC), verb, answer), explain, fits=fits):
            asyncio.get_running_loop().call_later(_NEXT_ANSWER, self._decisions.flush)

    def _remember(self, pod: Pod) -> None:
        self._recent_pods.put(pod.uid, pod, min(pod.size, KEPT_PODS // 16))
