"""A slow planner for tests: the smallest set of pods of a node without which the pod fits there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Pod
from extender.verbs.evaluate import reason_on
from extender.verbs.eviction.plan import EvictionPlan
from packing.model.reasons import Reason


def plan_evictions(
    state: State,
    pod: Pod,
    nodes: Sequence[str],
    now: float,
    *,
    to_equals: bool = False,
    whole_gangs: bool = False,
    required: Mapping[str, Collection[str]] | None = None,
    trials: int = 0,
) -> list[EvictionPlan]:
    """Terminating pods cost nothing; the cost is the number of the others. A label ``budget: none`` is a
    violation of a PodDisruptionBudget."""
    plans = []
    rules = state.rules_for(pod, now, to_equals=to_equals)
    for node in nodes:
        allowed = [one for one in state.pods.on_node(node) if one.deleting or not any(rules.why_not([one]))]
        sets = (chosen for size in range(1, len(allowed) + 1) for chosen in combinations(allowed, size))
        for chosen in sorted(sets, key=lambda chosen: sum(not one.deleting for one in chosen)):
            if fits_without(state, pod, node, chosen):
                staying = [one for one in chosen if not one.deleting]
                violations = sum(one.labels.get("budget") == "none" for one in staying)
                plans.append(EvictionPlan(node, chosen, (float(len(staying)),), violations))
                break
    return sorted(plans, key=lambda plan: (plan.cost, plan.node))


def fits_without(state: State, pod: Pod, node: str, victims: Sequence[Pod]) -> bool:
    held = [allocation for one in victims for allocation in state.pods.allocations_of(one)]
    with state.fleet.without(held):
        return reason_on(state, pod, request_of(pod), node) is Reason.FITS
