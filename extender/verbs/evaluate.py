"""One pod against the named nodes: the reason code and the rank of each, for every verb and for explain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import numpy.typing as npt

from extender.cluster.state import PossiblyBound, Rows, State
from extender.dra.extended_resources import by_class
from extender.dra.forecast import REGRET, Forecast
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.verbs.assignment import where_assigned
from extender.verbs.scores import Keys, rank_keys
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``rows``, ``codes``, ``cost`` and ``keys`` are parallel to the names that were asked about.

    ``cost`` and ``keys`` mean something only where ``codes`` is 0. Row -1 is a node that is not known.
    ``forecasts`` are of the devices for the pod's claims; there are none where it needs no claims.
    ``possibly_bound`` are the pods that may have been bound unseen: their room counts as taken.
    """

    pod: Pod
    request: Request
    rows: Rows
    codes: npt.NDArray[np.int8]
    cost: Floats
    keys: Keys
    forecasts: tuple[Forecast, ...] = ()
    possibly_bound: PossiblyBound = ()

    @property
    def tells_apart(self) -> bool:
        """Whether anything is known by which one node is better than another."""
        return self.request.wants_gpu or any(forecast.devices for forecast in self.forecasts)


def evaluate(
    state: State, pod: Pod, request: Request, names: NodeNames, possibly_bound: PossiblyBound = ()
) -> Evaluation:
    """Judge every named node with the policy in force. What fits does not depend on what it would cost: where
    costs or forecasts fail, nodes that fit are equal."""
    rows = state.rows(names)
    codes, cost = _counted(state, pod, request, (), rows, possibly_bound)
    given = _all_as_devices(state, pod, request, names)
    for resources in {one for one in given if one}:
        # What such a node has of these resources is in its ResourceSlices, and not counted.
        there = np.array([one == resources for one in given])
        codes[there], cost[there] = _counted(state, pod, request, resources, rows[there], possibly_bound)
    forecasts = _foresee(state, pod, names, given)
    cost, keys = _ranked(state, cost, forecasts, rows)
    return Evaluation(pod, request, rows, codes, cost, keys, forecasts, possibly_bound)


def codes_for(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows) -> npt.NDArray[np.int8]:
    """Reason codes for these rows, (len(rows),), as far as resources are counted, on the fleet as it stands
    for the pod."""
    codes = np.append(reasons_for(fleet, request), np.int8(Reason.UNKNOWN_NODE))[rows]  # row -1 is the last
    return where_assigned(state, fleet, pod, request, rows, codes)


def _counted(
    state: State,
    pod: Pod,
    request: Request,
    given: tuple[str, ...],
    rows: Rows,
    possibly_bound: PossiblyBound,
) -> tuple[npt.NDArray[np.int8], Floats]:
    """Reason codes and costs for these rows, as far as resources are counted: (len(rows),) each."""
    if only_devices(pod, request, given):
        codes = np.where(rows < 0, Reason.UNKNOWN_NODE, Reason.FITS).astype(np.int8)
        return codes, np.zeros(rows.size, np.float32)
    request = without(request, given)
    with state.fleet_view_for(pod, possibly_bound) as fleet:
        return codes_for(state, fleet, pod, request, rows), state.policy.cost(fleet, request)[rows]


def as_devices(state: State, pod: Pod, request: Request, node: str) -> tuple[str, ...]:
    """Which of the resources asked for a node gives out as devices of DRA (KEP-5004): those that it does not
    advertise, and that a device class stands for."""
    mapped = [name for name, _ in request.devices if name in state.devices.resources]
    return _as_devices(state, by_class(pod.spec), mapped, node)


def _as_devices(state: State, always: tuple[str, ...], mapped: list[str], node: str) -> tuple[str, ...]:
    row = state.fleet.rows.get(node)
    if not mapped or row is None or not state.devices.on_node(node, state.labels_of(node)).has_pools:
        return always
    numbers = {name: state.fleet.names.resources.get(name) for name in mapped}
    given = (name for name, n in numbers.items() if n is None or not state.fleet.arrays.total_devices[n, row])
    return (*given, *always)


def only_devices(pod: Pod, request: Request, given: tuple[str, ...]) -> bool:
    """Whether a pod wants nothing but devices of DRA where these resources are ``given`` as such: whether
    there are any is for kube-scheduler to say."""
    return bool(given or pod.spec.claims) and not without(request, given).wants_gpu


def without(request: Request, resources: tuple[str, ...]) -> Request:
    """The request without these counted devices; itself, of which much is remembered, without none."""
    if not resources:
        return request
    return replace(request, devices=tuple(one for one in request.devices if one[0] not in resources))


def _all_as_devices(state: State, pod: Pod, request: Request, names: NodeNames) -> list[tuple[str, ...]]:
    """``as_devices`` for every name; nothing at all where no class stands for anything asked for."""
    always = by_class(pod.spec)
    mapped = [name for name, _ in request.devices if name in state.devices.resources]
    if not (always or mapped):
        return []
    return [_as_devices(state, always, mapped, name) for name in names]


def _foresee(state: State, pod: Pod, names: NodeNames, given: list[tuple[str, ...]]) -> tuple[Forecast, ...]:
    """Which devices the pod's claims would get on each named node; nothing for a pod that needs no claims."""
    if not pod.spec.claims and not any(given):
        return ()
    try:
        state.devices.refresh(state.labels_of)
        nodes = ((name, state.labels_of(name)) for name in names)
        return tuple(state.simulator.forecasts(pod, nodes, given or repeat(())))
    except Exception:
        state.failures.note("forecast")
        return (Forecast(why="the forecast failed, see the log of Stowage"),) * len(names)


def _ranked(state: State, cost: Floats, forecasts: tuple[Forecast, ...], rows: Rows) -> tuple[Floats, Keys]:
    """The costs with those of the forecasts, and the keys to sort by; where that fails, all are equal."""
    order = state.fleet.arrays.order[rows]
    try:
        cost = cost + _price(forecasts) if forecasts else cost
        return cost, rank_keys(cost, order)
    except Exception:
        state.failures.note("rank")
        return np.zeros(rows.size, np.float32), order.astype(np.int64)


def _price(forecasts: tuple[Forecast, ...]) -> Floats:
    """The price of each forecast (N,); where there is none, the mean of the others: neither good nor bad."""
    known = np.array([bool(forecast.devices) for forecast in forecasts])
    cost = np.array([forecast.cost for forecast in forecasts], np.float32)
    cost += REGRET * np.array([forecast.rank for forecast in forecasts], np.float32)
    if known.any():
        cost[~known] = cost[known].mean()
    return cost
