"""What a change would achieve: the pod with its whole gang, evaluated on the cluster as it would be.

The state is not changed: pods are left out of the fleet, and nodes and members are replaced, for one
evaluation by the code of ``filter``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import replace

from extender.cluster.gang_placement import WaitingMembers
from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError
from extender.explain.candidates import Candidates
from extender.explain.fixes import Change, Fix
from extender.explain.words import Word
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import GANG_PLACED, GANG_READ
from extender.verbs.evaluate import evaluate
from extender.verbs.gang_fit import Supposed, fit_together, gang_would_fit, wants_dra
from packing.fleet.node_usage import Allocation
from packing.model.request import Request

_TRIED = 24
"""Maximum number of fixes tried for one pod: each is an evaluation, and requests of kube-scheduler wait."""


def fitting_after(state: State, pod: Pod, change: Change, *, with_gang: bool = True) -> list[str]:
    """The nodes ``among`` which the pod then fits, as far as is known; none unless its whole gang does."""
    new, gone = change.pod or pod, {other.uid for other in change.gone}
    try:
        request, asked = state.request_of(new), asked_by(new)
    except RequestError:
        return []
    left = tuple(allocations_of(state, change.gone))
    candidates = Candidates(state, new, gone)
    nodes = {name: change.nodes.get(name, state.nodes[name]) for name in change.among if name in state.nodes}
    names = [
        name
        for name, node in nodes.items()
        if not candidates.rejection(node) and not any(lacking_on(state, node, asked, gone))
    ]
    with state.fleet.without(left):
        evaluation = evaluate(state, new, request, NodeNames.of(names))
    fits = [name for name, fit in zip(names, evaluation.certain, strict=True) if fit]
    return fits if fits and (not with_gang or gang_fits_after(state, pod, change)) else []


def gang_fits_after(state: State, pod: Pod, change: Change) -> bool:
    """Whether all members that must start together would fit, with their templates changed like the pod's.
    True for a pod that starts by itself."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2:
        return True
    new = change.pod or pod
    others = (member for member in state.gangs.members(gang.key)[:GANG_READ] if not member.node_name)
    members = [changed_like(other, pod, new) for other in others if other.key != pod.key]
    supposed = Supposed(
        ChainMap(dict(change.nodes), dict(state.nodes)), tuple(allocations_of(state, change.gone))
    )
    with state.gangs.supposing(members if change.pod else ()):
        return gang_would_fit(state, new, state.request_of(new), supposed)


def changed_like(other: Pod, pod: Pod, new: Pod) -> Pod:
    """Another member of the pod's gang once their template has changed: parts that were equal stay so."""
    spec, rules = other.spec, other.scheduling_constraints
    if rules == pod.scheduling_constraints:
        rules = new.scheduling_constraints
    else:
        added = new.scheduling_constraints.tolerations[len(pod.scheduling_constraints.tolerations) :]
        rules = replace(rules, tolerations=rules.tolerations + added)
    if spec == pod.spec:
        spec = new.spec
    elif spec.node_selector == pod.spec.node_selector:
        spec = replace(spec, node_selector=new.spec.node_selector)
    annotations = new.annotations if other.annotations == pod.annotations else other.annotations
    return replace(other, spec=spec, scheduling_constraints=rules, annotations=annotations)


def allocations_of(state: State, pods: Iterable[Pod]) -> Iterator[Allocation]:
    for pod in pods:
        yield from state.pods.allocations_of(pod)


def kept(state: State, pod: Pod, fixes: Iterable[Fix]) -> Iterator[Fix]:
    """The fixes after which the pod, with its gang, fits: the first ones are tried, the rest marked as not
    tried. Those without a change are facts, or the result of a search that has tried them."""
    tried = 0
    for fix in fixes:
        if fix.change is None or fix.tried:
            yield fix
        elif tried == _TRIED:
            yield fix._replace(then=Word.NOT_TRIED())
        else:
            tried += 1
            if fitting_after(state, pod, fix.change):
                yield fix._replace(tried=True)


def fit_at_once(
    state: State, pod: Pod, request: Request, count: int, left: tuple[Allocation, ...] = ()
) -> int:
    """Number of ``count`` such pods that fit now, or ``left`` these allocations, 0 if unknown."""
    waiting = WaitingMembers(pod, request)
    least, most = 0, 0 if wants_dra(state, waiting) else min(count, GANG_PLACED)
    with state.fleet_view_for(pod) as fleet:
        while least < most:
            half = (least + most + 1) // 2
            fits = fit_together(state, fleet, [replace(waiting, count=half)], Supposed(state.nodes, left))
            least, most = (half, most) if fits else (least, half - 1)
    return least
