"""Eviction plans in words, for logs, decisions and explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.verbs.eviction.node_pods import work_lost
from extender.verbs.eviction.plan import EvictionPlan

_SHOWN = 8
"""Victims that are named in one sentence."""


def losses(state: State, plan: EvictionPlan, now: float) -> str:
    """Who loses what: "2 pods of queue backfill lose 3.2 GPU-hours". Pods that terminate already lose nothing
    by this."""
    pods: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for pod in plan.to_evict:
        queue = state.rights.queues.name_of(pod)
        pods[queue] += 1
        seconds[queue] += work_lost(state, pod, now)  # type: ignore[assignment]
    texts = [_loss(queue, count, seconds[queue] / 3600) for queue, count in pods.items()]
    leaving = len(plan.victims) + len(plan.other_nodes) - pods.total()
    texts += [f"{count_of_pods(leaving)} already terminating"] if leaving else []
    if plan.pdb_violations:
        texts.append(f"{plan.pdb_violations} against a PodDisruptionBudget")
    return "; ".join(texts)


def gpu_hours(state: State, plan: EvictionPlan, now: float) -> float:
    """The work that is lost, in GPU-hours."""
    return sum(work_lost(state, pod, now) for pod in plan.to_evict) / 3600


def count_of_pods(count: int) -> str:
    """Such as "1 pod" or "3 pods"."""
    return f"{count} pod{'s' if count != 1 else ''}"


def named(pods: Iterable[Pod]) -> str:
    """The keys of the first of these pods, and how many there are beside them."""
    keys = [shorten(pod.key, KEY) for pod in pods]
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def in_one_line(state: State, plan: EvictionPlan, now: float) -> str:
    """Node, victims, what they lose, and the cost."""
    elsewhere = f", and on other nodes {named(plan.other_nodes)}" if plan.other_nodes else ""
    cost = ", ".join(f"{part:.6g}" for part in plan.cost)
    return f"{plan.node}: {named(plan.victims)}{elsewhere}: {losses(state, plan, now)} (cost {cost})"


def _loss(queue: str, count: int, hours: float) -> str:
    who = f"{count_of_pods(count)} of queue {queue}" if queue else f"{count_of_pods(count)} without a queue"
    return f"{who} {'loses' if count == 1 else 'lose'} {hours:.3g} GPU-hours"
