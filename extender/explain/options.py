"""A node that fits a pod: what it would give, at what cost, and why."""

from __future__ import annotations

from extender.cluster.state import State
from extender.dra.forecast import Forecast
from extender.explain.answers import Option
from extender.explain.needs import replicas_given
from extender.untrusted.limits import LISTED_NAMES, shorten
from extender.verbs.evaluate import Evaluation, form_on, misalignment_costs, separation_costs, spot_costs

_TERMS = {
    "slots": "uses room that other pods are expected to need",
    "fill": "leaves a fraction of a GPU that is hard to use",
    "stranding": "leaves free GPUs without enough CPU for them",
    "unusable GPU": "leaves fractions of GPUs that no expected pod can use",
    "domains": "breaks into a network domain that is mostly idle",
    "end": "would be busy for longer because of the pod",
    "islands": "splits an NVLink island that other pods are expected to need, or gives the pod no peers",
    "device": "gives it more of a GPU, or a more valuable one, than other nodes would",
    "gang": "is far from other members of the pod's gang, or has too little room near it for them",
    "claims": "splits devices that other claims may need whole",
    "spot": "is a spot node although the pod prefers others, or vice versa",
    "NUMA": "spreads the pod over more NUMA nodes than it needs",
    "less wanted": "gives the claims devices that they list as an alternative",
    "parts of one GPU": "gives a container several replicas or instances of the same GPU",
}
"""What a positive term of the cost means (``Policy.terms``, and the costs of forecasts)."""
NOT_ROOM = {
    *("islands", "domains", "end", "gang", "claims", "spot", "NUMA", "less wanted", "parts of one GPU"),
}
"""Terms for something else than room, of which ``extender/explain/kept.py`` knows more."""
_NO_COST = "uses no room that other pods are expected to need"
_NEGLIGIBLE = 0.005
"""GPUs: terms of at most this are not put in words."""


def option_on(state: State, evaluation: Evaluation, index: int, name: str, score: int | None) -> Option:
    """The node at ``index`` of the evaluation, which fits."""
    row, request = int(evaluation.rows[index]), evaluation.request
    forecast = evaluation.forecasts[index] if evaluation.forecasts else Forecast()
    request = form_on(state.fleet, row, request)
    terms = state.policy.terms(state.fleet, request, row)
    if state.fleet.spot_rows:
        at = evaluation.rows[index : index + 1]
        terms = terms | {"spot": float(spot_costs(state, evaluation.pod, request, at)[0])}
    if state.numa:
        at = evaluation.rows[index : index + 1]
        terms = terms | {"NUMA": float(misalignment_costs(state, evaluation.pod, at)[0])}
    if (later := state.end_costs(evaluation.pod)) is not None:
        terms = terms | {"end": float(later[row])}
    if (far := state.gang_costs(evaluation.pod, request)) is not None:
        terms = terms | {"gang": float(far[row])}
    if request.together > 1:
        at = evaluation.rows[index : index + 1]
        terms = terms | {"parts of one GPU": float(separation_costs(state.fleet, request, at)[0])}
    if forecast.devices:
        terms = terms | {"claims": forecast.cost}
    if forecast.first_available_penalty:
        terms = terms | {"less wanted": forecast.first_available_penalty}
    return Option(
        node=name,
        score=score,
        cost=float(evaluation.cost[index]),
        terms=terms,
        why=_largest_term(terms),
        gpus=state.policy.choose(state.fleet, request, row),
        devices=tuple(map("/".join, forecast.devices[:LISTED_NAMES])),
        devices_unknown=shorten(forecast.problem),
        nvlink=_nvlink(state, row, name) if request.gpus > 1 else "",
        gives=replicas_given(state.fleet, row, request),
    )


def _nvlink(state: State, row: int, name: str) -> str:
    spec, sources = state.fleet.specs[row], state.nodes.sources.get(name)
    if spec is None or sources is None or not sources.islands:
        return "NVLink islands not known"
    sizes = " + ".join(str(len(island)) for island in spec.islands)
    return (
        f"NVLink islands of {sizes} GPUs ({sources.islands})" if sizes else f"no NVLink ({sources.islands})"
    )


def _largest_term(terms: dict[str, float]) -> str:
    """What a placement costs most, in words; "" where these terms have none."""
    costs = {name: value for name, value in terms.items() if name in _TERMS}
    if not costs:
        return ""
    largest = max(costs, key=lambda name: costs[name])
    return _TERMS[largest] if costs[largest] > _NEGLIGIBLE else _NO_COST
