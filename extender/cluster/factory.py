"""Construction of the cluster state from settings: the chosen policy, and the demand mix that it expects. A
dump of a state holds all that is needed to reconstruct it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from extender.background import Failures
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.manifest import pairs_of
from extender.k8s.node_filter import node_requirement
from extender.k8s.objects import Container, Pod, PodSpec
from extender.k8s.quantity import QuantityError
from extender.queues.disruptions import DisruptionLog
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import ExpectedRequest, Settings, SettingsError
from extender.source.state_dump import Header, Learned, end_line, header_line, record_line
from extender.untrusted.limits import STATE_DUMP
from packing.cost.demand import Mix
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.feasibility_kernels import finite_where_fits
from packing.fleet.fleet import Fleet
from packing.fleet.placement import freest_gpus
from packing.model.gpu_catalog import GpuValues
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Due, Policy, Solve
from packing.policies.registry import POLICIES

_DUMPED = 20
"""Records of a dump to render before other tasks run: about a millisecond."""
_SECRET = {"debug_token_file", "debug_token_review"}
"""Settings that protect the service. No answer depends on them."""


class GuardedPolicy:
    """The ``chosen`` policy, with a ``fallback`` for costs and choices. No method raises.

    A policy only compares nodes that fit, so a fault in it only makes packing worse. If a plan fails, the
    last good tables stay in use. If a cost or a choice fails, the fallback decides; if that fails too, all
    nodes that fit are equal. Each failure is counted (``stowage_policy_failures_total``), and each kind is
    logged once.
    """

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self.name = policy.name
        self.failures = Failures()
        self.chosen, self._policies = policy, (policy, fallback)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Finite on every node where the request fits. If there are none, no policy is called."""
        codes = reasons_for(fleet, request)
        if codes.all():  # none is 0, ``FITS``
            return np.full(codes.size, np.inf, np.float32)
        for policy in self._policies:
            with self.failures.caught("cost"):
                cost = policy.cost(fleet, request)
                if finite_where_fits(codes, cost):
                    return cost
                raise ValueError("no finite cost for a node that fits")
        return np.where(codes == Reason.FITS, 0, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        for policy in self._policies:
            with self.failures.caught("choose"):
                return policy.choose(fleet, request, row)
        return freest_gpus(fleet, row, request)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        with self.failures.caught("terms"):
            return self.chosen.terms(fleet, request, row)
        return {}

    def observe(self, request: Request) -> None:
        with self.failures.caught("observe"):
            self.chosen.observe(request)

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        """If any part fails, the tables remain unchanged."""
        with self.failures.caught("plan"):
            solve = self.chosen.update(fleet, due)
            return solve and partial(self._solve, solve)
        return None

    def _solve(self, solve: Solve) -> Callable[[], None]:
        with self.failures.caught("plan"):
            return partial(self._adopt, solve())
        return lambda: None

    def _adopt(self, adopt: Callable[[], None]) -> None:
        with self.failures.caught("plan"):
            adopt()


def state_of(settings: Settings, dump: Header | None = None, *, live: bool = False) -> State:
    """A state without nodes or pods, with these settings. Raises ``SettingsError``.

    ``dump``: what a service has learned and remembers. Nothing is then learned from the pods of the dump,
    which the service already knew.

    ``live``: pods arrive and end, as in the service. Otherwise, pods are only placed, and the policy assumes
    no turnover, except that of the dump.
    """
    prior = _learned(dump) if dump else prior_of(settings.demand)
    check_policy(settings.policy)
    minimum, arrived = settings.minimum_slice_milli, dump.arrived if dump else 0
    filling = dump is None and not live
    chosen = POLICIES[settings.policy](prior=prior, arrived=arrived, minimum_milli=minimum, filling=filling)
    policy = GuardedPolicy(chosen, fallback=POLICIES["best-fit"]())
    rights = Rights(Queues(settings.queues), settings.evict_kueue_pods)
    state = State(policy, rights, DisruptionLog(settings.shield_seconds))
    state.learner.stopped = dump is not None
    if dump:
        state.disruptions.load(dump.disruptions)
        state.gangs.load_succeeded(dump.succeeded)
        state.eviction_helps_extenders = dump.eviction_helps_extenders
    state.learner.monitor.expect(prior)
    if settings.kubernetes_version:
        state.set_version(settings.kubernetes_version)
    state.failures = policy.failures
    state.spot = settings.spot
    state.nodes.spot_marks = frozenset(settings.spot_nodes)
    state.nodes.enforces_shares = settings.enforce_shares
    state.plain_gpu, state.plain_gpu_by_namespace = settings.plain_gpu, settings.plain_gpu_by_namespace
    by_queue = (queue.plain_gpu for queue in settings.queues.values())
    state.any_whole = "whole" in {settings.plain_gpu, *settings.plain_gpu_by_namespace.values(), *by_queue}
    state.end_costs.enabled = settings.lifetimes
    state.large_jobs.mode = settings.reserve if live else "off"
    state.large_jobs.evicts_equals = settings.evictor == "on"
    if settings.node_selector is not None:
        state.unknown_node = Reason.NOT_IN_SHARD
    state.fleet.separate = settings.separate_gpus
    state.fleet.values = GpuValues(settings.gpu_values)
    state.gang_check, state.gang_holds.seconds = settings.gang_check, settings.gang_hold_seconds
    state.fleet.minimum_milli = settings.minimum_slice_milli
    return state


def check_policy(name: str) -> None:
    """Raises ``SettingsError`` if there is no such policy."""
    if name not in POLICIES:
        raise SettingsError(f"policy: invalid value {name!r}; expected one of {', '.join(POLICIES)}")


def prior_of(expected: Sequence[ExpectedRequest]) -> Mix | None:
    """The mix of these requests; None if there are none. Raises ``SettingsError`` with the index in the
    list."""
    weights: Counter[Request] = Counter()
    for place, entry in enumerate(expected):
        weights[_request(place, entry)] += entry.weight  # type: ignore[assignment]
    return Mix.of(weights) if weights else None


def _learned(dump: Header) -> Mix | None:
    weights = {entry.request: entry.weight for entry in dump.learned if entry.weight > 0}
    total = sum(weights.values())
    return Mix(tuple(weights), tuple(weight / total for weight in weights.values())) if weights else None


def _request(place: int, expected: ExpectedRequest) -> Request:
    resources, selector = pairs_of(expected.resources), pairs_of(expected.node_selector)
    spec = PodSpec((Container("", resources, resources),), node_selector=selector)
    pod = Pod("", "", spec=spec, annotations=expected.annotations, labels=expected.labels)
    try:
        request = request_of(pod)
    except (RequestError, QuantityError) as error:
        raise SettingsError(f"demand.{place}: {error}") from None
    if not request.wants_gpu:
        raise SettingsError(f"demand.{place}: requests no GPU")
    return replace(request, node_set=node_requirement(pod))


async def state_lines(state: State, settings: Settings, version: str, replica: str) -> AsyncIterator[bytes]:
    """Dump of all that a replica knows at one moment, a few lines at a time (``source.state_dump``), so that
    requests are served in between. Beyond ``STATE_DUMP`` bytes, it stops without the end line."""
    records = state.records()  # immutable
    demand = state.learner.monitor.demand
    head = header_line(
        Header(
            version=version,
            replica=replica,
            at=time.time(),
            settings=settings.model_dump(mode="json", exclude_defaults=True, exclude=_SECRET),
            learned=tuple(Learned(request, weight) for request, weight in demand.counts().items()),
            arrived=demand.seen,
            disruptions=state.disruptions.dump(),
            succeeded=state.gangs.succeeded(),
            eviction_helps_extenders=state.eviction_helps_extenders,
        )
    )
    size = len(head)
    yield head
    for start in range(0, len(records), _DUMPED):
        lines = b"".join(map(record_line, records[start : start + _DUMPED]))
        size += len(lines)
        if size > STATE_DUMP:
            return
        yield lines
        await asyncio.sleep(0)
    yield end_line(len(records))
