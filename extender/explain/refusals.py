"""Why nodes reject a pod: by an evaluation, by what Stowage does not place by, and because of kubelet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from extender.cluster.other_resources import Lack
from extender.cluster.state import State
from extender.cluster.unoffered import rejections
from extender.dialects.pod_request import agents_problems
from extender.dra.forecast import NoDevices
from extender.explain.answers import Need, NeedKind, Refusal
from extender.explain.fixes import Finding
from extender.explain.needs import missing_needs, need_of
from extender.explain.words import ADVICE, Word
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed
from extender.verbs.assignment import assignment_problem
from extender.verbs.evaluate import Evaluation, dra_resources, hosts_when_empty, without_resources
from extender.verbs.eviction.promising import shortfall
from packing.fleet.arrays import Flags
from packing.fleet.fleet import Fleet
from packing.model.numa import REFUSING
from packing.model.reasons import Reason
from packing.model.request import Request

_NAMED = 3
"""Maximum number of nodes named on which kubelet may reject a pod, and of reasons."""
FULL, TOO_SMALL, OTHER = 1, 2, 3
RANKS: Mapping[str, int] = {
    Reason.GANG_DOES_NOT_FIT.name: 0,
    **{
        reason.name: TOO_SMALL
        for reason in (
            *(Reason.GPUS_TOO_SMALL, Reason.TOO_FEW_GPUS, Reason.ISLAND_TOO_SMALL, Reason.NO_FREE_GPUS),
            *(Reason.FRAGMENTED, Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY, Reason.TOO_MANY_REPLICAS),
            *(Reason.PARTS_OF_ONE_GPU, Reason.BELOW_MINIMUM, Reason.SMALL_DEVICES),
        )
    },
    Reason.REPARTITIONING.name: 4,
    Reason.UNKNOWN_NODE.name: 4,
    Reason.NO_SUCH_RESOURCE.name: 5,
}
"""Rank of each kind of refusal, the most informative first: the gang does not fit (the pod does), nodes are
``FULL`` or ``TOO_SMALL`` for the request, ``OTHER`` reasons, and last they have no such resource."""


def rank(refusal: Refusal) -> tuple[int, int, int]:
    """Sort key, the most informative refusal first."""
    small = too_small(refusal)
    otherwise = TOO_SMALL if refusal.eviction_helps and small else OTHER
    is_full = refusal.eviction_helps and refusal.can_host
    return FULL if is_full else RANKS.get(refusal.kind, otherwise), len(small), -refusal.nodes


def too_small(refusal: Refusal) -> list[Need]:
    """Needs that the node cannot meet even without pods, except for devices that it does not have at all."""
    return [
        need
        for need in refusal.lacks
        if need.total < need.asked and (need.total or need.kind not in (NeedKind.DEVICES, NeedKind.COUNT))
    ]


def by_forecast(evaluation: Evaluation) -> tuple[Flags, Flags, Flags]:
    """Nodes that fit, nodes that lack devices for the claims, and nodes with unknown devices: (N,) each.

    Nodes that Stowage refuses for any other reason are in none of them.
    """
    fits: Flags = evaluation.codes == Reason.FITS
    if not evaluation.forecasts:
        return fits, np.zeros_like(fits), np.zeros_like(fits)
    refused = np.array([forecast.refused for forecast in evaluation.forecasts], bool)
    known = np.array([not forecast.problem for forecast in evaluation.forecasts], bool)
    return fits & known & ~refused, fits & refused, fits & ~known & ~refused


def refusals_of(state: State, fleet: Fleet, names: NodeNames, evaluation: Evaluation) -> list[Refusal]:
    """One for each reason."""
    hosts, refused = hosts_when_empty(state, fleet, evaluation), by_forecast(evaluation)[1]
    codes = np.flatnonzero(np.bincount(evaluation.codes)).tolist()
    found = [_refusal(state, fleet, names, evaluation, Reason(code), hosts) for code in codes if code]
    return [*found, *_by_claims(names, evaluation, refused)] if refused.any() else found


def needs_on(state: State, fleet: Fleet, evaluation: Evaluation, index: int, name: str) -> Iterator[Need]:
    """What the node has too little of; devices of its ResourceSlices are not counted there."""
    request = evaluation.request
    if (dra := dra_resources(state, evaluation.pod, request, [name])) and dra[0]:
        request = replace(without_resources(request, dra[0]), device_mib=0)
    return missing_needs(fleet, int(evaluation.rows[index]), request)


def _refusal(
    state: State, fleet: Fleet, names: NodeNames, evaluation: Evaluation, reason: Reason, hosts: Flags
) -> Refusal:
    refused = np.flatnonzero(evaluation.codes == reason)
    nearest = int(refused[np.argmin(shortfall(fleet, evaluation.rows[refused], evaluation.request))])
    about_size = reason.eviction_helps or RANKS.get(reason.name) == TOO_SMALL
    needs = needs_on(state, fleet, evaluation, nearest, names[nearest]) if about_size else ()
    can_host, advice = int(hosts[refused].sum()), ""
    if can_host or not reason.eviction_helps:
        advice = advice_on(state, fleet, evaluation.pod, evaluation.request, names[nearest], reason)
    near, helps = names[nearest], reason.eviction_helps
    return Refusal(reason.text, refused.size, helps, near, tuple(needs), advice, can_host, reason.name)


def _by_claims(names: NodeNames, evaluation: Evaluation, refused: Flags) -> Iterator[Refusal]:
    problems = [forecast.problem for forecast in evaluation.forecasts]
    elsewhere = refused & np.array([problem == NoDevices.ELSEWHERE for problem in problems], bool)
    here = refused & ~elsewhere
    why = {problems[i] for i in np.flatnonzero(here).tolist()}
    reason, word = str(Word.NO_DEVICES()), Word.NO_DEVICES
    if len(why) == 1 and NoDevices.NOTHING_FITS not in why:
        reason, word = why.pop(), Word.BY_CLAIMS
    texts = (reason, word, here), (str(Word.CLAIM_ELSEWHERE()), Word.CLAIM_ELSEWHERE, elsewhere)
    for text, word, where in texts:
        if count := int(where.sum()):
            helps, near = word is Word.NO_DEVICES, names[int(where.argmax())]
            yield Refusal(text, count, helps, near, can_host=count, kind=word.name)


def lacking(fleet: Fleet, request: Request, lacks: Iterable[tuple[str, Lack]]) -> Iterator[Refusal]:
    """Nodes that have too little of what Stowage does not place by: one for each reason, with the nearest
    node by all that the pod requests."""
    by_reason: dict[str, list[tuple[str, Lack]]] = {}
    for name, lack in lacks:
        by_reason.setdefault(lack.reason, []).append((name, lack))
    for reason, some in by_reason.items():
        missing = shortfall(fleet, np.array([fleet.rows.get(name, -1) for name, _ in some]), request)
        missing += [(lack.asked - max(lack.left, 0)) / lack.asked for _, lack in some]
        nearest, lack = some[int(missing.argmin())]
        can_host = sum(lack.asked <= lack.total for _, lack in some)
        needs = (need_of(lack),)
        yield Refusal(reason, len(some), True, nearest, needs, can_host=can_host, kind=Word.LACKS.name)


def advice_on(state: State, fleet: Fleet, pod: Pod, request: Request, node: str, reason: Reason) -> str:
    """Advice for this node: specific if possible, or else the general advice."""
    known, there = "", state.nodes.get(node)
    advertised = there is not None and any(there.allocatable.get(name) for name, _ in request.devices)
    if reason is Reason.UNREADABLE or (reason is Reason.NO_SUCH_RESOURCE and advertised):
        known = state.nodes.problems.get(node, "")
    elif reason is Reason.MISALIGNED and (free := state.numa.free(pod, node)):
        known = str(Word.FREE_NUMA_ADVICE(free=free, advice=ADVICE[reason]))
    elif reason is Reason.NO_SUCH_RESOURCE and (spec := fleet.spec_of(node)) and spec.sharing_resource:
        shares = request.shares and request.shares.resource == spec.sharing_resource
        known = str(Word.DIVIDES_NONE() if shares else Word.ONLY_FRACTIONS(resource=spec.sharing_resource))
    elif reason is Reason.NO_ASSIGNER and state.binds:
        known = assignment_problem(state, fleet, pod, request, fleet.rows[node])
    elif reason is Reason.AGENTS_NOT_READY and there and request.shares:
        known = agents_problems(there, request.shares.resource)[request.agents]
    return known or ADVICE.get(reason, "")


def doubts(state: State, pod: Pod, nodes: Iterable[str]) -> Iterator[Finding]:
    """Nodes on which the pod fits but kubelet may reject it."""
    found: dict[str, list[str]] = {}
    nodes = list(nodes) if state.numa or state.pods.not_admitted else []
    rejecting = set(state.pods.not_admitted.values()).intersection(nodes)
    for node in islice(sorted(rejecting), _NAMED):
        if why := rejections(state, node):
            yield Finding(Word.REJECTS(node=shorten(node, KEY), why=why))
    for node in nodes if state.numa else ():
        if doubt := state.numa.doubt(pod, node):
            found.setdefault(doubt, []).append(node)
    for doubt, of in islice(found.items(), _NAMED):
        named = listed([shorten(node, KEY) for node in of], _NAMED, f" node{'s' * (len(of) > _NAMED + 1)}")
        yield Finding(Word.NUMA_UNKNOWN(nodes=named, why=shorten(doubt)))


def misaligned_pod(state: State, pod: Pod) -> Finding | None:
    """Why kubelet rejected the pod by its NUMA policy, as far as is known; None if it did not."""
    if not pod.misaligned:
        return None
    row = state.fleet.rows.get(pod.node_name, -1)
    if not state.numa:
        why: object = Word.NO_TOPOLOGY()
    elif doubt := state.numa.doubt(pod, pod.node_name):
        why = f"{doubt[:1].upper()}{shorten(doubt)[1:]}"
    elif state.numa.misaligned(state.fleet, pod, np.array([row]), REFUSING, idle=False)[0]:
        free = state.numa.free(pod, pod.node_name)
        why = Word.STILL_MISALIGNED(free=Word.FREE_BY_NUMA(free=free) if free else "")
    else:
        why = Word.ALIGNED_NOW()
    return Finding(Word.MISALIGNED(node=shorten(pod.node_name, KEY), why=why))
