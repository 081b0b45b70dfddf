"""What a running pod has of each GPU: its claims held against its request and its node.

Claims can be missing, wrong or forged. The books then count the larger use, so that no GPU is handed out
twice, and the contradiction is reported: a device that cannot be found could be any of the node's, so the
share counts on every one of them; of the amount that was asked for and the one that is claimed, the larger
counts.

A pod keeps its GPUs for as long as it runs, and its owner may edit its annotations meanwhile. So the first
claims that contradict nothing count, and the largest share that was asked for (``Seen``). CPU and memory may
be resized while a pod runs: they follow its spec.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.dialects.dialect import Claim, Claims
from extender.untrusted.limits import quoted, shorten
from packing.model.mig_instances import Instances, every_slice
from packing.model.node_spec import Gpu, NodeSpec, resolve_on
from packing.model.request import WHOLE, Request, Shares, whole_gpus

_ROUNDING = 2
"""MiB by which others may round a part of a GPU's memory in another way."""
Parts = tuple[tuple[int, int, int], ...]
"""(GPU, compute milli, memory MiB), as in ``packing.fleet.fleet.Allocation``."""


@dataclass(frozen=True, slots=True)
class ReconciledClaims:
    """``parts`` of GPUs in the books, and of those that are divided into MIG instances the ``slices`` (GPU,
    mask); ``doubt`` says what the claims contradict, "" where nothing."""

    parts: Parts = ()
    doubt: str = ""
    slices: tuple[tuple[int, int], ...] = ()


def reconcile_claims(shape: NodeSpec, request: Request, claims: Claims | None) -> ReconciledClaims:
    """What a pod bound to this node has of its divided GPUs."""
    if not shape.sharing_resource:
        return ReconciledClaims()
    asked = resolve_on(shape, request).shares
    if claims is not None and claims.resource != shape.sharing_resource:
        claims = None  # written for another kind of node: what counts here is what the pod asks for
    if claims is None and asked is None:
        return ReconciledClaims()
    devices, doubts = _heard(shape, asked, claims)
    uses = _Uses(shape, exact=claims is not None and claims.exact)
    for claim in devices:
        doubts.append(uses.add(claim))
    return ReconciledClaims(uses.parts(), _joined(doubts), uses.slices())


def _heard(
    shape: NodeSpec, asked: Shares | None, claims: Claims | None
) -> tuple[tuple[Claim, ...], list[str]]:
    """The claims that are heard, at least one if the pod asks for anything, and what is wrong with them."""
    elsewhere = claims is not None and claims.node not in ("", shape.name)
    doubts = []
    if claims is None or claims.complaint or elsewhere:
        doubts.append(_complaint(claims, elsewhere=elsewhere))
    if asked is None:
        doubts.append("claims GPU that the pod did not ask for")
    devices = claims.devices if claims and not elsewhere else ()
    return devices or ((Claim("", least=asked),) if asked else ()), doubts


def settle_counts(
    shape: NodeSpec, request: Request, reported: tuple[tuple[str, int], ...]
) -> tuple[Request, str]:
    """The request with as many counted devices as kubelet reports, if those are more, and what contradicts.

    Where GPUs are divided kubelet's report is of stand-ins, and means nothing.
    """
    if not reported:
        return request, ""
    asked = dict(resolve_on(shape, request).devices)
    plain = {pool.resource for pool in shape.pools if not shape.is_divisible(pool)}
    more = {name: held for name, held in reported if name in plain and held > asked.get(name, 0)}
    if not more:
        return request, ""
    doubt = "; ".join(
        f"has {n} {name} by kubelet's report, asks for {asked.get(name, 0)}" for name, n in more.items()
    )
    return replace(request, shares=None, devices=tuple(sorted((asked | more).items()))), doubt


def _complaint(claims: Claims | None, *, elsewhere: bool) -> str:
    if claims is None:
        return "nothing says which GPU it has: it counts on every GPU of the node"
    if elsewhere:
        return f"claims GPUs of node {quoted(claims.node)}: it counts on every GPU of the node"
    return f"annotation {claims.complaint}"


