"""Shares that a running pod holds of each GPU of a node that shares GPUs: its claims, checked against its
request and the node, now and since it was bound.

Claims are annotations: they can be missing, wrong or forged. In that case the larger use counts, so that no
GPU is allocated twice, and the contradiction is a problem. A device that the node does not have could be any
of its GPUs, so the claim counts on each of them. Of the requested and the claimed share, the larger counts.

A pod keeps its GPUs for as long as it runs, but its owner may edit its annotations. So the first claims
without a contradiction count, and the largest share that was requested. CPU and memory may be resized while a
pod runs: they follow its spec, and are not handled here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, ge
from typing import TypeAlias

from extender.dialects.dialect import Claim, Claims
from extender.untrusted.limits import quoted, shorten
from packing.model.mig_instances import Instances, every_slice
from packing.model.node_spec import Gpu, NodeSpec, resolve_on
from packing.model.request import WHOLE, Request, Shares, share_memory_mib, whole_gpus

_ROUNDING = 2
"""MiB by which sharing systems may differ in rounding a fraction of a GPU's memory."""
_Amount: TypeAlias = tuple[int, int, int]
"""Compute in milli, memory in MiB, and the number of the GPU's slots for pods."""
_NOTHING: _Amount = (0, 0, 0)
Parts: TypeAlias = tuple[tuple[int, int, int], ...]
"""(GPU, compute milli, memory MiB), as in ``packing.fleet.node_usage.Allocation``."""
_CHANGED = "its annotations have changed since it was bound"
_ALTERNATIVES = 2
"""Maximum number of shares of one pod; no share covers another. Beyond it, one share that covers them all
counts."""
_amounts = attrgetter("count", "compute_milli", "memory_mib", "memory_milli")
"""All fields of a share except its resource."""


@dataclass(frozen=True, slots=True)
class ReconciledClaims:
    """``parts`` of GPUs that the pod holds, ``slices`` (GPU, mask) of those with MIG instances, and
    ``further`` as in ``packing.fleet.node_usage.Allocation``; ``problem``: what the claims contradict, "" if
    nothing."""

    parts: Parts = ()
    problem: str = ""
    slices: tuple[tuple[int, int], ...] = ()
    further: tuple[tuple[int, int], ...] = ()


def reconcile_claims(node: NodeSpec, request: Request, claims: Claims | None) -> ReconciledClaims:
    """Shares of this node's GPUs that a pod bound to it holds."""
    if not node.sharing_resource:
        return ReconciledClaims()
    asked = resolve_on(node, request).shares
    if claims is not None and claims.resource != node.sharing_resource:
        claims = None  # of another sharing system: only the pod's request counts here
    if claims is None and asked is None:
        return ReconciledClaims()
    usable, problems = _usable(node, asked, claims)
    use = _GpuUse(node, exact=claims is not None and claims.exact)
    problems += [use.add(claim) for claim in usable]
    problem = shorten("; ".join(dict.fromkeys(filter(None, problems))))
    return ReconciledClaims(use.parts(), problem, use.slices(), use.further())


def reconcile_counts(
    node: NodeSpec, request: Request, reported: tuple[tuple[str, int], ...]
) -> tuple[Request, str]:
    """The request, with the counted devices that kubelet reports where these are more, and the problem.

    On nodes that share GPUs, kubelet's devices are interchangeable placeholders, and are not counted.
    """
    if not reported:
        return request, ""
    asked = dict(resolve_on(node, request).devices)
    counted = {pool.resource for pool in node.pools if not node.is_divisible(pool)}
    more = {name: count for name, count in reported if name in counted and count > asked.get(name, 0)}
    if not more:
        return request, ""
    problem = "; ".join(
        f"kubelet reports {n} {name}, the pod requests {asked.get(name, 0)}" for name, n in more.items()
    )
    return replace(request, shares=None, devices=tuple(sorted((asked | more).items()))), problem


def _usable(
    node: NodeSpec, asked: Shares | None, claims: Claims | None
) -> tuple[tuple[Claim, ...], list[str]]:
    """Usable claims, at least one if the pod requests a share, and the problems of the others."""
    devices: tuple[Claim, ...] = ()
    problems = []
    if claims is None:
        problems.append("no annotation names its GPU: it counts on every GPU of the node")
    elif claims.node not in ("", node.name):
        problems.append(f"claims GPUs of node {quoted(claims.node)}: it counts on every GPU of the node")
    else:
        devices = claims.devices
        problems.append(claims.problem and f"annotation {claims.problem}")
    if asked is None:
        problems.append("claims GPU that the pod did not request")
    elif not devices:  # the most that the pod can have on any one GPU
        most = asked if asked.containers == 1 else asked.stacked or whole_gpus(1, asked.resource)
        devices = (Claim("", requested=most),)
    return devices, problems


