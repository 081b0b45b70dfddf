"""prioritize: scores 0..10 for nodes that fit. The best alone has 10, so that no tie is left to chance."""

from __future__ import annotations

import numpy as np

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import RequestError, request_of
from extender.dra.extended_resources import class_resources
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import Bytes
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.scores import levels
from packing.model.reasons import Reason


def prioritize(
    state: State, args: FilterArgs, possibly_bound: PossiblyBound = ()
) -> tuple[Bytes, Evaluation | None]:
    """A score for each name (len(names),), in the order asked; 0 for a node that does not fit (any more).

    A pod that asks for no GPU, or for what cannot be read, scores 0 everywhere: nothing to say. The same goes
    for one with claims alone of which nothing can be foreseen.
    """
    scores = np.zeros(len(args.names), np.uint8)
    try:
        request = request_of(args.pod)
    except RequestError:
        return scores, None
    if not (request.wants_gpu or args.pod.spec.claims or class_resources(args.pod.spec)):
        return scores, None
    verdict = evaluate(state, args.pod, request, args.names, possibly_bound)
    if not verdict.tells_apart:
        return scores, verdict
    fits = np.flatnonzero(verdict.codes == Reason.FITS)
    scores[fits] = levels(verdict.cost[fits], verdict.keys[fits])
    return scores, verdict
