"""What filter has found last, for prioritize, which kube-scheduler calls for the same pod right after it."""

from __future__ import annotations

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.protocol.codec import FilterArgs, FilterResult, has_names
from extender.verbs.evaluate import Evaluation
from extender.verbs.prioritize import Scored, scored, scores_of


class LastFilter:
    """One evaluation, until anything has changed on which it depends.

    It depends on nothing but the state, unless it has forecasts, which search with limits of their own.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: tuple[Evaluation, FilterArgs, FilterResult, object] | None = None
        self._prepared: Scored | None = None
        self._asked = True  # whether prioritize was asked about the last nodes that filter returned

    def keep(self, evaluation: Evaluation | None, args: FilterArgs, result: FilterResult) -> None:
        """filter has found this just now, and answered with ``result``."""
        if self._prepared is not None:
            self._asked, self._prepared = False, None
        self._kept = None
        if evaluation is None or evaluation.forecasts:
            return
        if evaluation.fitting:  # a gang that does not fit is the reason of filter alone
            self._kept = evaluation, args, result, self._version()

    def prepare(self) -> None:
        """Score and encode the nodes that filter has returned, while kube-scheduler reads its answer. Not
        where prioritize was not asked the last time: it is not for a single node, or without this verb."""
        if self._kept is not None and self._asked and len(self._kept[2].names) > 1:
            self._prepared = self._score(*self._kept[:3])

    def about(self, pod: Pod) -> Evaluation | None:
        """What filter has found about this very record of a pod, None unless ``evaluate`` would find it
        again."""
        if self._kept is None:
            return None
        evaluation, _, _, version = self._kept
        return evaluation if evaluation.pod is pod and version == self._version() else None

    def continued(self, body: bytes) -> Scored | None:
        """The answer to a message that asks about the same pod and exactly the nodes that filter has
        returned, as kube-scheduler does. None for any other message, and unless ``evaluate`` would find the
        same again.

        To compare bytes costs a tenth of parsing them and looking up the names."""
        if self._kept is None:
            return None
        evaluation, args, result, version = self._kept
        if not args.head or result.which is None or version != self._version():
            return None
        if not has_names(body, args.head, result.names):
            return None
        answer = self._prepared or self._score(evaluation, args, result)
        self._asked, self._prepared = True, None
        return answer

    def _score(self, evaluation: Evaluation, args: FilterArgs, result: FilterResult) -> Scored | None:
        if not args.head or result.which is None:
            return None
        evaluation = evaluation.only(result.which)
        return scored(FilterArgs(args.pod, result.names, head=args.head), scores_of(evaluation), evaluation)

    def _version(self) -> object:
        state = self._state
        return state.revision, state.room_version, state.fleet.changes, state.fleet.layout