def _share_on(gpu: Gpu, claim: Claim, *, exact: bool) -> tuple[int, int, str]:
    """Compute and memory that count on this GPU, and the problem of the claim."""
    least = claim.requested
    milli, mib = claim.compute_milli, share_memory_mib(gpu.memory_mib, claim.memory_mib, claim.memory_milli)
    # A MIG instance may be larger than requested, and its compute follows from its memory.
    exact = exact and not gpu.instances
    asked_milli = min(least.compute_milli, gpu.compute_milli) if least and not gpu.instances else 0
    asked_mib = least.mib_of(gpu.memory_mib) if least else 0
    problem = ""
    slack = _ROUNDING if least and least.memory_milli else 0
    # A pod with all of the compute has the GPU exclusively: the memory that it claims does not matter.
    if least and milli < WHOLE and (mib + slack < asked_mib or milli < asked_milli < WHOLE):
        problem = "claims less GPU than the pod requests"
    elif least and exact and (mib > asked_mib + slack > slack or milli > asked_milli > 0):
        problem = "claims more GPU than the pod requests"
    if milli > gpu.compute_milli or mib > gpu.memory_mib:
        problem = "claims more than the GPU has"
    milli, mib = max(milli, asked_milli), max(mib, asked_mib)
    return min(milli, gpu.compute_milli), min(mib, gpu.memory_mib), problem


@dataclass
class _OnAny:
    """Amounts that count on each GPU like ``gpu``, by stage (see ``Claim``), and their peak."""

    gpu: Gpu
    stages: dict[int, _Amount] = field(default_factory=dict)

    @cached_property
    def most(self) -> _Amount:
        return _peak(self.stages)


class _GpuUse:
    """The use of a node's GPUs, summed over claims.

    A claim that could be on any GPU is added once per kind of GPU, so that the work grows with the sum of
    claims and GPUs, not with their product.
    """

    def __init__(self, node: NodeSpec, *, exact: bool) -> None:
        self._gpus, self._exact = node.gpus, exact
        self._by_uuid = {gpu.uuid: index for index, gpu in reversed([*enumerate(node.gpus)]) if gpu.uuid}
        self._on: defaultdict[int, dict[int, _Amount]] = defaultdict(dict)
        self._anywhere: dict[tuple[int, int, Instances], _OnAny] = {}
        self._slices: defaultdict[int, int] = defaultdict(int)

    def add(self, claim: Claim) -> str:
        """Add a claim, and return its problem."""
        device, index = claim.device, self._by_uuid.get(claim.device)
        if device.isascii() and device.isdecimal() and len(device) < 10 and int(device) < len(self._gpus):
            index = int(device)
        if index is None:
            return self._add_anywhere(claim)
        gpu = self._gpus[index]
        milli, mib, problem = _share_on(gpu, claim, exact=self._exact)
        stages = self._on[index]
        stages[claim.stage] = _sum(stages.get(claim.stage, _NOTHING), (milli, mib, _slots(claim)))
        if gpu.instances:
            fits = any(claim.slices in instance.windows for instance in gpu.instances)
            self._slices[index] |= claim.slices if fits and not problem else every_slice(gpu.instances)
            return problem or ("" if fits else "claims no MIG instance that its GPU can have")
        return problem or ("claims a MIG instance of a GPU that has none" if claim.slices else "")

    def _add_anywhere(self, claim: Claim) -> str:
        """Add a claim that could be on any GPU of the node, so it counts on each."""
        if not self._anywhere:
            self._anywhere = {_kind(gpu): _OnAny(gpu) for gpu in self._gpus}
        for on_any in self._anywhere.values():
            milli, mib, _ = _share_on(on_any.gpu, claim, exact=self._exact)
            amount = _sum(on_any.stages.get(claim.stage, _NOTHING), (milli, mib, _slots(claim)))
            on_any.stages[claim.stage] = amount
        return f"claims GPU {quoted(claim.device)}, which the node does not have" if claim.device else ""

    def parts(self) -> Parts:
        """Peak use of each GPU: the sidecars that run, plus the containers or any one init container.

        Forged sums may be too large for the fleet, so they are capped slightly above what the GPU has.
        """
        return tuple((gpu, *self._most(gpu)[:2]) for gpu in self._used())

    def further(self) -> tuple[tuple[int, int], ...]:
        """(GPU, number) of the GPU's slots for pods that it takes beyond the first."""
        slots = ((gpu, self._most(gpu)[2]) for gpu in self._used())
        return tuple((gpu, number - 1) for gpu, number in slots if number > 1)

    def _used(self) -> Iterable[int]:
        return range(len(self._gpus)) if self._anywhere else sorted(self._on)

    def _most(self, index: int) -> _Amount:
        gpu = self._gpus[index]
        here = self._on.get(index, {})
        on_any = self._anywhere.get(_kind(gpu)) or _OnAny(gpu)
        both = {stage: _sum(amount, on_any.stages.get(stage, _NOTHING)) for stage, amount in here.items()}
        milli, mib, slots = _peak({**on_any.stages, **both}) if here else on_any.most
        return min(milli, gpu.compute_milli + 1), min(mib, gpu.memory_mib + 1), slots

    def slices(self) -> tuple[tuple[int, int], ...]:
        """(GPU, mask) of the slices in use of each GPU that is divided into MIG instances."""
        if not self._anywhere:
            return tuple(sorted(self._slices.items()))
        return tuple((i, every_slice(gpu.instances)) for i, gpu in enumerate(self._gpus) if gpu.instances)


