"""prioritize: scores for the nodes that Volcano considers.

Volcano adds the scores of all its plugins and has no weight for an extender, so the points are part of the
score. It asks, too, before it looks for victims: then no node fits, and the best one is that of the cheapest
eviction plan, because Volcano tries the nodes in the order of their scores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import Bytes, NodeNames
from extender.verbs.evaluate import Evaluation
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.prioritize import prioritize
from extender.verbs.scores import MAX_SCORE
from extender.verbs.volcano.session import Session
from packing.model.reasons import Reason

POINTS = 2000.0
"""For one of ten levels, as in scheduler-config/ (weight 200). Volcano's own scores for nodes (nodeorder) add
up to 1,200 by default, so packing decides."""


def prioritize_nodes(session: Session, pod: Pod, nodes: Sequence[str]) -> dict[str, float]:
    """Points by node; none for a pod that asks for no GPU."""
    args = FilterArgs(pod, NodeNames.of(nodes))
    scores, evaluation = prioritize(session.state, args)
    if evaluation is None:
        return {}
    if not _any_fits(evaluation):
        scores = _scores_once_others_left(session, args, nodes)
    return {node: POINTS * score for node, score in zip(nodes, scores.tolist(), strict=True)}


def _scores_once_others_left(session: Session, args: FilterArgs, nodes: Sequence[str]) -> Bytes:
    """Where the pod fits once those have left that leave already; otherwise, where evictions cost least."""
    state = session.state
    leaving = [held for node in nodes for held in session.leaving_on(node)]
    with state.fleet.without(leaving):
        scores, evaluation = prioritize(state, args)
        if evaluation is None or _any_fits(evaluation):
            return scores
        return _scores_of_plans(state, args.pod, nodes, session)


def _scores_of_plans(state: State, pod: Pod, nodes: Sequence[str], session: Session) -> Bytes:
    scores = np.zeros(len(nodes), np.uint8)
    plans = plan_evictions(state, pod, nodes, time.time())
    rank = {plan.node: place for place, plan in enumerate(plans)}
    for index, node in enumerate(nodes):
        if node in rank:
            scores[index] = max(MAX_SCORE - rank[node], 1)
    return scores


def _any_fits(evaluation: Evaluation) -> bool:
    return bool((evaluation.codes == Reason.FITS).any())
