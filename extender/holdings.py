"""What a running pod has of each GPU: its claims held against its request and its node.

Claims can be missing, wrong or forged. The books then count the larger use, so that no GPU is handed out
twice, and the contradiction is reported: a device that cannot be found could be any of the node's, so the
share counts on every one of them; of the amount that was asked for and the one that is claimed, the larger
counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from extender.dialects.vocabulary import Claim, Claims
from packing.instances import every_slice
from packing.request import WHOLE, Request, Shares
from packing.shape import Gpu, NodeShape, meaning

_ROUNDING = 2
"""MiB by which others may round a part of a GPU's memory in another way."""
Parts = tuple[tuple[int, int, int], ...]
"""(GPU, compute milli, memory MiB), as in ``packing.fleet.Allocation``."""


@dataclass(frozen=True, slots=True)
class Settled:
    """``parts`` of GPUs in the books, and of those that are divided into MIG instances the ``slices`` (GPU,
    mask); ``doubt`` says what the claims contradict, "" where nothing."""

    parts: Parts = ()
    doubt: str = ""
    slices: tuple[tuple[int, int], ...] = ()


def settle(shape: NodeShape, request: Request, claims: Claims | None) -> Settled:
    """What a pod bound to this node has of its divided GPUs."""
    if not shape.divided_as:
        return Settled()
    asked = meaning(shape, request).shares
    if claims is not None and claims.resource != shape.divided_as:
        claims = None  # written for another kind of node: what counts here is what the pod asks for
    if claims is None and asked is None:
        return Settled()
    devices, doubts = _heard(shape, asked, claims)
    exact = claims is not None and claims.exact
    held: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    slices: defaultdict[int, int] = defaultdict(int)
    for claim in devices:
        known = _find(shape, claim.device)
        gpus = range(len(shape.gpus)) if known is None else (known,)
        if claim.device and known is None:
            doubts.append(f"claims GPU {claim.device[:64]!r}, which the node does not have")
        for gpu in gpus:
            milli, mib, doubt = _size(shape, gpu, claim, exact=exact)
            held[claim.stage][gpu][0] += milli
            held[claim.stage][gpu][1] += mib
            if shape.gpus[gpu].instances:
                mask, why = _slices(shape.gpus[gpu], claim, sure=known is not None and not doubt)
                slices[gpu] |= mask
                doubt = doubt or why
            elif claim.slices:
                doubt = doubt or "claims a MIG instance of a GPU that has none"
            if doubt and claim.device:
                doubts.append(doubt)
    return Settled(
        _at_once(held, shape.gpus), "; ".join(dict.fromkeys(doubts)), tuple(sorted(slices.items()))
    )


def _heard(
    shape: NodeShape, asked: Shares | None, claims: Claims | None
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
    shape: NodeShape, request: Request, reported: tuple[tuple[str, int], ...]
) -> tuple[Request, str]:
    """The request with as many counted devices as kubelet reports, if those are more, and what contradicts.

    Where GPUs are divided kubelet's report is of stand-ins, and means nothing.
    """
    if not reported:
        return request, ""
    asked = dict(meaning(shape, request).devices)
    plain = {pool.resource for pool in shape.pools if not shape.divides(pool)}
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
        return f"claims GPUs of node {claims.node[:64]!r}: it counts on every GPU of the node"
    return f"annotation {claims.complaint}"


def _find(shape: NodeShape, device: str) -> int | None:
    """The index of the GPU that a UUID or an index stands for, None where it stands for none."""
    if device.isdecimal() and len(device) < 10 and int(device) < len(shape.gpus):
        return int(device)
    named = (index for index, gpu in enumerate(shape.gpus) if device and gpu.uuid == device)
    return next(named, None)


def _size(shape: NodeShape, gpu: int, claim: Claim, *, exact: bool) -> tuple[int, int, str]:
    """Compute and memory that count, and what is wrong with what the claim says of them."""
    has, least = shape.gpus[gpu], claim.least
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


def _slices(gpu: Gpu, claim: Claim, *, sure: bool) -> tuple[int, str]:
    """The slices that count, and what is wrong with those that are claimed: then all of the GPU's count."""
    if sure and any(claim.slices in instance.windows for instance in gpu.instances):
        return claim.slices, ""
    return every_slice(gpu.instances), "claims no MIG instance that its GPU can have"


def _at_once(held: dict[int, dict[int, list[int]]], gpus: Sequence[Gpu]) -> Parts:
    """The most of each GPU at once: sidecars, and beside them containers or any one init container.

    More than it has is as good as any number, and forged sums may be too large for the books to be exact.
    """
    touched = sorted({gpu for stage in held.values() for gpu in stage})
    alone = [stage for stage in held if stage != 1] or [0]

    def most(gpu: int, i: int, has: int) -> int:
        return min(held[1][gpu][i] + max(held[stage][gpu][i] for stage in alone), has + 1)

    return tuple(
        (gpu, most(gpu, 0, gpus[gpu].compute_milli), most(gpu, 1, gpus[gpu].memory_mib)) for gpu in touched
    )
