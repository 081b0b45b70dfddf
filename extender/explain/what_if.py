"""What a change would achieve: the pod with its whole gang, evaluated on the cluster as it would be.

The state is not changed: pods are left out of the fleet, and nodes and members are replaced, for one
evaluation by the code of ``filter``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from extender.cluster.gang_placement import WaitingMembers, waiting_members
from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.explain.answers import Evictions, Refusal
from extender.explain.candidates import Candidates, all_candidates
from extender.explain.fixes import Change, Fix
from extender.explain.refusals import by_forecast
from extender.k8s.objects import Pod, PodSpec
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import GANG_PLACED, GANG_READ, POD_CLAIMS
from extender.verbs.evaluate import evaluate, hosts_when_empty
from extender.verbs.gang_room import (
    Supposed,
    fit_together,
    gang_would_fit,
    search,
    wants_dra,
    with_copies,
)
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request

_TRIED, _TRIED_FOR_A_LINE = 48, 8
"""Maximum number of fixes tried of one kind: each is an evaluation, and requests of kube-scheduler wait. In
lists of many pods, which are explained without a time, fewer are tried."""
_EMPTIED = 2000
"""Maximum number of pods removed to test whether a gang would fit without them."""


@dataclass(frozen=True, slots=True)
class Question:
    """A pod that fits nowhere as far as is known, and why. ``evictions``: the evictions found, if searched.
    With a time ``now`` (Unix seconds), pods whose move would suffice are searched, too; ``settings`` of the
    evictor determine whether it moves pods, None if they are not known.
    """

    state: State
    pod: Pod
    request: Request
    candidates: Candidates
    refusals: Sequence[Refusal]
    evictions: Evictions | None = None
    now: float | None = None
    settings: Settings | None = None

    @property
    def every(self) -> int:
        """Number of all nodes."""
        return len(self.candidates.names) + sum(map(len, self.candidates.passed_over.values()))

    @property
    def is_gang(self) -> bool:
        """Whether others must start together with the pod."""
        gang = self.state.gangs.gang_of(self.pod) if self.state.gang_check else None
        return gang is not None and gang.to_place > 1


def fitting_after(state: State, pod: Pod, change: Change, *, with_gang: bool = True) -> list[str]:
    """The nodes ``among`` which the pod then fits, as far as is known; none unless its whole gang does."""
    new, gone = change.pod or pod, {other.uid for other in change.gone}
    if (request := state.request_or_none(new)) is None:
        return []
    asked, left = asked_by(new), tuple(allocations_of(state, change.gone))
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


def kept(asked: Question, fixes: Iterable[Fix]) -> Iterator[Fix]:
    """Those of the first fixes after which the pod, with its gang, fits. Fixes without a change are facts, or
    the result of a search that has tried them."""
    for fix in islice(fixes, _TRIED_FOR_A_LINE if asked.now is None else _TRIED):
        if fix.change is None or fitting_after(asked.state, asked.pod, fix.change):
            yield fix


def fit_at_once(state: State, pod: Pod, request: Request, count: int) -> int:
    """Number of ``count`` such pods that fit now, 0 if unknown."""
    if pod.spec.claims and not request.wants_gpu:
        return _fit_by_claims(state, pod, request, count)
    waiting = WaitingMembers(pod, request, domains=state.gangs.domains_of(pod))
    least, most = 0, 0 if wants_dra(state, waiting) else min(count, GANG_PLACED)
    with state.fleet_view_for(pod) as fleet:
        while least < most:
            half = (least + most + 1) // 2
            fits = fit_together(state, fleet, with_copies(waiting, half - 1), Supposed(state.nodes))
            least, most = (half, most) if fits else (least, half - 1)
    return least


def domain_of_most(state: State, pod: Pod, request: Request, fit: int) -> str:
    """The topology domain in which so many pods of the gang ``fit``, the most that do; "" if none does."""
    domains = state.gangs.domains_of(pod)
    waiting = WaitingMembers(pod, request, domains=domains)
    with state.fleet_view_for(pod) as fleet:
        chosen = search(state, fleet, with_copies(waiting, fit - 1), Supposed(state.nodes)) if fit else None
    return next(iter((chosen or {}).get(domains[0], ())), None) or ""


def _fit_by_claims(state: State, pod: Pod, request: Request, count: int) -> int:
    """The same for a pod whose claims are made from templates: how many nodes fit one of them, two, ..."""
    made = tuple(claim for claim in pod.spec.claims if claim.template)
    names, fit = NodeNames.of(all_candidates(state, pod).names), 0
    for more in range(min(count, POD_CLAIMS // len(made)) if made else 0):
        spec = replace(pod.spec, claims=(*pod.spec.claims, *made * more))
        cpu_milli, memory_bytes = (n * (more + 1) for n in (request.cpu_milli, request.memory_bytes))
        asked = replace(request, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
        nodes = int(by_forecast(evaluate(state, replace(pod, spec=spec), asked, names))[0].sum())
        fit += nodes
        if not nodes or fit >= count:
            return min(fit, count)
    return 0


def missing_members(state: State, pod: Pod) -> int:
    """Number of members of the pod's gang that must still start; 0 if they have different requests, or some
    are gated, so that no room is enough."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return 1
    others = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound, but=pod.key)
    kinds = {state.request_or_none(member) for member in (pod, *others.free[:GANG_READ])}
    too_few = others.gated and 1 + len(others.free) < others.missing
    return max(others.missing, 1) if len(kinds) == 1 and not too_few else 0


def unplaceable_member(state: State, pod: Pod) -> Pod | None:
    """Another member of the pod's gang that no node would accept, even without other pods; of many unlike
    members only the first are tried."""
    gang = state.gangs.gang_of(pod)
    unlike = dict[PodSpec, Pod]()
    for member in islice(state.gangs.members(gang.key) if gang else (), GANG_READ):
        if member.spec != pod.spec and not member.node_name:
            unlike.setdefault(member.spec, member)
    for member in islice(unlike.values(), _TRIED_FOR_A_LINE):
        if (request := state.request_or_none(member)) is None:
            continue
        names = NodeNames.of(all_candidates(state, member).names)
        evaluation = evaluate(state, member, request, names)
        if not (hosts_when_empty(state, state.fleet, evaluation) | (evaluation.codes == Reason.FITS)).any():
            return member
    return None


def gang_fits_when_empty(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod's gang would fit if no other pod had a GPU; also True where that is not known: for
    devices of claims, and where too many pods have GPUs to try."""
    gang = state.gangs.gang_of(pod)
    members = waiting_members(
        [pod, *state.gangs.members(gang.key)] if gang else [], GANG_READ, state.request_of
    )
    if any(wants_dra(state, member) for member in members):
        return True
    bound = (other for other in state.pods.values() if other.node_name)
    held = (allocation for allocation in allocations_of(state, bound) if allocation.has_gpus)
    left = tuple(islice(held, _EMPTIED + 1))
    return len(left) > _EMPTIED or gang_would_fit(state, pod, request, Supposed(state.nodes, left))
