"""Pods that request a whole GPU and would fit a fraction of one, or a smaller one, that is free today: a MIG
instance, a time slice, a share, or a whole GPU of less value.

Use is converted between GPU models by the FP16 rates of the catalog. Where a rate is unknown, only GPUs of
the same product count.

The use is measured, or declared by the pod: annotations ``stowage.dev/peak-gpu-memory`` (a quantity in bytes)
and ``stowage.dev/peak-gpu-compute`` (percent of a GPU). Nothing is inferred from the request: pods whose
memory or activity is unknown are only counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from extender.dialects import hami, stowage
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.explain.fixes import requesting
from extender.inventory.gpu_labels import PRODUCT
from extender.k8s.objects import Deleted, Event, Pod, Upserted
from extender.k8s.quantity import QuantityError, mib, milli
from extender.plan.mig import short
from extender.plan.report import UNKNOWN, Gain, Progress, Report, Table
from extender.plan.source import ClusterSource
from extender.replay.steps import Outcome, Step, carry_out, largest_that_holds
from extender.source.prometheus import Use
from extender.trial.trial import Item, Trial
from extender.untrusted.visible import many
from packing.fleet.arrays import ALMOST_WHOLE, Flags
from packing.model.gpu_catalog import named_model
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE

GPU = "nvidia.com/gpu"
_BUSY = (
    "Activity is the fraction of time that a GPU was busy, not the fraction of the GPU that was used: a pod "
    "that is busy a third of the time may take longer on a third of a GPU."
)
PEAK_MEMORY, PEAK_COMPUTE = "stowage.dev/peak-gpu-memory", "stowage.dev/peak-gpu-compute"


@dataclass(frozen=True, slots=True)
class Slice:
    """A kind of device of nodes: its resource, compute (milli) and memory (MiB), the product of its GPU with
    the FP16 rate (0: unknown), and the value of one device. ``is_shared``: a GPU of which pods may request
    any fraction."""

    resource: str
    compute_milli: int
    memory_mib: int
    product: str
    tflops: int
    value: float
    is_shared: bool = False

    @property
    def text(self) -> str:
        """The kind as text: "1g.10gb", "1/4 of A10G", "share of L40S", "L4"."""
        if self.resource.startswith(MIG_PREFIX):
            return short(self.resource)
        part = "share of " if self.is_shared else f"1/{round(WHOLE / self.compute_milli)} of "
        return ("" if self.is_whole and not self.is_shared else part) + self.product

    @property
    def is_whole(self) -> bool:
        return self.compute_milli > ALMOST_WHOLE * WHOLE


@dataclass(frozen=True, slots=True)
class SliceMove:
    """A pod with one whole GPU: its use and the source of that, the least valuable slice that is large enough
    (None: none is), and a node where one is free ("": none). ``asking``: the pod with a request for the
    slice; ``frees``: number of GPUs that become entirely free."""

    item: Item
    node: str
    use: Use
    source: str
    slice: Slice | None = None
    target: str = ""
    asking: Pod | None = None
    frees: int = 0


@dataclass(slots=True)
class SlicePlan:
    """``unknown``: pods with one whole GPU whose use is unknown. ``problems``: unreadable annotations, by
    pod."""

    candidates: list[SliceMove]
    unknown: list[str]
    problems: dict[str, str]

    @property
    def moves(self) -> list[SliceMove]:
        return [candidate for candidate in self.candidates if candidate.target]


def plan_slices(trial: Trial, measured: Mapping[str, Use], margin: float) -> SlicePlan:
    """The pods that would fit a slice with ``margin`` times their use, largest first. In the trial, pods for
    which a slice is free are moved to it."""
    plan = SlicePlan([], [], {})
    for item in trial.movable.values():
        if not _has_whole_gpu(trial, item):
            continue
        use, source = use_of(item.pod, measured, plan.problems)
        if use.memory_mib is None or use.active is None:
            plan.unknown.append(item.key)
        else:
            plan.candidates.append(SliceMove(item, trial.name(item.home), use, source))
    plan.candidates.sort(key=lambda candidate: (-(candidate.use.memory_mib or 0), candidate.item.key))
    slices = defaultdict[Slice, Flags](lambda: np.zeros(trial.open.size, np.bool_))
    for row in trial.gpu_rows:
        if spec := trial.fleet.specs[row]:
            for size in _devices_of(spec, float(trial.fleet.arrays.gpu_value[row])):
                slices[size][row] = True
    plan.candidates = [_placed(trial, candidate, slices, margin) for candidate in plan.candidates]
    return plan


def _devices_of(spec: NodeSpec, value: float) -> Iterator[Slice]:
    product, tflops = _model_of(spec)
    for pool in spec.pools:
        if pool.resource == GPU or (pool.profile and pool.resource.startswith(MIG_PREFIX)):
            worth = value * pool.compute_milli / WHOLE
            yield Slice(pool.resource, pool.compute_milli, pool.memory_mib, product, tflops, worth)
    if spec.sharing_resource in _ASKING_FOR_A_SHARE:
        memory = max((gpu.memory_mib for gpu in spec.gpus if gpu.divisible), default=0)
        yield Slice(spec.sharing_resource, WHOLE, memory, product, tflops, value, is_shared=True)


def _model_of(spec: NodeSpec) -> tuple[str, int]:
    """The name of a node's GPUs, and their FP16 rate, 0 if they are not in the catalog."""
    model = named_model(spec.model)
    return (model.name, model.fp16_tflops) if model else (spec.product, 0)


