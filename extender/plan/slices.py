"""Which pods ask for a whole GPU and would fit a slice of it: a MIG instance that is free today.

By measured use, or by what the pod declares: annotations ``stowage.dev/peak-gpu-memory`` (a quantity in
bytes) and ``stowage.dev/peak-gpu-compute`` (per cent of a GPU). Nothing is guessed from the request: a pod
whose memory or activity is not known is only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from extender.dialects.pod_request import request_of
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Container, Deleted, Event, Pod, Upserted
from extender.k8s.quantity import QuantityError, mib, milli
from extender.plan.mig import short
from extender.plan.report import UNKNOWN, Gain, Progress, Report, Table
from extender.plan.source import ClusterSource
from extender.replay.steps import Outcome, Step, carry_out, largest_that_holds
from extender.replay.trial import Item, Trial
from extender.source.prometheus import Use
from packing.fleet.arrays import ALMOST_WHOLE
from packing.model.request import WHOLE

GPU = "nvidia.com/gpu"
_BUSY = (
    "Activity is the part of the time in which a GPU was busy, not the part of it that was used: a pod that "
    "is busy for a third of the time may run longer on a third of a GPU."
)
PEAK_MEMORY, PEAK_COMPUTE = "stowage.dev/peak-gpu-memory", "stowage.dev/peak-gpu-compute"


@dataclass(frozen=True, slots=True)
class Slice:
    """A kind of MIG instance that nodes have: its resource, compute (milli) and memory (MiB)."""

    resource: str
    compute_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that has one whole GPU: what it uses and how that is known, the smallest slice that is large
    enough (None: none is), and the node where one is free ("": nowhere)."""

    item: Item
    node: str
    use: Use
    source: str
    slice: Slice | None = None
    target: str = ""


@dataclass(slots=True)
class SlicePlan:
    """``unknown``: pods with one whole GPU whose use is not known. ``problems``: annotations that cannot be
    read, by pod."""

    candidates: list[Candidate]
    unknown: list[str]
    problems: dict[str, str]

    @property
    def moves(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.target]


def plan_slices(trial: Trial, measured: Mapping[str, Use], margin: float) -> SlicePlan:
    """The pods that would fit a slice with ``margin`` times what they use, largest first. The fleet has
    those that find a free one on it afterwards."""
    plan = SlicePlan([], [], {})
    slices = sorted(_slices(trial), key=lambda size: (size.memory_mib, size.compute_milli, size.resource))
    for item in trial.movable.values():
        if not _has_whole_gpu(trial, item):
            continue
        use, source = _use_of(item, measured, plan.problems)
        if use.memory_mib is None or use.active is None:
            plan.unknown.append(item.key)
        else:
            plan.candidates.append(Candidate(item, trial.name(item.home), use, source))
    plan.candidates.sort(key=lambda candidate: (-(candidate.use.memory_mib or 0), candidate.item.key))
    plan.candidates = [
        _placed(trial, candidate, [size for size in slices if _is_enough(size, candidate.use, margin)])
        for candidate in plan.candidates
    ]
    return plan


def _slices(trial: Trial) -> Iterator[Slice]:
    """The kinds of MIG instances of nodes that take pods."""
    specs = [spec for row in trial.gpu_rows if (spec := trial.fleet.specs[row])]
    pools = (pool for spec in specs for pool in spec.pools if pool.profile)
    found = {(p.resource, p.compute_milli, p.memory_mib) for p in pools if p.resource.startswith(MIG_PREFIX)}
    yield from (Slice(*figures) for figures in sorted(found))


def _has_whole_gpu(trial: Trial, item: Item) -> bool:
    """Whether the pod runs, and asks for exactly one counted GPU that is a whole one on its node."""
    number = trial.fleet.names.resources.get(GPU)
    if item.home < 0 or item.request.devices != ((GPU, 1),) or number is None:
        return False
    return float(trial.fleet.arrays.device_gpu[number, item.home]) > ALMOST_WHOLE


def _use_of(item: Item, measured: Mapping[str, Use], problems: dict[str, str]) -> tuple[Use, str]:
    """What is known of the pod, measured before declared, and how."""
    known = measured.get(item.key, Use())
    if known.memory_mib is not None and known.active is not None:
        return known, "measured"
    try:
        declared = _declared(item.pod)
    except QuantityError as error:
        problems[item.key] = str(error)
        return known, "measured"
    if declared.memory_mib is not None and declared.active is not None:
        return declared, "declared"
    return known, "measured"


