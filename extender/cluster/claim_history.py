"""What a running pod has of each GPU, by what it claims now and has claimed since it was bound.

A pod keeps its GPUs for as long as it runs, while its owner may edit its annotations. So the first claims
that contradict nothing count, and the largest share that was asked for. CPU and memory may be resized while a
pod runs: they follow its spec, and are not handled here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, ge

from extender.cluster.claim_check import ReconciledClaims, reconcile_claims
from extender.dialects.dialect import Claims
from packing.model.node_spec import NodeSpec, resolve_on
from packing.model.request import Request, Shares, whole_gpus

_CHANGED = "its annotations have changed since it was bound"
_ALTERNATIVES = 2
"""Shares of one pod; no share covers another. Beyond this number, one share that covers them all counts."""
_amounts = attrgetter("count", "compute_milli", "memory_mib", "memory_milli")
"""All of a share but its resource."""


@dataclass(frozen=True, slots=True)
class RequestAndClaims:
    """What a pod asks for, and what it claims to have, at one moment."""

    request: Request
    claims: Claims


@dataclass(slots=True)
class ClaimHistory:
    """What has been seen of a bound pod's GPUs since it was bound. It ends with the pod, or with Stowage.

    ``shares`` are the largest that it asked for. ``accepted`` are the first claims that contradicted nothing:
    ``first``, the first of all, are tried first, also where the node becomes known later. ``reported`` is the
    most that kubelet has reported, by resource.
    """

    shares: tuple[Shares, ...] = ()
    first: RequestAndClaims | None = None
    accepted: RequestAndClaims | None = None
    reported: tuple[tuple[str, int], ...] = ()

    def note(self, request: Request, claims: Claims | None, reported: Sequence[tuple[str, int]]) -> None:
        """The pod asks for and claims this now, and kubelet reports so many devices."""
        if request.shares:
            self.shares = _largest(self.shares, request.shares)
        if claims and self.first is None:
            self.first = RequestAndClaims(request, claims)
        if reported and reported != self.reported:
            most = Counter(dict(self.reported)) | Counter(dict(reported))
            self.reported = tuple(sorted(most.items()))


def reconcile_since_bound(
    node: NodeSpec,
    request: Request,
    claims: Claims | None,
    possible: tuple[Shares, ...],
    history: ClaimHistory,
) -> ReconciledClaims:
    """What a pod bound to this node has of its shared GPUs, by its claims now and before.

    ``possible`` is set where the request cannot be read: the shares that it can have been given; ``request``
    is then what its spec alone takes. Sets ``history.accepted`` where that is not known yet.
    """
    if not node.sharing_resource:
        return ReconciledClaims()
    known = tuple(share for share in history.shares if share.resource == node.sharing_resource)
    larger = known or tuple(share for share in possible if share.resource == node.sharing_resource)
    if possible and larger:
        request = _as_granted(node, request, larger[0])
    reconciled = reconcile_claims(node, request, claims)
    if history.accepted is None:
        present = RequestAndClaims(request, claims) if claims else None
        history.accepted = _acceptable(node, history.first, present, reconciled)
    accepted = history.accepted
    before, counted = (accepted.request, accepted.claims) if accepted else (request, claims)
    if counted != claims:
        reconciled = reconcile_claims(node, request, counted)
    for share in larger:
        if not _covers(resolve_on(node, before).shares, share):
            more = reconcile_claims(node, Request(shares=share), _with_least(counted, share))
            reconciled = _larger_of(reconciled, more)
    now = resolve_on(node, request).shares
    if counted != claims or any(not _covers(now, share) for share in known):
        return replace(reconciled, problem=_CHANGED)
    return reconciled


def _acceptable(
    node: NodeSpec,
    first: RequestAndClaims | None,
    present: RequestAndClaims | None,
    reconciled: ReconciledClaims,
) -> RequestAndClaims | None:
    """Claims that contradict nothing: the first ones, or else the present ones, which gave ``reconciled``."""
    if (
        first
        and (present is None or first.claims != present.claims)
        and _is_for(node, first)
        and not reconcile_claims(node, first.request, first.claims).problem
    ):
        return first
    return present if present and _is_for(node, present) and not reconciled.problem else None


def _is_for(node: NodeSpec, claimed: RequestAndClaims) -> bool:
    return claimed.claims.resource == node.sharing_resource


def _as_granted(node: NodeSpec, request: Request, share: Shares) -> Request:
    """A request that cannot be read, with the share that the pod can have been given here; whole GPUs where
    its spec asks for those, too."""
    others = tuple(device for device in request.devices if device[0] != share.resource)
    beside = resolve_on(node, replace(request, devices=others))
    if beside.shares:
        share = whole_gpus(share.count + beside.shares.count, share.resource)
    return replace(beside, shares=share)


def _with_least(claims: Claims | None, share: Shares) -> Claims | None:
    if claims is None:
        return None
    return replace(claims, devices=tuple(replace(claim, requested=share) for claim in claims.devices))


def _larger_of(one: ReconciledClaims, other: ReconciledClaims) -> ReconciledClaims:
    """The larger of both on each GPU; ``problem`` of the first."""
    compute, memory, slices = Counter[int](), Counter[int](), dict(one.slices)
    further = tuple(sorted((Counter(dict(one.further)) | Counter(dict(other.further))).items()))
    for gpu, milli, mib in (*one.parts, *other.parts):
        compute[gpu], memory[gpu] = max(milli, compute[gpu]), max(mib, memory[gpu])
    for gpu, mask in other.slices:
        slices[gpu] = mask | slices.get(gpu, 0)
    parts = tuple((gpu, compute[gpu], memory[gpu]) for gpu in sorted(compute))
    return ReconciledClaims(parts, one.problem, tuple(sorted(slices.items())), further)


def _covers(one: Shares | None, other: Shares) -> bool:
    """Whether a share is at least as large as another of the same resource, on any GPU."""
    return one is not None and one.resource == other.resource and all(map(ge, _amounts(one), _amounts(other)))


def _largest(shares: tuple[Shares, ...], new: Shares) -> tuple[Shares, ...]:
    """These shares and a new one, without those that another covers."""
    if any(_covers(one, new) for one in shares):
        return shares
    kept = (*(one for one in shares if not _covers(new, one)), new)
    if len(kept) <= _ALTERNATIVES:
        return kept
    # One that covers them all. They are of one resource, unless the owner edits the pod many times.
    count, compute_milli, memory_mib, memory_milli = map(max, *map(_amounts, kept))
    return (Shares(count, compute_milli, memory_mib, memory_milli, kept[0].resource),)
