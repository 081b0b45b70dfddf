"""What a policy does about demand when it has no use for it: nothing."""

from __future__ import annotations

from collections.abc import Callable

from packing.cost.demand import Demand, Mix
from packing.fleet.fleet import Fleet
from packing.model.request import Request


class Memoryless:
    """Base of the policies whose cost depends on the nodes and the request alone."""

    def __init__(
        self, mix: Mix | None = None, demand: Demand | None = None, *, minimum_milli: int = 0
    ) -> None:
        """Neither a mix nor a smallest slice is of use here."""

    def observe(self, request: Request) -> None:
        """See ``Policy.observe``: ignored."""

    def plan(self, fleet: Fleet) -> Callable[[], object]:
        """See ``Policy.plan``: no tables."""
        return lambda: None

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """See ``Policy.adopt``: no tables."""

    def refresh(self, fleet: Fleet) -> None:
        """See ``Policy.refresh``: no prices."""