def _has_whole_gpu(trial: Trial, item: Item) -> bool:
    """Whether the pod runs, and requests exactly one counted device, a whole GPU on its node."""
    number = trial.fleet.names.resources.get(GPU)
    if item.home < 0 or item.request.devices != ((GPU, 1),) or number is None:
        return False
    return float(trial.fleet.arrays.device_gpu[number, item.home]) > ALMOST_WHOLE


def use_of(pod: Pod, measured: Mapping[str, Use], problems: dict[str, str]) -> tuple[Use, str]:
    """The use of the pod, and its source: measured, or else declared. ``problems`` gets unreadable
    annotations, by pod."""
    known = measured.get(pod.key, Use())
    if known.memory_mib is not None and known.active is not None:
        return known, "measured"
    try:
        declared = _declared(pod)
    except QuantityError as error:
        problems[pod.key] = str(error)
        return known, "measured"
    if declared.memory_mib is not None and declared.active is not None:
        return declared, "declared"
    return known, "measured"


def _declared(pod: Pod) -> Use:
    """The use in the pod's annotations. Raises ``QuantityError``."""
    memory, compute = pod.annotations.get(PEAK_MEMORY), pod.annotations.get(PEAK_COMPUTE)
    part = None
    if compute is not None:
        part = milli(compute.removesuffix("%")) / (WHOLE * (100 if compute.endswith("%") else 1))
        if part > 1:
            raise QuantityError(f"{PEAK_COMPUTE}: more than one GPU")
    return Use(None if memory is None else float(mib(memory)), part)


def _placed(trial: Trial, candidate: SliceMove, slices: Mapping[Slice, Flags], margin: float) -> SliceMove:
    """The candidate, moved to the least valuable slice that is free now, if any."""
    now, item = trial.savepoint(), candidate.item
    home, own = trial.fleet.specs[item.home], float(trial.fleet.arrays.gpu_value[item.home])
    assert home is not None
    enough = list[tuple[float, Slice, tuple[float, float]]]()
    for size in slices:
        if (part := _part_of(size, candidate.use, home, margin)) is not None:
            enough.append((size.value * (max(part) if size.is_shared else 1.0), size, part))
    enough = sorted((fit for fit in enough if fit[0] < own), key=lambda fit: (fit[0], fit[1].memory_mib))
    before = trial.figures().whole if enough else 0
    for _, size, part in enough:
        asking = _asking_for(item.pod, size, part)
        trial.leave(item)
        if trial.place(Item(item.key, trial.state.request_of(asking), item.rows & slices[size], asking)):
            frees = trial.figures().whole - before
            return replace(candidate, slice=size, target=trial.node_of(item.key), asking=asking, frees=frees)
        trial.undo_to(now)
    return replace(candidate, slice=enough[0][1]) if enough else candidate


def _part_of(size: Slice, use: Use, home: NodeSpec, margin: float) -> tuple[float, float] | None:
    """The fractions of compute and memory of such a GPU that the pod needs. None if a device has less, or if
    the models cannot be compared."""
    assert use.memory_mib is not None
    assert use.active is not None
    product, tflops = _model_of(home)
    if product != size.product and not (tflops and size.tflops):
        return None
    faster = tflops / size.tflops if product != size.product else 1.0
    compute, memory = min(margin * use.active, 1.0) * faster, margin * use.memory_mib
    if compute * WHOLE > size.compute_milli or memory > size.memory_mib:
        return None
    return compute, memory / size.memory_mib


