"""Answers of ``explain``, apart from their computation: commands print those of a running Stowage."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, ConfigDict, FiniteFloat
from pydantic.alias_generators import to_camel

from extender.cluster.totals import Totals
from extender.explain.words import Word

Actor: TypeAlias = Literal["kube-scheduler", "evictor"]
EvictorMode: TypeAlias = Literal["off", "recommend", "on", "unknown"]
"""The setting ``evictor`` of the service; unknown on the command line without a service."""
JSON = ConfigDict(alias_generator=to_camel)
"""The spelling of ``plain``."""
_OWN_DECISIONS = "Each replica keeps its own decisions"


def plain(value: object) -> Any:  # noqa: ANN401 (any JSON)
    """An answer as commands print it as JSON: fields in camel case, as in Kubernetes' own objects."""
    if is_dataclass(value) and not isinstance(value, type):
        return {to_camel(field.name): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


class NeedKind(StrEnum):
    """What a need is counted in."""

    CPU = "cpu"
    MEMORY = "memory"
    DEVICES = "devices"
    EACH_GPU = "memory of each GPU"
    GPU_MEMORY = "memory of a GPU"
    GPUSHARE_UNITS = "units of gpushare"
    GPUS = "GPUs"
    SEPARATE_GPUS = "different GPUs"
    PEERS = "NVLink peers"
    COUNT = "count"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Need:
    """A resource that a pod requests on one node, in the units of ``what``; ``text``: as a sentence."""

    what: str
    asked: int
    free: int
    total: int
    text: str
    kind: NeedKind = NeedKind.DEVICES


@dataclass(frozen=True, slots=True)
class Option:
    """A node that fits: its score, if scored; its cost; the ``terms`` that add up to the cost (before
    rounding), and ``why``, the largest of these in words.

    ``nvlink``: for a pod with several GPUs, the node's NVLink islands and their source. ``devices``: devices
    that kube-scheduler would allocate to the pod's claims there; if unknown, ``devices_unknown`` is the
    reason. ``gives``: the kind of the allocated devices, "" if it is the one that the pod names.
    """

    node: str
    score: int | None
    cost: float
    terms: dict[str, float]
    why: str
    gpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    devices_unknown: str = ""
    nvlink: str = ""
    gives: str = ""


@dataclass(frozen=True, slots=True)
class EvictionOption:
    """Evictions on one node that make the pod fit. ``acts``: kube-scheduler, which calls ``preempt``, or only
    the evictor, if enabled. ``loses``: the lost work, in words; ``cost``: the vector of docs/preemption.md.
    The lists name the first of the ``pods`` victims, of those on other nodes, with the node, and of the
    ``leaving`` pods, which are terminating and must end, too."""

    node: str
    acts: Actor
    pods: int
    victims: tuple[str, ...]
    other_nodes: tuple[str, ...]
    loses: str
    gpu_hours: float
    pdb_violations: int
    cost: tuple[float, ...]
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evictions:
    """``best``: the options, the cheapest first. ``elsewhere``: number of other nodes without enough room, by
    reason; ``protected``: number of pods on all these nodes that cannot be evicted, by protection.
    ``evictor``: whether the evictor of the service acts."""

    best: tuple[EvictionOption, ...] = ()
    elsewhere: dict[str, int] = field(default_factory=dict)
    protected: dict[str, int] = field(default_factory=dict)
    evictor: EvictorMode = "unknown"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes that reject the pod for one reason, a ``Reason`` or a ``Word`` by its name as ``kind``.
    ``nearest``: the node that lacks least, ``lacks``: missing resources there; ``advice``: "" for none.
    ``can_host``: number of these nodes that would accept the pod without other pods."""

    reason: str
    nodes: int
    eviction_helps: bool
    nearest: str
    lacks: tuple[Need, ...] = ()
    advice: str = ""
    can_host: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``why``: where the pod fits, or the decisive reason; ``lacks``: missing resources on the nearest node
    (``nearest``, "" for none); ``ways``: remedies with the line to paste or the command, the cheapest first.
    ``kind`` and ``fixes`` name the reason and the remedies, whatever their words."""

    why: str
    lacks: str = ""
    ways: tuple[str, ...] = ()
    nearest: str = ""
    kind: str = ""
    fixes: tuple[str, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether it says more than the number of nodes that fit or are unknown."""
        return self.kind not in ("", Word.FITS.name, Word.UNKNOWN.name)


NO_VERDICT = Verdict("")


@dataclass(frozen=True, slots=True)
class StartForecast:
    """``half`` and ``most``: Unix seconds by which a pod starts with a probability of 0.5 and 0.9, None if no
    predictable end of a pod frees enough room. ``needs``: the first of the ``ends`` pods that must end on
    ``node`` before, ``limits``: the fields that set their latest ends."""

    half: float | None
    most: float | None
    node: str = ""
    needs: tuple[str, ...] = ()
    ends: int = 0
    limits: tuple[str, ...] = ()

    def text(self, now: float) -> str:
        """The forecast as a sentence."""
        if self.half is None:
            return str(Word.NEVER_STARTS())
        most = Word.WITHIN(span=_span(self.most - now)) if self.most is not None else Word.AT_SOME_TIME()
        more = Word.AND_MORE(count=self.ends - len(self.needs)) if self.ends > len(self.needs) else ""
        by = Word.BY_LIMIT(fields=", ".join(self.limits)) if self.limits else ""
        pods = ", ".join(self.needs)
        once = Word.ONCE_ENDED(pods=pods, more=more, node=self.node, by=by) if self.needs else ""
        return str(Word.STARTS(half=_span(self.half - now), most=most, once=once))


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}"
    return "less than 1 min"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``asks``: the request by resource and unit, ``asked``: in one line. ``nodes``: number of nodes
    evaluated, ``fits``: number of them that fit.

    ``unknown``: number, by reason, of nodes that would fit, but where it is unknown whether the pod's claims
    can be allocated; ``passed_over``: number, by reason, of nodes that kube-scheduler rules out before it
    calls Stowage. ``error``: the request is invalid and fits nowhere. ``evictions`` for a pod that fits
    nowhere; None if not searched. ``held``: why the pod is not to be placed now, "" if it is; the rest is as
    if it were released. ``gang``: the gang of the pod, and whether room is held for it. ``node``: the node
    where the pod runs; the rest is then for a copy. ``hints``: probable mistakes in the request that are not
    part of the ``verdict``, and what else is known; ``hint_kinds`` names them. ``unchecked``: other filters
    of kube-scheduler that apply to the pod. ``starts``:
    the forecast for a pending pod. ``plain``: the pod requests no GPU and has no problem.
    """

    pod: str
    asks: dict[str, int | str] = field(default_factory=dict)
    held: str = ""
    gang: str = ""
    error: str = ""
    nodes: int = 0
    fits: int = 0
    best: tuple[Option, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    evictions: Evictions | None = None
    node: str = ""
    hints: tuple[str, ...] = ()
    verdict: Verdict = NO_VERDICT
    unchecked: tuple[str, ...] = ()
    starts: StartForecast | None = None
    plain: bool = False
    asked: str = ""
    hint_kinds: tuple[str, ...] = ()

    def with_hint(self, text: str, kind: str) -> Explanation:
        """With one more hint, the first."""
        return replace(self, hints=(text, *self.hints), hint_kinds=(kind, *self.hint_kinds))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node. ``fits``: None if unknown. ``reason``: "fits" or why not, ``lacks``: missing resources, in
    sentences. If the pod fits, ``advice`` names unknown facts.

    ``cost`` (GPUs) and its ``terms`` are valid only if the pod fits.
    """

    node: str
    fits: bool | None
    reason: str
    lacks: tuple[str, ...] = ()
    advice: str = ""
    cost: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)

    def order(self) -> tuple[int, float, str]:
        """Nodes that fit, the cheapest first, then nodes that may fit."""
        return (True, None, False).index(self.fits), self.cost, self.node


@dataclass(frozen=True, slots=True)
class Replica:
    """``name``: of the pod (its host name). ``leads``: whether it is the leader, None without an election.
    ``leader``: the name of the leader, "" if unknown."""

    name: str
    leads: bool | None = None
    leader: str = ""

    def without_decisions(self) -> str:
        """Where other decisions may be, as a sentence; "" for the leader, which has all since it leads."""
        if self.leads:
            return ""
        if self.leads is None:
            return f"{_OWN_DECISIONS}, and this is {self.name}: query the others, if any"
        if not self.leader:
            return f"{_OWN_DECISIONS}. This is {self.name}, and there is no leader now"
        return f"{_OWN_DECISIONS}. This is {self.name}; kube-scheduler calls the leader, {self.leader}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Time and answer (in one line) of a verb, and its explanation: None if there was no time for it, and for
    verbs without explanations."""

    at: AwareDatetime
    verb: str
    answer: str
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A pod on GPUs of a node, from ``start`` to ``end`` in Unix seconds, None while it runs. ``job``: its
    controller, such as ``Job train``, "" for none."""

    pod: str
    job: str
    node: str
    gpus: FiniteFloat
    start: FiniteFloat
    end: FiniteFloat | None = None
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PodReport:
    """A pod: its node, the last decisions about it (newest first), and, if pending or requested, where it
    fits now. ``replica``: whose decisions these are. ``asked``: its request, in one line; ``gang``: a
    sentence about its gang, and its first ``members`` with their nodes, "" for none. ``runs``: the last runs
    of the pods of its job."""

    pod: str
    node: str
    note: str
    decisions: list[Decision]
    now: Explanation | None
    replica: Replica
    asked: str = ""
    gang: str = ""
    members: tuple[tuple[str, str], ...] = ()
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """The explanation of one pod of a manifest, or the answers for the requested ``nodes``; ``workload``: the
    owner of the pod template, "" for a plain pod."""

    workload: str
    pod: str
    explanation: Explanation | None = None
    nodes: tuple[NodeAnswer, ...] | None = None

    def with_dry_run(self, complete: bool, refusal: str, unknown: str) -> PodAnswer:
        """The answer with the ``Outcome`` of a dry run."""
        said = Word.NO_DRY_RUN(why=unknown) if unknown else Word.DRY_RUN() if complete or refusal else None
        found, nodes, why = self.explanation, self.nodes, str(Word.REJECTED(why=refusal))
        if found and said:
            found = found.with_hint(str(said), said.word.name)
        if found and refusal:
            verdict = Verdict(why, kind=Word.REJECTED.name)
            found = replace(found, error=why, fits=0, best=(), verdict=verdict, plain=False)
        if nodes and refusal:
            nodes = tuple(replace(node, fits=False, reason=why) for node in nodes)
        return replace(self, explanation=found, nodes=nodes)


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node with GPUs. ``gpus``, ``not_offered``, ``used_gpus``, ``free_gpus``, ``whole`` and ``on_offer``
    are those of ``census.NodeCount``. ``used_percent``: the larger of used compute and memory of each GPU
    that the node offers. ``note``: why the node accepts no pods, and whether it is a spot node; ``problem``:
    its unreadable data. ``mig``: number of instances of each profile that can be allocated now. ``in_units``:
    the memory of its GPUs is counted in units of gpushare's plugin."""

    node: str
    model: str
    gpus: int
    not_offered: int
    whole: int
    used_gpus: float
    free_gpus: float
    on_offer: bool
    free_memory_mib: int
    memory_mib: int
    free_cpu_milli: int
    free_host_memory_mib: int
    pods: int
    used_percent: tuple[int, ...]
    islands: tuple[int, ...]
    note: str
    problem: str = ""
    zone: str = ""
    mig: dict[str, int] = field(default_factory=dict)
    in_units: bool = False


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A pod pending for a GPU. ``created`` in Unix seconds; ``why``, ``kind``, ``lacks`` and the first of its
    ways (``advice``) are those of the ``Verdict``. ``position``: its place in kube-scheduler's queue by
    priority and age, from 1; 0 for a pod that scheduling gates keep out of it. ``asked``: ``asks`` in one
    line, ``labels``: the labels for filters on the page, ``job``: its controller, such as ``Job train``.
    ``starts``: None for no forecast."""

    pod: str
    queue: str
    priority: int
    asks: dict[str, int | str]
    created: float
    why: str
    lacks: str = ""
    advice: str = ""
    asked: str = ""
    labels: tuple[str, ...] = ()
    starts: StartForecast | None = None
    job: str = ""
    position: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class HolderLine:
    """A pod with GPUs of a node. ``gpus``: how much, in GPUs; ``resources``: its devices by resource,
    ``devices``: which ones, as far as known. Unix seconds, None where unknown: ``since`` it was started or
    created, ``until`` it has ended at the latest, because of the field ``limit``."""

    pod: str
    node: str
    gpus: float
    resources: dict[str, int]
    devices: tuple[str, ...]
    queue: str
    priority: int
    since: float | None
    until: float | None = None
    limit: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """``waiting``: the pending pods of the highest priority. ``unread``: bound pods, and objects such as
    claims, with unreadable data."""

    totals: Totals
    nodes: tuple[NodeLine, ...]
    waiting: tuple[WaitingLine, ...]
    more_waiting: int
    unread: tuple[str, ...] = ()
