"""The interface of a policy, which compares the nodes where a request fits."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request

Solve = Callable[[], Callable[[], None]]
"""The long part of an update, which uses no shared state, so that it may run in a thread. It returns the last
part, which applies what was computed."""


class Due(Enum):
    """What a policy needs now: new prices for the fleet as it is, or new tables for what was learned."""

    PRICES = auto()
    TABLES = auto()


class Policy(Protocol):
    """What placing a request costs on each node, and which GPUs it takes there."""

    name: str

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Cost per row, (N,) float32, lower is better, infinite where the request does not fit.

        The array may belong to the policy, which overwrites it at the next call.
        """

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """Indices of the GPUs that the request's shares take on a node where it fits; () without shares."""

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """The parts of the cost on one node, for reports; they add up to the cost except for rounding."""

    def observe(self, request: Request) -> None:
        """Learn from the arrival of a pod; called once per pod."""

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        """Do what ``Upkeep`` says is due: short work at once, the rest in the result, None if nothing is
        left."""


def update_now(policy: Policy, fleet: Fleet, due: Due = Due.TABLES) -> None:
    """All of an update, for callers that have nothing else to do meanwhile."""
    if (solve := policy.update(fleet, due)) is not None:
        solve()()
