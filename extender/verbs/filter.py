"""filter: which of the named nodes can host the pod.

When something fits, the answer is the best ``shortlist`` of it: kube-scheduler then scores few nodes in tree
instead of all, which is worth more than the extender costs. It reads the reasons of dropped nodes only when
nothing fits, and then every node must have one.
"""

from __future__ import annotations

import numpy as np

from extender.dialects import RequestError, request_of
from extender.settings import Settings
from extender.state import State
from extender.verbs.verdict import Verdict, judge
from extender.wire import FilterArgs, FilterResult
from packing.ranking import best
from packing.reasons import Reason


def filter_nodes(state: State, args: FilterArgs, settings: Settings) -> tuple[FilterResult, Verdict | None]:
    """The nodes that fit, and the verdict that says why (None where there was nothing to judge)."""
    try:
        request = request_of(args.pod)
    except RequestError as error:
        return FilterResult(error=str(error)), None
    if not request.wants_gpu:
        return FilterResult(names=args.names), None
    verdict = judge(state, args.pod, request, args.names)
    fits = np.flatnonzero(verdict.codes == Reason.FITS)
    if fits.size and settings.shortlist:
        fits = np.sort(fits[best(verdict.keys[fits], settings.shortlist)])
        return FilterResult(names=[args.names[i] for i in fits]), verdict
    names = [args.names[i] for i in fits]
    failed, unresolvable = _reasons(args.names, verdict, state.eviction_helps_extenders)
    return FilterResult(names=names, failed=failed, unresolvable=unresolvable), verdict


def _reasons(names: list[str], verdict: Verdict, eviction: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Reasons by node, apart by whether kube-scheduler should look for victims there.

    Before 1.38 it never should: its dry run does not ask extenders, finds that the pod fits without
    victims, and fails the attempt.
    """
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, code in zip(names, verdict.codes.tolist(), strict=True):
        if code != Reason.FITS:
            reason = Reason(code)
            (failed if eviction and reason.eviction_helps else unresolvable)[name] = reason.text
    return failed, unresolvable
