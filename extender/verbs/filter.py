"""filter: the named nodes that can host the pod.

If nodes fit, the answer is the best ``shortlist`` of them: kube-scheduler then scores few nodes with its own
plugins instead of all, which saves more time than the call of the extender takes. It reads the reasons of the
other nodes only if none fits, and then every node must have one.
"""

from __future__ import annotations

import numpy as np

from extender.cluster.other_resources import wants_devices
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.protocol.codec import FilterArgs, FilterResult
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import shorten
from extender.verbs.assignment import renaming_nodes
from extender.verbs.evaluate import Evaluation, has_words, shortlist, when_idle
from extender.verbs.gang_fit import evaluate_in_cycle, must_wait, with_gang_check
from packing.model.reasons import Reason


def filter_nodes(
    state: State, args: FilterArgs, settings: Settings
) -> tuple[FilterResult, Evaluation | None]:
    """The nodes that fit, and the evaluation with the reasons (None if no node was evaluated)."""
    try:
        request = state.request_of(args.pod)
    except RequestError as error:
        return FilterResult(error=shorten(str(error))), None
    chooses = state.devices.two_ways or has_words(request)  # so that not all devices of DRA are right
    if not (request.wants_gpu or (chooses and wants_devices(state, args.pod, request))):
        renamed = renaming_nodes(state, args.pod, state.nodes.counted_as)
        if not renamed:
            return FilterResult(names=args.names), None
        fits = np.array([name not in renamed for name in args.names], np.bool_)
        refused = {Reason.UNREADABLE.text: args.names.where(~fits)}
        return FilterResult(args.names.where(fits), {}, refused, which=fits), None
    if cycle := state.gangs.cycle_of(args.pod):
        state.reservations.asked_in_cycle(args.pod.uid, cycle)
    evaluation = with_gang_check(state, evaluate_in_cycle(state, args.pod, request, args.names))
    fitting = evaluation.fitting
    any_fits = fitting > 0
    if any_fits and (problem := must_wait(state, args.pod, remember=True)):
        return FilterResult(error=problem), evaluation
    # Forecasts of devices may be wrong: a pod with claims gets all nodes that fit.
    if settings.shortlist and any_fits and not evaluation.forecasts:
        chosen = shortlist(evaluation.codes, evaluation.keys, settings.shortlist, fitting)
        return FilterResult(args.names.where(chosen), which=chosen), evaluation
    if not any_fits and (evaluation.codes == Reason.PLUGIN_BUSY).any():
        evaluation = when_idle(state, evaluation)
        if (evaluation.codes == Reason.PLUGIN_BUSY).any():
            # No event wakes an unschedulable pod when the other has started; a failed attempt is retried.
            return FilterResult(error=Reason.PLUGIN_BUSY.text), evaluation
    failed, unresolvable = _refused(args.names, evaluation, state.eviction_helps_extenders)
    if unresolvable.pop(Reason.RESERVED.text, None):
        unresolvable |= _reserved(state, args.names, evaluation)
    fits = evaluation.codes == 0
    return FilterResult(args.names.where(fits), failed, unresolvable, which=fits), evaluation


def _reserved(state: State, names: NodeNames, evaluation: Evaluation) -> dict[str, NodeNames]:
    """The nodes that are reserved for large jobs, by a text that says for which and until when."""
    jobs, refused = state.large_jobs, evaluation.codes == Reason.RESERVED
    found = {}
    for reservation in jobs.table.current:
        if (here := refused & jobs.rows(reservation)[evaluation.rows]).any():
            text = f"{jobs.text(reservation, evaluation.pod)}, for pods that end before"
            found[text] = names.where(here)
    return found


def _refused(
    names: NodeNames, evaluation: Evaluation, eviction: bool
) -> tuple[dict[str, NodeNames], dict[str, NodeNames]]:
    """Nodes by reason: those where kube-scheduler should look for victims, and those where it should not.

    Before 1.38 it never should: its dry run does not call extenders, concludes that the pod fits without
    victims, and fails the attempt.
    """
    failed: dict[str, NodeNames] = {}
    unresolvable: dict[str, NodeNames] = {}
    for code, count in enumerate(evaluation.tally()):
        if count and code != 0:
            reason = Reason(code)
            refused = failed if eviction and reason.eviction_helps else unresolvable
            refused[reason.text] = names.where(evaluation.codes == code)
    return failed, unresolvable
