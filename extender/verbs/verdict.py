"""One pod against the named nodes: the reason code and the rank of each, for every verb and for explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    """

    pod: Pod
    request: Request
    rows: Rows
    codes: npt.NDArray[np.int8]
    cost: Floats
    keys: Keys


def judge(state: State, pod: Pod, request: Request, names: list[str]) -> Verdict:
    """Judge every named node with the policy in force."""
    rows = state.rows(names, len(names))
    with state.as_for(pod) as fleet:
        codes = np.append(fleet.reasons(request), np.int8(Reason.UNKNOWN_NODE))[rows]  # row -1 is the last
        cost = state.policy.cost(fleet, request)[rows]
    return Verdict(pod, request, rows, codes, cost, rank_keys(cost, state.fleet.order[rows]))
