"""What filter has found last, for prioritize, which kube-scheduler calls for the same pod right after it."""

from __future__ import annotations

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.protocol.codec import FilterArgs, FilterResult, has_names
from extender.verbs.evaluate import Evaluation


class LastFilter:
    """One evaluation, until anything has changed on which it depends.

    It depends on nothing but the state: without forecasts, which search with limits of their own, without
    pods whose binding is not known, and without room that is held for gangs, which ends with time.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: tuple[Evaluation, FilterArgs, FilterResult, object] | None = None

    def keep(self, evaluation: Evaluation | None, args: FilterArgs, result: FilterResult) -> None:
        """filter has found this just now, and answered with ``result``."""
        self._kept = None
        if evaluation is None or evaluation.forecasts or evaluation.possibly_bound:
            return
        # A gang that does not fit is the reason of filter alone.
        if self._state.gang_holds.is_empty and evaluation.fitting:
            self._kept = evaluation, args, result, self._version()

    def about(self, pod: Pod) -> Evaluation | None:
        """What filter has found about this very record of a pod, None unless ``evaluate`` would find it
        again."""
        if self._kept is None:
            return None
        evaluation, _, _, version = self._kept
        return evaluation if evaluation.pod is pod and version == self._version() else None

    def continued(self, body: bytes) -> tuple[FilterArgs, Evaluation] | None:
        """The arguments in a message that asks about the same pod and exactly the nodes that filter has
        returned, as kube-scheduler does, and what filter has found about these nodes. None for any other
        message, and unless ``evaluate`` would find the same again.

        To compare bytes costs a tenth of parsing them and looking up the names."""
        if self._kept is None:
            return None
        evaluation, args, result, version = self._kept
        if not args.head or result.which is None or version != self._version():
            return None
        if not has_names(body, args.head, result.names):
            return None
        return FilterArgs(args.pod, result.names, head=args.head), evaluation.only(result.which)

    def _version(self) -> object:
        state = self._state
        return state.revision, state.room_version, state.fleet.changes, state.fleet.layout
