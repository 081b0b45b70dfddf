"""One pod against the named nodes: the reason code and the rank of each, for every verb and for explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.dra.forecast import Forecast
from extender.objects import Pod
from extender.state import Rows, State
from packing.fleet import Floats
from packing.ranking import Keys, rank_keys
from packing.reasons import Reason
from packing.request import Request


@dataclass(frozen=True, slots=True)
class Verdict:
    """``rows``, ``codes``, ``cost`` and ``keys`` are parallel to the names that were asked about.

    ``cost`` and ``keys`` mean something only where ``codes`` is 0. Row -1 is a node that is not known.
    ``forecasts`` are of the devices for the pod's claims; there are none where it has no claims.
    """

    pod: Pod
    request: Request
    rows: Rows
    codes: npt.NDArray[np.int8]
    cost: Floats
    keys: Keys
    forecasts: tuple[Forecast, ...] = ()

    @property
    def tells_apart(self) -> bool:
        """Whether anything is known by which one node is better than another."""
        return self.request.wants_gpu or any(forecast.devices for forecast in self.forecasts)


def judge(state: State, pod: Pod, request: Request, names: list[str]) -> Verdict:
    """Judge every named node with the policy in force."""
    rows = state.rows(names, len(names))
    if request.wants_gpu or not pod.spec.claims:
        with state.as_for(pod) as fleet:
            codes = np.append(fleet.reasons(request), np.int8(Reason.UNKNOWN_NODE))[
                rows
            ]  # row -1 is the last
            cost = state.policy.cost(fleet, request)[rows]
    else:  # whether there are devices for its claims is for kube-scheduler to say
        codes = np.where(rows < 0, Reason.UNKNOWN_NODE, Reason.FITS).astype(np.int8)
        cost = np.zeros(rows.size, np.float32)
    forecasts = foresee(state, pod, names)
    if forecasts:
        cost = cost + _price(forecasts)
    return Verdict(pod, request, rows, codes, cost, rank_keys(cost, state.fleet.order[rows]), forecasts)


def foresee(state: State, pod: Pod, names: list[str]) -> tuple[Forecast, ...]:
    """Which devices the pod's claims would get on each named node; nothing for a pod without claims."""
    if not pod.spec.claims:
        return ()
    state.devices.refresh(state.labels_of)
    return tuple(state.forecaster.forecast(pod, name, state.labels_of(name)) for name in names)


def _price(forecasts: tuple[Forecast, ...]) -> Floats:
    """The cost of each forecast (N,); where there is none, the mean of the others: neither good nor bad."""
    known = np.array([bool(forecast.devices) for forecast in forecasts])
    cost = np.array([forecast.cost for forecast in forecasts], np.float32)
    if known.any():
        cost[~known] = cost[known].mean()
    return cost
