"""filter: which of the named nodes can host the pod.

When something fits, the answer is the best ``shortlist`` of it: kube-scheduler then scores few nodes in tree
instead of all, which is worth more than the extender costs. It reads the reasons of dropped nodes only when
nothing fits, and then every node must have one.
"""

from __future__ import annotations

from itertools import compress

import numpy as np
import numpy.typing as npt

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
    fits = verdict.codes == Reason.FITS
    if settings.shortlist and fits.any():
        fitting = np.flatnonzero(fits)
        shortlist = np.sort(fitting[best(verdict.keys[fitting], settings.shortlist)])
        return FilterResult(names=[args.names[i] for i in shortlist.tolist()]), verdict
    evictable = _EVICTION_HELPS[verdict.codes] & state.eviction_helps_extenders
    result = FilterResult(
        names=_picked(args.names, fits),
        failed=_reasons(args.names, verdict.codes, evictable),
        unresolvable=_reasons(args.names, verdict.codes, ~(fits | evictable)),
    )
    return result, verdict


# By code. Before 1.38 no refusal is shown as one that eviction could help: kube-scheduler's dry run does not
# ask extenders, finds that the pod fits without victims, and fails the attempt.
_TEXTS = [reason.text for reason in Reason]
_EVICTION_HELPS = np.array([reason.eviction_helps for reason in Reason])


def _reasons(names: list[str], codes: npt.NDArray[np.int8], which: npt.NDArray[np.bool_]) -> dict[str, str]:
    return dict(zip(_picked(names, which), map(_TEXTS.__getitem__, codes[which].tolist()), strict=True))


def _picked(names: list[str], which: npt.NDArray[np.bool_]) -> list[str]:
    return list(compress(names, which.tobytes()))
