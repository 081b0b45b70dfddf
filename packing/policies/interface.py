"""The interface of a policy, which compares the nodes where a request fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import Request

Pause = Callable[[], None]
"""Called now and then by a long computation, so that a thread can give way to others."""


def no_pause() -> None:
    """For a computation that nobody waits beside."""


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

    def plan(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object]:
        """A function that computes new tables from what was learnt. It uses no shared state, so it may run
        in a thread, and calls ``pause`` at each arrival that it simulates."""

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """Replace the tables by those that a plan computed, and price them against the fleet."""

    def refresh(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object] | None:
        """Update the prices to the fleet as it is now. ``Upkeep`` says when. If more than prices depends on
        what changed, the result is a function as of ``plan``, whose tables are then adopted."""
