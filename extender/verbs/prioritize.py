"""prioritize: scores 0 to 10 for nodes that fit. Only the best node has 10, so that there is no tie.

kube-scheduler calls it for the same pod right after filter, so filter's evaluation is kept until then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extender.cluster.other_resources import wants_devices
from extender.cluster.state import State
from extender.protocol.codec import FilterArgs, FilterResult, encode_priorities, has_names
from extender.protocol.node_names import Bytes
from extender.verbs.evaluate import MAX_SCORE, Evaluation, fitting_scores
from extender.verbs.gang_fit import evaluate_in_cycle
from packing.fleet.arrays import Flags


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


def prioritize(state: State, args: FilterArgs) -> tuple[Bytes, Evaluation | None]:
    """(len(names),) a score for each name, in the given order; 0 for a node that does not fit (any more).

    All scores are 0 for a pod that requests no GPU, for a pod whose request cannot be read, and for a pod
    with only claims if no forecast is known.
    """
    request = state.request_or_none(args.pod)
    if request is None or not wants_devices(state, args.pod, request):
        return np.zeros(len(args.names), np.uint8), None
    evaluation = evaluate_in_cycle(state, args.pod, request, args.names)
    return scores_of(evaluation), evaluation


def scores_of(evaluation: Evaluation) -> Bytes:
    """The scores of the evaluated nodes: (len(names),)."""
    if not evaluation.tells_apart:
        return np.zeros(evaluation.codes.size, np.uint8)
    return fitting_scores(evaluation.codes, evaluation.cost, evaluation.keys)


class LastFilter:
    """The last evaluation of filter, until the state on which it depends changes; not if it has forecasts,
    whose search has separate limits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: tuple[FilterArgs, Evaluation, Flags, object] | None = None
        self._prepared: Scored | None = None
        self._asked = True  # whether prioritize was called for the last nodes that filter returned

    def keep(self, evaluation: Evaluation | None, args: FilterArgs, result: FilterResult) -> None:
        """Keep the evaluation that filter has just answered with ``result``."""
        if self._prepared is not None:
            self._asked, self._prepared = False, None
        self._kept = None
        if evaluation is None or evaluation.forecasts or not evaluation.fitting:
            return  # only filter refuses nodes for a gang that does not fit
        if args.head and result.which is not None:
            returned = FilterArgs(args.pod, result.names, head=args.head)
            self._kept = returned, evaluation, result.which, self._version()

    def prepare(self) -> None:
        """Score and encode the nodes that filter has returned, while kube-scheduler reads its answer. Not if
        prioritize was not called the last time: it is not called for a single node, or without this verb."""
        if self._kept is not None and self._asked and len(self._kept[0].names) > 1:
            self._prepared = _scored_again(*self._kept[:3])

    def continued(self, body: bytes) -> Scored | None:
        """The answer to a message with the same pod and exactly the nodes that filter has returned, as
        kube-scheduler sends it. None for any other message, or if ``evaluate`` could have another result now.

        Comparing bytes costs a tenth of parsing them and looking up the names."""
        if self._kept is None:
            return None
        args, evaluation, which, version = self._kept
        if version != self._version() or not has_names(body, args.head, args.names):
            return None
        answer = self._prepared or _scored_again(args, evaluation, which)
        self._asked, self._prepared = True, None
        return answer

    def _version(self) -> object:
        state = self._state
        return state.revision, state.room_version, state.fleet.changes, state.fleet.layout


def _scored_again(args: FilterArgs, evaluation: Evaluation, which: Flags) -> Scored:
    evaluation = evaluation.only(which)
    return scored(args, scores_of(evaluation), evaluation)
