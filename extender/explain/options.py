"""The nodes that fit a pod: the allocation and cost on each, and why the best is better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from extender.cluster.state import State
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.dra.forecast import Forecast
from extender.explain.answers import Option
from extender.explain.needs import replicas_given
from extender.explain.words import TERMS, Said, Word
from extender.untrusted.limits import KEY, LISTED_NAMES, NAME, shorten
from extender.verbs.evaluate import Evaluation, form_on, further_costs, separation_costs
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.request import WHOLE, Request

_NOT_ROOM = {
    *("islands", "domains", "end", "gang", "claims", "spot", "NUMA", "less wanted", "parts of one GPU")
}
"""Terms that do not concern room."""
_NOTHING = 0.005
"""GPUs that count as none: terms up to this are not put in words."""


def option_on(state: State, evaluation: Evaluation, index: int, name: str, score: int | None) -> Option:
    """The node at ``index`` of the evaluation, which fits."""
    at = evaluation.rows[index : index + 1]
    row, forecast = int(at[0]), evaluation.forecasts[index] if evaluation.forecasts else Forecast()
    pod, request = evaluation.pod, form_on(state.fleet, row, evaluation.request)
    terms = dict(state.policy.terms(state.fleet, request, row))
    terms |= {name: float(more[0]) for name, more in further_costs(state, pod, request, at)}
    if request.together > 1:
        terms["parts of one GPU"] = float(separation_costs(state.fleet, request, at)[0])
    if forecast.devices:
        terms["claims"] = forecast.cost
    if forecast.first_available_penalty:
        terms["less wanted"] = forecast.first_available_penalty
    return Option(
        node=name,
        score=score,
        cost=float(evaluation.cost[index]),
        terms=terms,
        why=_largest_term(terms, spot=bool(state.fleet.arrays.spot[row])),
        gpus=state.policy.choose(state.fleet, request, row),
        devices=tuple(map("/".join, forecast.devices[:LISTED_NAMES])),
        devices_unknown=shorten(forecast.problem),
        nvlink=_nvlink(state, row, name) if request.gpus > 1 else "",
        gives=replicas_given(state.fleet, row, request),
    )


def _nvlink(state: State, row: int, name: str) -> str:
    spec, sources = state.fleet.specs[row], state.nodes.sources.get(name)
    if spec is None or sources is None or not sources.islands:
        return str(Word.NVLINK_UNKNOWN())
    sizes = " + ".join(str(len(island)) for island in spec.islands)
    said = Word.NVLINK(sizes=sizes, source=sources.islands)
    return str(said if sizes else Word.NO_NVLINK(source=sources.islands))


def _largest_term(terms: dict[str, float], *, spot: bool) -> str:
    """The largest cost of a placement on a ``spot`` node, or another, in words; "" for none."""
    costs = {name: value for name, value in terms.items() if name in TERMS}
    largest = _largest(costs)
    said = "on demand" if largest == "spot" and not spot else largest
    return TERMS[said] if costs.get(largest, 0) > _NOTHING else str(Word.NO_COST()) * bool(costs)


def _largest(terms: dict[str, float]) -> str:
    return max(terms, key=lambda name: terms[name], default="")


@dataclass(frozen=True, slots=True)
class NodeOption:
    """A node that fits: its row of the fleet, and the request in the form that it takes there."""

    row: int
    request: Request
    option: Option


def compared(fleet: Fleet, found: Sequence[NodeOption], fitting: npt.NDArray[np.int64]) -> list[Option]:
    """The options, best first, each with what it keeps or costs against another as ``why`` where that can be
    said: the best against the next, the others against the best. ``fitting``: the rows of all nodes that fit.
    """
    if not found or not found[0].request.wants_gpu:
        return [placement.option for placement in found]
    best, *others = found
    if not others:
        return [replace(best.option, why=str(Word.ONLY_NODE()))]
    texts = [
        "; ".join(map(str, _kept(fleet, best, others[0], fitting)))
        or _by_costs(best, others[0], of_best=True)
    ]
    for rival in others:
        costs = "; ".join(map(str, _costs(fleet, rival.row, best.row))) or _by_costs(
            best, rival, of_best=False
        )
        texts.append("" if _largest(rival.option.terms) in _NOT_ROOM else costs)
    return [replace(p.option, why=text or p.option.why) for p, text in zip(found, texts, strict=True)]


def _by_costs(best: NodeOption, rival: NodeOption, *, of_best: bool) -> str:
    more = rival.option.cost - best.option.cost
    name = shorten((rival if of_best else best).option.node, NAME)
    if more <= _NOTHING:
        return str(Word.AS_GOOD(node=name))
    return str((Word.MORE_ROOM if of_best else Word.LESS_ROOM)(gpus=f"{more:.2g}", node=name))


def _kept(
    fleet: Fleet, best: NodeOption, other: NodeOption, fitting: npt.NDArray[np.int64]
) -> Iterator[Said]:
    free, name = _free(fleet, best.row), shorten(other.option.node, NAME)
    with fleet.holding([allocation_of(fleet, best.row, best.request, best.option.gpus)]):
        is_full = _is_full(fleet, best.row)
    arrays, gpus = fleet.arrays, list(best.option.gpus)
    left = arrays.compute[gpus, best.row]
    if is_full:
        yield Word.FILLS(node=shorten(best.option.node, NAME))
    elif best.request.shares and gpus and (left < arrays.compute_capacity[gpus, best.row]).all():
        yield Word.TAKES_USED(s="s" * (len(gpus) > 1))
    if arrays.gpu_value[other.row] > arrays.gpu_value[best.row]:
        better, model = _model(fleet, other.row), _model(fleet, best.row)
        yield Word.KEEPS_MODEL(better=better, node=name, model=model)
    idle = fitting[_idle(fleet)[fitting]].tolist()
    if idle and best.row not in idle:
        spec = fleet.specs[idle[0]]
        only = shorten(spec.name if spec else "", NAME)
        yield Word.KEEPS_NODE(node=only) if len(idle) == 1 else Word.KEEPS_NODES(count=len(idle))
    if other.row in idle and best.row not in idle:
        return
    if mig := [resource for resource, _ in best.request.devices if resource.startswith(MIG_PREFIX)]:
        counts = {r: (_devices(fleet, best.row, r), _devices(fleet, other.row, r)) for r in mig}
        yield from (
            Word.LEAVES_MIG(count=there, profile=shorten(resource.removeprefix(MIG_PREFIX), KEY), node=name)
            for resource, (here, there) in counts.items()
            if there > here
        )
    elif (there := _free(fleet, other.row)) > free + _NOTHING:
        yield Word.LEAVES_TOGETHER(count=f"{there:.3g}", s="s" * (there != 1), node=name)


def _costs(fleet: Fleet, row: int, best: int) -> Iterator[Said]:
    whole, free = _idle(fleet), _free(fleet, row)
    if whole[row] and not whole[best]:
        yield Word.BREAKS_IDLE()
    elif free > _free(fleet, best) + _NOTHING and free > 1:
        yield Word.SPLITS(count=f"{free:.3g}")
    if fleet.arrays.gpu_value[row] > fleet.arrays.gpu_value[best]:
        yield Word.TAKES_MODEL(model=_model(fleet, row))


def _free(fleet: Fleet, row: int) -> float:
    left = np.maximum(fleet.arrays.compute[:, row], 0)
    return float(left[fleet.arrays.offered[:, row] > 0].sum()) / WHOLE


def _is_full(fleet: Fleet, row: int) -> bool:
    """Whether the node has no GPU, or no device that it counts, left."""
    arrays = fleet.arrays
    counts = arrays.total_devices[:, row].any() and not arrays.divisible[:, row].any()
    return bool(counts and (arrays.free_devices[:, row] <= 0).all()) or _free(fleet, row) < _NOTHING


def _idle(fleet: Fleet) -> npt.NDArray[np.bool_]:
    arrays = fleet.arrays
    return np.asarray((arrays.compute >= arrays.compute_capacity).all(axis=0))


def _devices(fleet: Fleet, row: int, name: str) -> int:
    number = fleet.names.resources.get(name)
    return 0 if number is None else int(fleet.arrays.free_devices[number, row])


def _model(fleet: Fleet, row: int) -> str:
    spec = fleet.specs[row]
    return shorten((spec and (spec.model or spec.product)) or "GPU", NAME)
