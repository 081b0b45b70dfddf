"""Makes the state of the cluster from settings: the policy in force, and the demand mix that it expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from extender.cluster.guarded_policy import GuardedPolicy
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import node_requirement
from extender.k8s.objects import Container, Pod, PodSpec
from extender.k8s.quantity import QuantityError
from extender.queues.disruptions import DisruptionLog
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import ExpectedRequest, Settings, SettingsError
from extender.source.state_dump import Header
from packing.cost.demand import Mix
from packing.model.gpu_catalogue import GpuValues
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.registry import POLICIES


def state_of(settings: Settings, dump: Header | None = None) -> State:
    """A state without nodes or pods, under these settings. Raises ``SettingsError``.

    ``dump``: what a service has learnt and remembers. Then pods that come teach nothing: it knew them.
    """
    prior = _learnt(dump) if dump else prior_of(settings.demand)
    policy = _policy(settings, prior)
    rights = Rights(Queues(settings.queues), settings.evict_kueue_pods)
    state = State(policy, rights, DisruptionLog(settings.shield_seconds))
    state.nodes.sets.expect(prior)
    state.learner.stopped = dump is not None
    if dump:
        state.disruptions.load(dump.disruptions)
        state.gangs.load_succeeded(dump.succeeded)
        state.eviction_helps_extenders = dump.eviction_helps_extenders
    state.learner.monitor.expect(prior)
    state.failures = policy.failures
    state.spot = settings.spot
    state.nodes.spot_marks = frozenset(settings.spot_nodes)
    state.plain_gpu, state.plain_gpu_by_namespace = settings.plain_gpu, settings.plain_gpu_by_namespace
    by_queue = (queue.plain_gpu for queue in settings.queues.values())
    state.any_whole = "whole" in {settings.plain_gpu, *settings.plain_gpu_by_namespace.values(), *by_queue}
    state.end_costs.enabled = settings.lifetimes
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


def _policy(settings: Settings, prior: Mix | None) -> GuardedPolicy:
    """The policy in force, whose errors fail no request."""
    check_policy(settings.policy)
    policy = POLICIES[settings.policy](prior=prior, minimum_milli=settings.minimum_slice_milli)
    return GuardedPolicy(policy, fallback=POLICIES["best-fit"]())


def prior_of(expected: Sequence[ExpectedRequest]) -> Mix | None:
    """The mix of these requests; None without any. Raises ``SettingsError``, with the place in the list."""
    weights: Counter[Request] = Counter()
    for place, entry in enumerate(expected):
        weights[_request(place, entry)] += entry.weight  # type: ignore[assignment]
    return Mix.of(weights) if weights else None


def _learnt(dump: Header) -> Mix | None:
    weights = {one.request: one.weight for one in dump.learnt if one.weight > 0}
    total = sum(weights.values())
    return Mix(tuple(weights), tuple(weight / total for weight in weights.values())) if weights else None


def _request(place: int, expected: ExpectedRequest) -> Request:
    resources = tuple(sorted(expected.resources.items()))
    selector = tuple(sorted(expected.node_selector.items()))
    spec = PodSpec((Container("", resources, resources),), node_selector=selector)
    pod = Pod("", "", spec=spec, annotations=expected.annotations, labels=expected.labels)
    try:
        request = request_of(pod)
    except (RequestError, QuantityError) as error:
        raise SettingsError(f"demand.{place}: {error}") from None
    if not request.wants_gpu:
        raise SettingsError(f"demand.{place}: asks for no GPU")
    return replace(request, node_set=node_requirement(pod))