def _size(has: Gpu, claim: Claim, *, exact: bool) -> tuple[int, int, str]:
    """Compute and memory that count, and what is wrong with what the claim says of them."""
    least = claim.least
    milli, mib = claim.compute_milli, claim.memory_mib + has.memory_mib * claim.memory_milli // WHOLE
    # A MIG instance may be larger than what was asked for, and its compute is what comes with its memory.
    exact = exact and not has.instances
    asked_milli = min(least.compute_milli, has.compute_milli) if least and not has.instances else 0
    asked_mib = least.memory_mib + has.memory_mib * least.memory_milli // WHOLE if least else 0
    doubt = ""
    slack = _ROUNDING if least and least.memory_milli else 0
    # Exclusive use of the compute is exclusive use: how much memory is said beside it does not matter.
    if least and milli < WHOLE and (mib + slack < asked_mib or milli < asked_milli < WHOLE):
        doubt = "claims less GPU than the pod asks for"
    elif least and exact and (mib > asked_mib + slack > slack or milli > asked_milli > 0):
        doubt = "claims more GPU than the pod asks for"
    if milli > has.compute_milli or mib > has.memory_mib:
        doubt = "claims more than the GPU has"
    return (
        min(max(milli, asked_milli), has.compute_milli),
        min(max(mib, asked_mib), has.memory_mib),
        doubt,
    )


def _slices(instances: Instances, claim: Claim, *, sure: bool) -> tuple[int, str]:
    """The slices that count, and what is wrong with those that are claimed: then all of the GPU's count."""
    if sure and any(claim.slices in instance.windows for instance in instances):
        return claim.slices, ""
    return every_slice(instances), "claims no MIG instance that its GPU can have"


class _Uses:
    """What claims use of a node's GPUs, added up.

    A claim that could be on any GPU is added once for each kind of GPU, so that the work grows with claims
    plus GPUs and not with their product.
    """

    def __init__(self, shape: NodeSpec, *, exact: bool) -> None:
        self._gpus, self._exact = shape.gpus, exact
        self._by_uuid = {gpu.uuid: index for index, gpu in reversed([*enumerate(shape.gpus)]) if gpu.uuid}
        self._on: defaultdict[int, defaultdict[int, _Amount]] = defaultdict(lambda: defaultdict(_Amount))
        self._anywhere: dict[tuple[int, int, Instances], _OnAny] = {}
        self._slices: defaultdict[int, int] = defaultdict(int)

    def add(self, claim: Claim) -> str:
        """Add a claim; what is wrong with it."""
        index = self._find(claim.device)
        if index is None:
            return self._add_anywhere(claim)
        milli, mib, doubt = _size(self._gpus[index], claim, exact=self._exact)
        self._on[index][claim.stage].add(milli, mib)
        if instances := self._gpus[index].instances:
            mask, why = _slices(instances, claim, sure=not doubt)
            self._slices[index] |= mask
            return doubt or why
        return doubt or ("claims a MIG instance of a GPU that has none" if claim.slices else "")

    def _find(self, device: str) -> int | None:
        """The index of the GPU that a UUID or an index stands for, None where it stands for none."""
        if device.isascii() and device.isdecimal() and len(device) < 10 and int(device) < len(self._gpus):
            return int(device)
        return self._by_uuid.get(device)

    def _add_anywhere(self, claim: Claim) -> str:
        """It could be any GPU of the node, so it counts on each."""
        if not self._anywhere:
            self._anywhere = {_kind(gpu): _OnAny(gpu) for gpu in self._gpus}
        for one in self._anywhere.values():
            milli, mib, _ = _size(one.gpu, claim, exact=self._exact)
            one.add(claim.stage, milli, mib)
        return f"claims GPU {quoted(claim.device)}, which the node does not have" if claim.device else ""

    def parts(self) -> Parts:
        """The most of each GPU at once: sidecars, and beside them containers or any one init container.

        More than it has is as good as any number, and forged sums may be too large for the books.
        """
        touched = range(len(self._gpus)) if self._anywhere else sorted(self._on)
        return tuple((gpu, *self._most(gpu)) for gpu in touched)

    def _most(self, index: int) -> tuple[int, int]:
        gpu = self._gpus[index]
        here: Mapping[int, _Amount] = self._on.get(index, {})
        on_any = self._anywhere.get(_kind(gpu)) if self._anywhere else None
        any_stage = on_any.stages if on_any else {}
        most = on_any.most_alone if on_any else (0, 0)
        for stage in here:
            if stage != _SIDECARS:
                both = _sum(here.get(stage), any_stage.get(stage))
                most = max(most[0], both[0]), max(most[1], both[1])
        milli, mib = _sum(here.get(_SIDECARS), any_stage.get(_SIDECARS))
        return min(milli + most[0], gpu.compute_milli + 1), min(mib + most[1], gpu.memory_mib + 1)

    def slices(self) -> tuple[tuple[int, int], ...]:
        """Of each GPU that is divided into MIG instances the slices that are used, as a mask."""
        if not self._anywhere:
            return tuple(sorted(self._slices.items()))
        return tuple((i, every_slice(gpu.instances)) for i, gpu in enumerate(self._gpus) if gpu.instances)


