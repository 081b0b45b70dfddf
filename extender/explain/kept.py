"""What the best node keeps for others against the next best, in nouns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from extender.dialects.shared_gpus import MIG_PREFIX
from extender.explain.answers import Option
from extender.explain.options import NOT_ROOM
from extender.untrusted.limits import KEY, NAME, shorten
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.request import WHOLE, Request

_NOTHING = 0.005
"""GPUs that count as none."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A node that fits: its row of the fleet, and the request in the form that it takes there."""

    row: int
    request: Request
    option: Option


def compared(fleet: Fleet, found: Sequence[Placement], fitting: npt.NDArray[np.int64]) -> list[Option]:
    """The options, best first, each with what it keeps or costs against another as ``why`` where that can be
    said: the best against the next, the others against the best. ``fitting``: the rows of all nodes that fit.
    """
    if not found or not found[0].request.wants_gpu:
        return [one.option for one in found]
    best, *others = found
    if not others:
        return [replace(best.option, why="the only node that takes it")]
    texts = ["; ".join(_kept(fleet, best, others[0], fitting)) or _dearer(best.option, others[0].option)]
    for one in others:
        costs = "; ".join(_costs(fleet, one.row, best.row)) or _cheaper(one.option, best.option)
        texts.append("" if _is_other(one.option) else costs)
    return [replace(one.option, why=text or one.option.why) for one, text in zip(found, texts, strict=True)]


def _dearer(best: Option, other: Option) -> str:
    """The best against the next by their costs, where nothing else tells them apart."""
    name, more = shorten(other.node, NAME), other.cost - best.cost
    if more <= _NOTHING:
        return f"as good as {name}"
    return f"leaves {more:.2g} more GPUs for expected pods than {name}"


def _cheaper(other: Option, best: Option) -> str:
    """Another node against the best by their costs."""
    name, more = shorten(best.node, NAME), other.cost - best.cost
    return (
        f"as good as {name}"
        if more <= _NOTHING
        else f"leaves {more:.2g} GPUs less for expected pods than {name}"
    )


def _is_other(option: Option) -> bool:
    """Whether most of its cost is for something else than room."""
    return max(option.terms, key=lambda name: option.terms[name], default="") in NOT_ROOM


def _kept(fleet: Fleet, best: Placement, other: Placement, fitting: npt.NDArray[np.int64]) -> Iterator[str]:
    free, name = _free(fleet, best.row), shorten(other.option.node, NAME)
    with fleet.holding([allocation_of(fleet, best.row, best.request, best.option.gpus)]):
        is_full = _is_full(fleet, best.row)
    if is_full:
        yield f"fills {shorten(best.option.node, NAME)}"
    elif best.request.shares and best.option.gpus and _in_use(fleet, best.row, best.option.gpus):
        yield f"takes GPU{'s' * (len(best.option.gpus) > 1)} that others use already"
    if _value(fleet, other.row) > _value(fleet, best.row):
        yield f"keeps the {_model(fleet, other.row)} of {name}, worth more than its {_model(fleet, best.row)}"
    idle = fitting[_idle(fleet)[fitting]].tolist()
    if idle and best.row not in idle:
        yield f"keeps {_name(fleet, idle[0]) if len(idle) == 1 else f'{len(idle)} idle nodes'} whole"
    if other.row in idle and best.row not in idle:
        return
    if mig := [one for one, _ in best.request.devices if one.startswith(MIG_PREFIX)]:
        counts = {one: (_devices(fleet, best.row, one), _devices(fleet, other.row, one)) for one in mig}
        yield from (
            f"leaves {there} x {shorten(one.removeprefix(MIG_PREFIX), KEY)} free on {name}"
            for one, (here, there) in counts.items()
            if there > here
        )
    elif (there := _free(fleet, other.row)) > free + _NOTHING:
        yield f"leaves {there:.3g} GPU{'s' * (there != 1)} free together on {name}"


def _costs(fleet: Fleet, row: int, best: int) -> Iterator[str]:
    whole, free = _idle(fleet), _free(fleet, row)
    if whole[row] and not whole[best]:
        yield "breaks up an idle node"
    elif free > _free(fleet, best) + _NOTHING and free > 1:
        yield f"splits {free:.3g} free GPUs that would stay together"
    if _value(fleet, row) > _value(fleet, best):
        yield f"takes a more valuable {_model(fleet, row)}"


def _free(fleet: Fleet, row: int) -> float:
    """Free GPUs that the node offers."""
    left = np.maximum(fleet.arrays.compute[:, row], 0)
    return float(left[fleet.arrays.offered[:, row] > 0].sum()) / WHOLE


def _is_full(fleet: Fleet, row: int) -> bool:
    """Whether the node has no GPU, or no device that it counts, left."""
    arrays = fleet.arrays
    counts = arrays.total_devices[:, row].any() and not arrays.divisible[:, row].any()
    return bool(counts and (arrays.free_devices[:, row] <= 0).all()) or _free(fleet, row) < _NOTHING


def _idle(fleet: Fleet) -> npt.NDArray[np.bool_]:
    """(N,) whether no GPU of the node is in use."""
    arrays = fleet.arrays
    return np.asarray((arrays.compute >= arrays.compute_capacity).all(axis=0))


def _in_use(fleet: Fleet, row: int, gpus: Sequence[int]) -> bool:
    """Whether each of these GPUs is in use."""
    arrays = fleet.arrays
    return all(arrays.compute[gpu, row] < arrays.compute_capacity[gpu, row] for gpu in gpus)


def _devices(fleet: Fleet, row: int, name: str) -> int:
    number = fleet.names.resources.get(name)
    return 0 if number is None else int(fleet.arrays.free_devices[number, row])


def _value(fleet: Fleet, row: int) -> float:
    return float(fleet.arrays.gpu_value[row])


def _model(fleet: Fleet, row: int) -> str:
    spec = fleet.specs[row]
    return shorten((spec and (spec.model or spec.product)) or "GPU", NAME)


def _name(fleet: Fleet, row: int) -> str:
    spec = fleet.specs[row]
    return shorten(spec.name if spec else "", NAME)