def _peak(stages: Mapping[int, _Amount]) -> _Amount:
    running = most = _NOTHING
    for stage in sorted(stages, key=lambda stage: (stage == 0, abs(stage))):
        now = _sum(running, stages[stage])
        running = now if stage < 0 else running
        most = max(most[0], now[0]), max(most[1], now[1]), max(most[2], now[2])
    return most


def _sum(first: _Amount, other: _Amount) -> _Amount:
    return first[0] + other[0], first[1] + other[1], first[2] + other[2]


def _slots(claim: Claim) -> int:
    return claim.requested.slots if claim.requested else 1


def _kind(gpu: Gpu) -> tuple[int, int, Instances]:
    return gpu.compute_milli, gpu.memory_mib, gpu.instances


@dataclass(frozen=True, slots=True)
class RequestAndClaims:
    """A pod's request and its claims at one moment."""

    request: Request
    claims: Claims


@dataclass(slots=True)
class ClaimHistory:
    """Observations of a pod's GPUs since it was bound. They end with the pod, or with the Stowage process.

    ``shares``: the largest that it has requested. ``first``: the first claims of all. ``accepted``: the first
    claims without a contradiction; ``first`` is tried before others, even if the node becomes known later.
    ``reported``: by resource, the highest number that kubelet has reported. ``modes``: the values of
    ``Shares.concurrent``.
    """

    shares: tuple[Shares, ...] = ()
    first: RequestAndClaims | None = None
    accepted: RequestAndClaims | None = None
    reported: tuple[tuple[str, int], ...] = ()
    modes: frozenset[bool] = frozenset()

    def note(self, request: Request, claims: Claims | None, reported: Sequence[tuple[str, int]]) -> None:
        """Record the pod's present request and claims, and the numbers of devices that kubelet reports."""
        if request.shares:
            self.shares = _largest(self.shares, request.shares)
            self.modes |= {request.shares.concurrent}
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
    """Shares of this node's GPUs that a pod bound to it holds, by its present and earlier claims.

    ``possible`` is set if the request is unreadable: the shares that can have been allocated to it;
    ``request`` then covers only its spec. Sets ``history.accepted`` if it is not known yet.
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
            devices = tuple(replace(claim, requested=share) for claim in counted.devices) if counted else ()
            asks = Request(shares=share)
            more = reconcile_claims(node, asks, counted and replace(counted, devices=devices))
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
    """Claims without a contradiction: the first ones, otherwise the present ones, which resulted in
    ``reconciled``."""
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
    """An unreadable request, with the share that can have been allocated to the pod here; whole GPUs if its
    spec also requests some."""
    others = tuple(device for device in request.devices if device[0] != share.resource)
    beside = resolve_on(node, replace(request, devices=others))
    if beside.shares:
        share = whole_gpus(share.count + beside.shares.count, share.resource)
    return replace(beside, shares=share)


def _larger_of(first: ReconciledClaims, other: ReconciledClaims) -> ReconciledClaims:
    """The larger of the two on each GPU, with the ``problem`` of the first."""
    compute, memory, slices = Counter[int](), Counter[int](), dict(first.slices)
    further = tuple(sorted((Counter(dict(first.further)) | Counter(dict(other.further))).items()))
    for gpu, milli, mib in (*first.parts, *other.parts):
        compute[gpu], memory[gpu] = max(milli, compute[gpu]), max(mib, memory[gpu])
    for gpu, mask in other.slices:
        slices[gpu] = mask | slices.get(gpu, 0)
    parts = tuple((gpu, compute[gpu], memory[gpu]) for gpu in sorted(compute))
    return ReconciledClaims(parts, first.problem, tuple(sorted(slices.items())), further)


def _covers(shares: Shares | None, other: Shares) -> bool:
    """Whether a share is at least as large as another of the same resource, on any GPU."""
    return (
        shares is not None
        and shares.resource == other.resource
        and all(map(ge, _amounts(shares), _amounts(other)))
    )


def _largest(shares: tuple[Shares, ...], new: Shares) -> tuple[Shares, ...]:
    """These shares and a new one, except those that another covers."""
    if any(_covers(held, new) for held in shares):
        return shares
    kept = (*(held for held in shares if not _covers(new, held)), new)
    if len(kept) <= _ALTERNATIVES:
        return kept
    # One that covers them all. They are of one resource, unless the owner edits the pod many times.
    count, compute_milli, memory_mib, memory_milli = map(max, *map(_amounts, kept))
    return (Shares(count, compute_milli, memory_mib, memory_milli, kept[0].resource),)