_SIDECARS = 1
"""The stage of sidecars (see ``Claim``)."""


@dataclass(slots=True)
class _Amount:
    milli: int = 0
    mib: int = 0

    def add(self, milli: int, mib: int) -> None:
        self.milli += milli
        self.mib += mib


@dataclass(slots=True)
class _OnAny:
    """What counts on each GPU like this one, by stage, and the most in any stage but that of the sidecars."""

    gpu: Gpu
    stages: dict[int, _Amount] = field(default_factory=dict)
    most_alone: tuple[int, int] = (0, 0)

    def add(self, stage: int, milli: int, mib: int) -> None:
        amount = self.stages.setdefault(stage, _Amount())
        amount.add(milli, mib)
        if stage != _SIDECARS:
            self.most_alone = max(self.most_alone[0], amount.milli), max(self.most_alone[1], amount.mib)


def _sum(*amounts: _Amount | None) -> tuple[int, int]:
    return sum(one.milli for one in amounts if one), sum(one.mib for one in amounts if one)


def _kind(gpu: Gpu) -> tuple[int, int, Instances]:
    return gpu.compute_milli, gpu.memory_mib, gpu.instances


def _joined(doubts: Sequence[str]) -> str:
    return shorten("; ".join(dict.fromkeys(filter(None, doubts))))


_ALTERNATIVES = 2
"""Shares of one pod of which none covers another. More are counted as one that covers them all."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a pod asks for, and what it says it has."""

    request: Request
    claims: Claims


@dataclass(slots=True)
class Seen:
    """What has been seen of a bound pod's GPUs since it was bound. It ends with the pod, or with Stowage.

    ``shares`` are the largest that it asked for. ``first`` are the first claims that contradicted nothing;
    those that ``came_first`` are tried first, also where the node comes later. ``reported`` is the most that
    kubelet has reported, by resource.
    """

    shares: tuple[Shares, ...] = ()
    came_first: Said | None = None
    first: Said | None = None
    reported: tuple[tuple[str, int], ...] = ()

    def note(self, request: Request, claims: Claims | None, reported: Sequence[tuple[str, int]]) -> None:
        """The pod says this now, and kubelet reports so many devices."""
        if request.shares:
            self.shares = _largest(self.shares, request.shares)
        if claims and self.came_first is None:
            self.came_first = Said(request, claims)
        if reported and reported != self.reported:
            most = Counter(dict(self.reported)) | Counter(dict(reported))
            self.reported = tuple(sorted(most.items()))


