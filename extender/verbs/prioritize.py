"""prioritize: scores 0 to 10 for nodes that fit. Only the best node has 10, so that there is no tie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extender.cluster.other_resources import wants_devices
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.protocol.codec import FilterArgs, encode_priorities
from extender.protocol.node_names import Bytes
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.scores import MAX_SCORE, fitting_scores


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer of prioritize: its arguments, the scores, (len(args.names),), the evaluation behind them,
    the ``best`` node ("" if no score is the highest), and the encoded ``reply``."""

    args: FilterArgs
    scores: Bytes
    evaluation: Evaluation | None
    best: str
    reply: bytes


def scored(args: FilterArgs, scores: Bytes, evaluation: Evaluation | None) -> Scored:
    """The answer with these scores."""
    best = int(scores.argmax()) if scores.size else -1
    name = args.names[best] if best >= 0 and scores[best] == MAX_SCORE else ""
    return Scored(args, scores, evaluation, name, encode_priorities(args.names, scores))


def prioritize(
    state: State,
    args: FilterArgs,
    filtered: Evaluation | None = None,
) -> tuple[Bytes, Evaluation | None]:
    """A score for each name (len(names),), in the order asked; 0 for a node that does not fit (any more).

    ``filtered``: what filter has found about this pod, unless anything has changed since (``LastFilter``).

    All scores are 0 for a pod that asks for no GPU, for one whose request cannot be read, and for one with
    nothing but claims where no forecast is known.
    """
    try:
        request = request_of(args.pod)
    except RequestError:
        return np.zeros(len(args.names), np.uint8), None
    if not wants_devices(state, args.pod, request):
        return np.zeros(len(args.names), np.uint8), None
    evaluation = filtered and filtered.among(state.rows(args.names))
    if evaluation is None:
        evaluation = evaluate(state, args.pod, request, args.names)
    return scores_of(evaluation), evaluation


def scores_of(evaluation: Evaluation) -> Bytes:
    """The scores of the evaluated nodes: (len(names),)."""
    if not evaluation.tells_apart:
        return np.zeros(evaluation.codes.size, np.uint8)
    return fitting_scores(evaluation.codes, evaluation.cost, evaluation.keys)
