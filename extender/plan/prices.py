"""The cost of nodes, from a file with prices per hour by instance type or GPU model.

    currency: USD
    hours_per_month: 730
    instance_types: {p5.48xlarge: 98.32}
    gpus: {H100: 3.9, T4: 0.35}
    spot: 0.4

The instance type of a node (label ``node.kubernetes.io/instance-type``) takes precedence. Otherwise the node
costs the price of its GPU model times its GPUs (``number_for``, as for the setting ``gpu_values``). A spot
node costs the fraction ``spot`` of that; without ``spot`` its price is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extender.cluster.state import State
from extender.inventory.gpu_labels import INSTANCE_TYPE
from extender.k8s.objects import Node
from extender.source.errors import BadInput
from extender.untrusted.files import FileError, FileReader
from extender.untrusted.limits import SETTINGS_FILE, YAML_NODES, quoted, validation_problem
from extender.untrusted.visible import many
from extender.untrusted.yaml_reader import TextError, yaml_documents
from packing.model.gpu_catalog import number_for
from packing.model.node_spec import NodeSpec

HOURS = 730.0
"""Hours per month: 8,760 hours per year divided by 12."""
_Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class PriceFile(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid")
    currency: str = Field(default="", max_length=16)
    hours_per_month: float = Field(default=HOURS, gt=0, le=744)
    instance_types: dict[str, _Price] = {}
    gpus: dict[str, _Price] = {}
    spot: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)


def read_prices(path: Path) -> PriceFile:
    """Read a price file. Raises ``BadInput`` with the file and the problem."""
    try:
        documents = yaml_documents(FileReader(SETTINGS_FILE).read_text(path), nodes=YAML_NODES)
    except FileError as error:
        raise BadInput(str(error)) from None
    except TextError as error:
        raise BadInput(f"{path}: is not YAML: {error}") from None
    try:
        prices = PriceFile.model_validate(documents[0] if len(documents) == 1 else None)
    except ValidationError as error:
        raise BadInput(f"{path}: {validation_problem(error)}") from None
    if not (prices.instance_types or prices.gpus):
        raise BadInput(f"{path}: has neither instance_types nor gpus")
    return prices


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Monthly cost by node with GPUs, and the nodes without a known price."""

    per_month: Mapping[str, float]
    unknown: tuple[str, ...]
    currency: str = ""
    lacks_spot: bool = False
    hours_per_month: float = HOURS

    @property
    def total(self) -> float:
        return sum(self.per_month.values())

    def of(self, nodes: Iterable[str]) -> float:
        return sum(self.per_month.get(name, 0.0) for name in nodes)

    def note(self) -> str:
        """A sentence about nodes without a price, "" if there are none."""
        if not self.unknown:
            return ""
        example, spot = quoted(self.unknown[0]), " (spot nodes need the key 'spot')" * self.lacks_spot
        nodes = many(len(self.unknown), "node")
        return f"The cost excludes {nodes} without a known price, such as {example}{spot}."


NO_COSTS = NodeCosts({}, ())


def costs_of(prices: PriceFile, specs: Iterable[NodeSpec], nodes: Mapping[str, Node]) -> NodeCosts:
    """The costs of the nodes with GPUs. ``nodes``: by name, for their labels."""
    known: dict[str, float] = {}
    unknown, lacks_spot = [], False
    for spec in specs:
        if not spec.gpus:
            continue
        node = nodes.get(spec.name)
        price = prices.instance_types.get(node.labels.get(INSTANCE_TYPE, "")) if node else None
        if price is None and (each := number_for(prices.gpus, spec.model, spec.product)) is not None:
            price = each * len(spec.gpus)
        if price is not None and spec.spot:
            lacks_spot |= prices.spot is None
            price = None if prices.spot is None else price * prices.spot
        if price is None:
            unknown.append(spec.name)
        else:
            known[spec.name] = price * prices.hours_per_month
    hours = prices.hours_per_month
    return NodeCosts(known, tuple(sorted(unknown)), prices.currency, lacks_spot, hours)


def costs_in(state: State, prices: PriceFile | None) -> NodeCosts:
    """The costs of the nodes in this state; none without prices."""
    return costs_of(prices, filter(None, state.fleet.specs), state.nodes) if prices else NO_COSTS
