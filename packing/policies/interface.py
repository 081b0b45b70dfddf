"""The interface of a policy, which compares the nodes where a request fits."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request

Solve = Callable[[], Callable[[], None]]
"""The long part of an update, which uses no shared state, so that it can run in a thread. It returns the
final part, which applies the result."""


class Due(Enum):
    """The update that a policy needs now: new prices for the present fleet, or new tables for the learned
    mix."""

    PRICES = auto()
    TABLES = auto()


class Policy(Protocol):
    """The cost of placing a request on each node, and the GPUs that it takes there."""

    name: str

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row, (N,) float32, lower is better, infinite where the request does not fit.

        The array may belong to the policy, which overwrites it in the next call.
        """

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """Indices of the GPUs for the request's shares on a node where it fits; () without shares."""

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """The parts of the cost on one node, for reports; they add up to the cost except for rounding."""

    def observe(self, request: Request) -> None:
        """Learn from the arrival of a pod; called once per pod."""

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        """Perform the update that is due by ``Upkeep``: short work at once, the rest in the result, None if
        nothing remains."""


def update_now(policy: Policy, fleet: Fleet, due: Due = Due.TABLES) -> None:
    """Perform all of an update, for callers without other work to do."""
    if (solve := policy.update(fleet, due)) is not None:
        solve()()