_ASKING_FOR_A_SHARE: Mapping[str, Callable[[int, int], tuple[dict[str, str], dict[str, str]]]] = {
    stowage.RESOURCE: lambda part, mib: ({}, {stowage.COMPUTE: f"{part}m", stowage.MEMORY: f"{mib}Mi"}),
    hami.RESOURCE: lambda part, mib: (
        {GPU: "1", "nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": str(-(-part // 10))},
        {},
    ),
}
"""By the resource that counts shares: the resources and annotations of a request for an amount of a GPU's
compute (milli) and memory (MiB)."""


def _asking_for(pod: Pod, size: Slice, part: tuple[float, float]) -> Pod:
    """The pod with a request for this slice instead of its whole GPU; ``part``: of a shared GPU."""
    resources, annotations = {size.resource: "1"}, dict[str, str]()
    if size.is_shared:
        compute, memory = max(ceil(part[0] * WHOLE), 1), max(ceil(part[1] * size.memory_mib), 1)
        resources, annotations = _ASKING_FOR_A_SHARE[size.resource](compute, memory)
    asking = requesting(pod, resources, instead_of=GPU)
    return replace(asking, annotations={**pod.annotations, **annotations})


def slices_report(
    source: ClusterSource, trial: Trial, measured: Mapping[str, Use], margin: float, progress: Progress
) -> Report:
    """Pods with a whole GPU that would fit a slice or a smaller GPU. ``trial`` is not usable afterwards."""
    progress("slices", 0.0)
    today = trial.figures().whole

    def smaller(plan: SlicePlan, outcome: Outcome) -> SlicePlan | None:  # some slices go to another pod
        lost = outcome.unplaced
        plan.candidates = [replace(c, target="") if c.item.key in lost else c for c in plan.candidates]
        return plan if lost else None

    plan, outcome = largest_that_holds(
        plan_slices(trial, measured, margin),
        lambda proposed: _carried_out(source, proposed.moves),
        smaller,
    )
    progress("slices", 1.0)
    moves, freed = len(plan.moves), sum(move.frees for move in plan.moves)
    return Report(
        f"Pods with a whole GPU that would fit a slice or a smaller GPU: {source.name}",
        _sentences(plan, margin),
        [_table(plan, outcome)],
        [
            Gain("GPUs entirely free", today, today + freed, outcome.figures.whole),
            Gain("pods on a slice or a smaller GPU", 0, moves, len(outcome.placed)),
        ],
        outcome.problems,
        [_BUSY, UNKNOWN],
    )


def _carried_out(source: ClusterSource, moves: list[SliceMove]) -> Outcome:
    """Replay with these pods pending and requesting their slice. For devices with the resource name of whole
    GPUs a pod needs a node selector, so its node is fixed."""
    events: list[Event] = []
    steps: list[Step] = []
    for move in moves:
        assert move.slice is not None
        assert move.asking is not None
        events += [Deleted("Pod", move.item.key), Upserted(move.asking)]
        steps.append(Step("place", move.item.key, "" if move.slice.resource != GPU else move.target))
    return carry_out(source.trial(events), steps)


def _sentences(plan: SlicePlan, margin: float) -> list[str]:
    fit = sum(candidate.slice is not None for candidate in plan.candidates)
    said = [
        f"{fit} pods would fit a slice or a smaller GPU with {margin:g} times their use; one is "
        f"free today for {len(plan.moves)} of them."
    ]
    if large := len(plan.candidates) - fit:
        said.append(f"{large} pods use more than any slice or smaller GPU provides.")
    if any(move.slice and move.slice.resource == GPU for move in plan.moves):
        said.append(f"Time slices and smaller GPUs are also {GPU}: select their nodes, such as by {PRODUCT}.")
    if plan.unknown:
        said.append(
            f"The use of {many(len(plan.unknown), 'pod')} with one whole GPU is unknown: no --prometheus, no "
            f"samples, and no annotations {PEAK_MEMORY} and {PEAK_COMPUTE}."
        )
    return [*said, *(f"{pod}: {problem}" for pod, problem in list(plan.problems.items())[:5])]


def _table(plan: SlicePlan, outcome: Outcome) -> Table:
    rows = [
        (
            candidate.item.key,
            candidate.node,
            round((candidate.use.memory_mib or 0) / 1024, 1),
            round(100 * (candidate.use.active or 0)),
            candidate.source,
            candidate.slice.text if candidate.slice else "none is large enough",
            candidate.target or "-",
            outcome.placed.get(candidate.item.key, "-"),
        )
        for candidate in plan.candidates
    ]
    head = ("pod", "node", "memory GiB", "active %", "known", "slice", "free on", "replayed")
    return Table("slices", "Pods with one whole GPU", head, rows)
