"""The audit of a cluster: what each GPU is used for, what is wasted and why, and what it costs, as sums by
step and by team, model or pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from extender.cluster.state import State
from extender.explain.gpu_use import HELD, NO_WASTE, TITLES, GpuUse, Part, Step, gpus_by_step
from extender.plan.bill import Bill
from extender.plan.mends import Mend
from extender.plan.prices import NodeCosts
from extender.untrusted.limits import KEY, shorten

POOLS = (
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name", "kubernetes.azure.com/agentpool", "oke.oraclecloud.com/pool.name",
    "kops.k8s.io/instancegroup", "node.kubernetes.io/instance-type",
)  # fmt: skip
"""Labels that name the pool of a node; the first that it has counts."""
_WORST = 3


@dataclass(frozen=True, slots=True)
class Worst:
    """A node or pod (``namespace/name``) with most GPUs of a step, and why, in words."""

    name: str
    gpus: float
    why: str


@dataclass(frozen=True, slots=True)
class StepLine:
    """GPUs of a step; its GPU-hours and cost in a month like this moment, None without prices."""

    step: Step
    title: str
    gpus: float
    gpu_hours: float
    cost: float | None
    wasted: bool
    worst: tuple[Worst, ...] = ()
    mend: Mend | None = None


@dataclass(frozen=True, slots=True)
class GpuSums:
    """GPUs by step of a team (namespace, "" for none), a model, a pool, or a node of a ``pool``; ``cost`` of
    its waste, as in ``StepLine``."""

    name: str
    gpus: float
    wasted: float
    cost: float | None
    steps: dict[Step, float]
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Earlier:
    """GPUs by step at an earlier moment (Unix seconds)."""

    at: float
    steps: Mapping[Step, float]

    @property
    def wasted(self) -> float:
        return sum(gpus for step, gpus in self.steps.items() if step not in NO_WASTE)


@dataclass(frozen=True, slots=True)
class Audit:
    """``steps`` add up to the ``installed`` GPUs. ``at``: Unix seconds. ``by``: what ``groups`` are.
    ``wasted``, ``gpu_hours`` and ``cost`` are those of all waste."""

    name: str
    at: float
    installed: int
    wasted: float
    gpu_hours: float
    cost: float | None
    currency: str
    steps: tuple[StepLine, ...]
    by: str
    groups: tuple[GpuSums, ...]
    nodes: tuple[GpuSums, ...]
    notes: tuple[str, ...]
    before: Earlier | None = None
    bill: Bill | None = None

    @property
    def wastes(self) -> list[StepLine]:
        """The steps that are waste, the largest first."""
        return sorted((line for line in self.steps if line.wasted and line.gpus), key=lambda line: -line.gpus)


def audit(
    state: State,
    name: str,
    at: float,
    use: GpuUse,
    mends: Mapping[Step, Mend],
    by: str,
    costs: NodeCosts,
    before: Earlier | None = None,
    bill: Bill | None = None,
) -> Audit:
    """The sums of a ``use``, with the ``mends`` of its steps."""
    nodes, groups = defaultdict[str, list[Part]](list), defaultdict[str, list[Part]](list)
    group_of: Callable[[Part], str] = {
        "team": lambda part: part.pod.partition("/")[0],
        "model": lambda part: _model(state, part.node),
        "pool": lambda part: _pool(state, part.node),
    }[by]
    for part in use.parts:
        nodes[part.node].append(part)
        groups[group_of(part)].append(part)
    price = {node: costs.of([node]) / (_gpus(parts) or 1.0) for node, parts in nodes.items()}

    def line(step: Step, parts: list[Part]) -> StepLine:
        gpus, wasted = _gpus(parts), step not in NO_WASTE
        hours = round(gpus * costs.hours_per_month, 1)
        return StepLine(step, TITLES[step], gpus, hours, cost(parts), wasted, _worst(parts), mends.get(step))

    def cost(parts: Iterable[Part]) -> float | None:
        total = sum(part.gpus * price[part.node] for part in parts)
        return round(total, 2) if costs.per_month else None

    def group(key: str, parts: list[Part], pool: str = "") -> GpuSums:
        by_step, waste = gpus_by_step(parts), _waste(parts)
        steps = {step: rounded for step, gpus in by_step.items() if (rounded := round(gpus, 2))}
        return GpuSums(shorten(key, KEY), _gpus(parts), _gpus(waste), cost(waste), steps, pool)

    waste = _waste(use.parts)
    return Audit(
        name,
        at,
        use.installed,
        wasted := _gpus(waste),
        round(wasted * costs.hours_per_month, 1),
        cost(waste),
        costs.currency,
        tuple(line(step, [part for part in use.parts if part.step is step]) for step in Step),
        by,
        tuple(sorted((group(*found) for found in groups.items()), key=lambda found: -found.wasted)),
        tuple(group(node, parts, _pool(state, node)) for node, parts in sorted(nodes.items())),
        (*use.notes, *filter(None, [costs.note()])),
        before,
        bill,
    )


def _pool(state: State, node: str) -> str:
    labels = state.nodes.labels_of(node)
    return shorten(next((labels[key] for key in POOLS if key in labels), _model(state, node)), KEY)


def _model(state: State, node: str) -> str:
    spec = state.fleet.spec_of(node)
    return (spec.model or spec.product if spec else "") or "unknown"


def _worst(parts: Iterable[Part]) -> tuple[Worst, ...]:
    """The nodes, or of GPUs that pods hold the pods, with most GPUs."""
    sums, why = defaultdict[str, float](float), dict[str, str]()
    for part in parts:
        name = part.pod if part.pod and part.step in HELD else part.node
        sums[name] += part.gpus
        by_pod = f"{part.pod}, " if part.step is Step.RESERVED else f"needed by {part.pod}, but "
        why.setdefault(name, by_pod * (part.pod not in ("", name)) + part.why)
    first = sorted(sums, key=lambda name: (-sums[name], name))[:_WORST]
    return tuple(Worst(shorten(name, KEY), round(sums[name], 2), shorten(why[name])) for name in first)


def _waste(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if part.step not in NO_WASTE]


def _gpus(parts: Iterable[Part]) -> float:
    return round(sum(part.gpus for part in parts), 2)
