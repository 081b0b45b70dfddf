"""prioritize: scores 0 to 10 for nodes that fit. Only the best node has 10, so that there is no tie."""

from __future__ import annotations

import numpy as np

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.dra.pod_claims import class_resources
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import Bytes
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.scores import node_scores
from packing.model.reasons import Reason


def prioritize(
    state: State, args: FilterArgs, possibly_bound: PossiblyBound = ()
) -> tuple[Bytes, Evaluation | None]:
    """A score for each name (len(names),), in the order asked; 0 for a node that does not fit (any more).

    All scores are 0 for a pod that asks for no GPU, for one whose request cannot be read, and for one with
    nothing but claims where no forecast is known.
    """
    scores = np.zeros(len(args.names), np.uint8)
    try:
        request = request_of(args.pod)
    except RequestError:
        return scores, None
    if not (request.wants_gpu or args.pod.spec.claims or class_resources(args.pod.spec)):
        return scores, None
    evaluation = evaluate(state, args.pod, request, args.names, possibly_bound)
    if not evaluation.tells_apart:
        return scores, evaluation
    fits = np.flatnonzero(evaluation.codes == Reason.FITS)
    scores[fits] = node_scores(evaluation.cost[fits], evaluation.keys[fits])
    return scores, evaluation
