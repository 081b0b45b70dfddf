"""Why a node takes no pods at present, in one sentence."""

from __future__ import annotations

from extender.cluster.state import State
from packing.fleet.stranded import closed_reason
from packing.model.reasons import Reason


def closed_text(state: State, name: str, row: int) -> str:
    """What the fleet says of the node, or else the cluster (cordoned, not ready); "" if it takes pods."""
    reason = closed_reason(state.fleet.arrays, row)
    return reason.text if reason is not Reason.FITS else state.nodes.closed.get(name, "")


def closed_rows(state: State) -> list[int]:
    """The rows of nodes that the cluster has closed."""
    return [state.fleet.rows[name] for name in state.nodes.closed if name in state.fleet.rows]