def _declared(pod: Pod) -> Use:
    """The annotations. Raises ``QuantityError``."""
    memory, compute = pod.annotations.get(PEAK_MEMORY), pod.annotations.get(PEAK_COMPUTE)
    part = None
    if compute is not None:
        part = milli(compute.removesuffix("%")) / (WHOLE * (100 if compute.endswith("%") else 1))
        if part > 1:
            raise QuantityError(f"{PEAK_COMPUTE}: more than one GPU")
    return Use(None if memory is None else float(mib(memory)), part)


def _is_enough(size: Slice, use: Use, margin: float) -> bool:
    assert use.memory_mib is not None
    assert use.active is not None
    memory, compute = margin * use.memory_mib, min(margin * use.active, 1.0) * WHOLE
    return size.memory_mib >= memory and size.compute_milli >= compute


def _placed(trial: Trial, candidate: Candidate, enough: list[Slice]) -> Candidate:
    """The candidate on the smallest slice that is free now, if any is; its GPU is then free."""
    now = trial.savepoint()
    for size in enough:
        pod = _asking_for(candidate.item, size.resource)
        trial.leave(candidate.item)
        if trial.place(Item(pod.key, request_of(pod), candidate.item.rows, pod)):
            return replace(candidate, slice=size, target=trial.node_of(pod.key))
        trial.undo_to(now)
    return replace(candidate, slice=enough[0]) if enough else candidate


def _asking_for(item: Item, resource: str) -> Pod:
    """The pod with this resource in the place of whole GPUs."""
    spec = item.pod.spec

    def swapped(pairs: Pairs) -> Pairs:
        return tuple(sorted((resource if name == GPU else name, text) for name, text in pairs))

    def containers(all_of_them: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(replace(c, requests=swapped(c.requests), limits=swapped(c.limits)) for c in all_of_them)

    init = containers(spec.init_containers)
    return replace(item.pod, spec=replace(spec, containers=containers(spec.containers), init_containers=init))


def slices_report(
    source: ClusterSource, trial: Trial, measured: Mapping[str, Use], margin: float, progress: Progress
) -> Report:
    """Which pods with a whole GPU would fit a slice. ``trial`` is used up."""
    progress("slices", 0.0)
    today = trial.figures().whole
    plan = plan_slices(trial, measured, margin)
    plan, outcome = largest_that_holds(plan, lambda proposed: _carried_out(source, proposed.moves), _smaller)
    progress("slices", 1.0)
    moves = len(plan.moves)
    return Report(
        f"Pods with a whole GPU that would fit a slice: {source.name}",
        _sentences(plan, margin),
        [_table(plan, outcome)],
        [
            Gain("GPUs entirely free", today, today + moves, outcome.figures.whole),
            Gain("pods on a slice", 0, moves, len(outcome.placed)),
        ],
        outcome.problems,
        [_BUSY, UNKNOWN],
    )


def _smaller(plan: SlicePlan, outcome: Outcome) -> SlicePlan | None:
    """Without the slices that the scheduler gave to others."""
    lost = outcome.unplaced
    plan.candidates = [replace(c, target="") if c.item.key in lost else c for c in plan.candidates]
    return plan if lost else None


def _carried_out(source: ClusterSource, moves: list[Candidate]) -> Outcome:
    """These pods ask for their slice and wait; the scheduler places them."""
    events: list[Event] = []
    for move in moves:
        assert move.slice is not None
        pod = _asking_for(move.item, move.slice.resource)
        events += [Deleted("Pod", pod.key), Upserted(pod)]
    return carry_out(source.trial(events), [Step("place", move.item.key) for move in moves])


def _sentences(plan: SlicePlan, margin: float) -> list[str]:
    fit = sum(candidate.slice is not None for candidate in plan.candidates)
    said = [
        f"{fit} pods would fit a slice with {margin:g} times what they use; for {len(plan.moves)} of "
        "them one is free today."
    ]
    if large := len(plan.candidates) - fit:
        said.append(f"{large} pods use more than the largest slice that any node has.")
    if plan.unknown:
        said.append(
            f"Of {len(plan.unknown)} pods with one whole GPU the use is not known: no --prometheus, no "
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
            short(candidate.slice.resource) if candidate.slice else "none is large enough",
            candidate.target or "-",
            outcome.placed.get(candidate.item.key, "-"),
        )
        for candidate in plan.candidates
    ]
    head = ("pod", "node", "memory GiB", "active %", "known", "slice", "free on", "replayed")
    return Table("slices", "Pods with one whole GPU", head, rows)