def settle_since(
    shape: NodeSpec, request: Request, claims: Claims | None, possible: tuple[Shares, ...], seen: Seen
) -> ReconciledClaims:
    """What a pod bound to this node has of its divided GPUs, by what it says now and has said before.

    Where the request cannot be read, it is what its spec takes, and ``possible`` what it can have been given.
    """
    if not shape.sharing_resource:
        return ReconciledClaims()
    known = tuple(share for share in seen.shares if share.resource == shape.sharing_resource)
    larger = known or tuple(share for share in possible if share.resource == shape.sharing_resource)
    if possible and larger:
        request = _as_granted(shape, request, larger[0])
    settled = reconcile_claims(shape, request, claims)
    if seen.first is None:
        seen.first = _first(shape, seen.came_first, Said(request, claims) if claims else None, settled)
    before, counts = (seen.first.request, seen.first.claims) if seen.first else (request, claims)
    if counts != claims:
        settled = reconcile_claims(shape, request, counts)
    for share in larger:
        if not _covers(resolve_on(shape, before).shares, share):
            more = reconcile_claims(shape, Request(shares=share), _with_least(counts, share))
            settled = _both(settled, more)
    now = resolve_on(shape, request).shares
    if counts != claims or any(not _covers(now, share) for share in known):
        return replace(settled, doubt=_CHANGED)
    return settled


def _first(
    shape: NodeSpec, came_first: Said | None, now: Said | None, settled: ReconciledClaims
) -> Said | None:
    """What contradicts nothing: what came first, else what is said now, of which ``settled`` was made."""
    if (
        came_first
        and (now is None or came_first.claims != now.claims)
        and _is_for(shape, came_first)
        and not reconcile_claims(shape, came_first.request, came_first.claims).doubt
    ):
        return came_first
    return now if now and _is_for(shape, now) and not settled.doubt else None


def _is_for(shape: NodeSpec, said: Said) -> bool:
    return said.claims.resource == shape.sharing_resource


_CHANGED = "its annotations have changed since it was bound"


def _as_granted(shape: NodeSpec, request: Request, share: Shares) -> Request:
    """A request that cannot be read, with the share that the pod can have been given here; whole GPUs where
    its spec asks for those, too."""
    others = replace(request, devices=tuple(one for one in request.devices if one[0] != share.resource))
    beside = resolve_on(shape, others)
    if beside.shares:
        share = whole_gpus(share.count + beside.shares.count, share.resource)
    return replace(beside, shares=share)


def _with_least(claims: Claims | None, share: Shares) -> Claims | None:
    """The claims with this share on each device."""
    if claims is None:
        return None
    return replace(claims, devices=tuple(replace(claim, least=share) for claim in claims.devices))


def _both(one: ReconciledClaims, other: ReconciledClaims) -> ReconciledClaims:
    """The larger of both on each GPU; ``doubt`` of the first."""
    parts = {gpu: (milli, mib) for gpu, milli, mib in one.parts}
    for gpu, milli, mib in other.parts:
        before = parts.get(gpu, (0, 0))
        parts[gpu] = max(milli, before[0]), max(mib, before[1])
    slices = dict(one.slices)
    for gpu, mask in other.slices:
        slices[gpu] = mask | slices.get(gpu, 0)
    in_order = tuple((gpu, *parts[gpu]) for gpu in sorted(parts))
    return ReconciledClaims(in_order, one.doubt, tuple(sorted(slices.items())))


def _covers(one: Shares | None, other: Shares) -> bool:
    """Whether a share is at least as large as another of the same resource, whatever the GPU."""
    return one is not None and (
        one.resource == other.resource
        and one.count >= other.count
        and one.compute_milli >= other.compute_milli
        and one.memory_mib >= other.memory_mib
        and one.memory_milli >= other.memory_milli
    )


def _largest(shares: tuple[Shares, ...], new: Shares) -> tuple[Shares, ...]:
    """These shares and a new one, without those that another covers."""
    if any(_covers(one, new) for one in shares):
        return shares
    kept = (*(one for one in shares if not _covers(new, one)), new)
    return kept if len(kept) <= _ALTERNATIVES else (_covering(kept),)


def _covering(shares: Sequence[Shares]) -> Shares:
    """A share that covers them all; they are of one resource, unless somebody edits without end."""
    first, *others = shares
    for one in others:
        first = Shares(
            max(first.count, one.count),
            max(first.compute_milli, one.compute_milli),
            max(first.memory_mib, one.memory_mib),
            max(first.memory_milli, one.memory_milli),
            first.resource,
        )
    return first
