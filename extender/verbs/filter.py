"""filter: which of the named nodes can host the pod.

When something fits, the answer is the best ``shortlist`` of it: kube-scheduler then scores few nodes in tree
instead of all, which is worth more than the extender costs. It reads the reasons of dropped nodes only when
nothing fits, and then every node must have one.
"""

from __future__ import annotations

import numpy as np

from extender.cluster.state import PossiblyBound, State
from extender.dialects.pod_request import RequestError, request_of
from extender.protocol.codec import FilterArgs, FilterResult
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import shorten
from extender.verbs.evaluate import Evaluation, evaluate
from extender.verbs.scores import best
from packing.model.reasons import Reason


def filter_nodes(
    state: State, args: FilterArgs, settings: Settings, possibly_bound: PossiblyBound = ()
) -> tuple[FilterResult, Evaluation | None]:
    """The nodes that fit, and the verdict that says why (None where there was nothing to judge)."""
    try:
        request = request_of(args.pod)
    except RequestError as error:
        return FilterResult(error=shorten(str(error))), None
    if not request.wants_gpu:
        return FilterResult(names=args.names), None
    verdict = evaluate(state, args.pod, request, args.names, possibly_bound)
    fits = verdict.codes == Reason.FITS
    # What is best for claims is a guess at most: kube-scheduler gets all nodes to choose from.
    if settings.shortlist and fits.any() and not verdict.forecasts:
        fitting = np.flatnonzero(fits)
        shortlist = np.zeros_like(fits)
        shortlist[fitting[best(verdict.keys[fitting], settings.shortlist)]] = True
        return FilterResult(args.names.where(shortlist)), verdict
    if not fits.any() and (verdict.codes == Reason.PLUGIN_BUSY).any():
        # Nobody wakes a pod that is unschedulable when another one has started; a failed attempt is repeated.
        return FilterResult(error=Reason.PLUGIN_BUSY.text), verdict
    failed, unresolvable = _refused(args.names, verdict, state.eviction_helps_extenders)
    return FilterResult(args.names.where(fits), failed, unresolvable), verdict


def _refused(
    names: NodeNames, verdict: Evaluation, eviction: bool
) -> tuple[dict[str, NodeNames], dict[str, NodeNames]]:
    """Nodes by reason, apart by whether kube-scheduler should look for victims there.

    Before 1.38 it never should: its dry run does not ask extenders, finds that the pod fits without
    victims, and fails the attempt.
    """
    failed: dict[str, NodeNames] = {}
    unresolvable: dict[str, NodeNames] = {}
    for code in np.flatnonzero(np.bincount(verdict.codes)).tolist():
        if code != Reason.FITS:
            reason = Reason(code)
            refused = failed if eviction and reason.eviction_helps else unresolvable
            refused[reason.text] = names.where(verdict.codes == code)
    return failed, unresolvable
