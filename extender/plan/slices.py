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
from extender.k8s.objects import Container, Deleted, Event, Pod, PodSpec, Upserted
from extender.k8s.quantity import QuantityError, mib, milli
from extender.plan.cluster import ClusterSource
from extender.plan.source import Step
from extender.replay.cluster_engine import as_new
from extender.replay.work import Item, Work
from extender.source.prometheus import Use
from packing.fleet.arrays import ALMOST_WHOLE
from packing.model.request import WHOLE

GPU = "nvidia.com/gpu"
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

    pod: str
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
        return [one for one in self.candidates if one.target]


def plan_slices(work: Work, measured: Mapping[str, Use], margin: float) -> SlicePlan:
    """The pods that would fit a slice with ``margin`` times what they use, largest first. The fleet has
    those that find a free one on it afterwards."""
    plan = SlicePlan([], [], {})
    slices = sorted(_slices(work), key=lambda one: (one.memory_mib, one.compute_milli, one.resource))
    items = [item for item in work.movable.values() if _has_whole_gpu(work, item)]
    for item in items:
        use, source = _use_of(item, measured, plan.problems)
        if use.memory_mib is None or use.active is None:
            plan.unknown.append(item.key)
            continue
        node = work.name(item.home)
        enough = _smallest(slices, use, margin)
        plan.candidates.append(Candidate(item.key, node, use, source, enough))
    plan.candidates.sort(key=lambda one: (-(one.use.memory_mib or 0), one.pod))
    plan.candidates = [_placed(work, one, slices, margin) for one in plan.candidates]
    return plan


def _slices(work: Work) -> Iterator[Slice]:
    """The kinds of MIG instances of nodes that take pods."""
    specs = [spec for row in work.gpu_rows if (spec := work.fleet.specs[row])]
    pools = (pool for spec in specs for pool in spec.pools if pool.profile)
    found = {(p.resource, p.compute_milli, p.memory_mib) for p in pools if p.resource.startswith(MIG_PREFIX)}
    yield from (Slice(*one) for one in sorted(found))


def _has_whole_gpu(work: Work, item: Item) -> bool:
    """Whether the pod runs, and asks for exactly one counted GPU that is a whole one on its node."""
    number = work.fleet.names.resources.get(GPU)
    if item.home < 0 or item.request.devices != ((GPU, 1),) or number is None:
        return False
    return float(work.fleet.arrays.device_gpu[number, item.home]) > ALMOST_WHOLE


def _use_of(item: Item, measured: Mapping[str, Use], problems: dict[str, str]) -> tuple[Use, str]:
    """What is known of the pod, measured before declared, and how."""
    known = measured.get(item.key, Use())
    if known.memory_mib is not None and known.active is not None:
        return known, "measured"
    assert item.pod is not None
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


def _smallest(slices: list[Slice], use: Use, margin: float) -> Slice | None:
    return next((one for one in slices if _is_enough(one, use, margin)), None)


def _is_enough(one: Slice, use: Use, margin: float) -> bool:
    assert use.memory_mib is not None
    assert use.active is not None
    memory, compute = margin * use.memory_mib, min(margin * use.active, 1.0) * WHOLE
    return one.memory_mib >= memory and one.compute_milli >= compute


def _placed(work: Work, one: Candidate, slices: list[Slice], margin: float) -> Candidate:
    """The candidate on the smallest slice that is free now, if any is; its GPU is then free."""
    item = work.movable[one.pod]
    for size in slices:
        if not _is_enough(size, one.use, margin):
            continue
        assert item.pod is not None
        pod = replace(item.pod, spec=_asking_for(item.pod.spec, size.resource))
        held = work.lift(item)
        if work.place(Item(item.key, request_of(pod), item.rows, pod=pod)):
            return replace(one, slice=size, target=work.name(work.at[one.pod].row))
        work.restore(item, held)
    return one


def carried_out(source: ClusterSource, plan: SlicePlan) -> tuple[ClusterSource, list[Step]]:
    """The cluster once these pods ask for their slice and wait, and the steps: the scheduler places them."""
    state = source.state()
    events: list[Event] = []
    for one in plan.moves:
        assert one.slice is not None
        pod = state.pods[one.pod]
        spec = _asking_for(pod.spec, one.slice.resource)
        events += [Deleted("Pod", pod.key), Upserted(replace(as_new(pod), spec=spec))]
    return source.changed(events), [Step("place", one.pod) for one in plan.moves]


def _asking_for(spec: PodSpec, resource: str) -> PodSpec:
    """The spec with this resource in the place of whole GPUs."""

    def swapped(pairs: Pairs) -> Pairs:
        return tuple(sorted((resource if name == GPU else name, text) for name, text in pairs))

    def containers(all_of_them: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(replace(c, requests=swapped(c.requests), limits=swapped(c.limits)) for c in all_of_them)

    return replace(
        spec, containers=containers(spec.containers), init_containers=containers(spec.init_containers)
    )
