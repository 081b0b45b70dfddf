"""The settings, their defaults and valid values. They are read by ``settings_file``.

The listening address and the sources are command-line arguments, not settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from extender.untrusted.duration import as_seconds
from extender.untrusted.limits import LABEL
from packing.model.request import SeparateGpus

# Regular expressions that run in linear time.
_OBJECT = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_NAMESPACED = rf"^{_NAMESPACE}/{_OBJECT}$"
_HOST_PART = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_LABEL_KEY = rf"([a-z0-9][-a-z0-9.]{{0,252}}/)?{LABEL}"
_REQUIREMENT = (
    rf"(!?{_LABEL_KEY}|{_LABEL_KEY} *(=|==|!=) *({LABEL})?"
    rf"|{_LABEL_KEY} +(in|notin) *\( *{LABEL}( *, *{LABEL})* *\))"
)
_LABEL_SELECTOR = rf"^ *{_REQUIREMENT}( *, *{_REQUIREMENT})* *$"
"""In the syntax of the API server (k8s.io/apimachinery, ``pkg/labels/selector.go``), without ``<`` and ``>``,
and without empty values in lists."""
_LABEL_OR_PAIR = rf"^{_LABEL_KEY}(={LABEL})?$"

_Relative = Annotated[float, Field(ge=1e-6, le=1e9)]
"""A number that matters only relative to others of its kind. Within these limits all costs are finite."""
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
# In files durations are also valid: 2h.
_IN_SECONDS = BeforeValidator(lambda given: as_seconds(given) if isinstance(given, str) else given)
_OR_TEXT: dict[str, Any] = {"json_schema_extra": {"type": ["number", "string"]}}
_Seconds = Annotated[float, Field(**_OR_TEXT), _IN_SECONDS]
_WholeSeconds = Annotated[int, Field(**_OR_TEXT), _IN_SECONDS]
_Interval = Annotated[float, Field(gt=0, le=1e9, **_OR_TEXT), _IN_SECONDS]
_Wait = Annotated[float, Field(ge=0, le=1e9, **_OR_TEXT), _IN_SECONDS]
_Grace = Annotated[int, Field(ge=0, le=86400, **_OR_TEXT), _IN_SECONDS]


def _as_mode(value: object) -> object:
    """Map booleans to modes: YAML reads on and off as booleans."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


_MODES = WithJsonSchema({"enum": ["off", "recommend", "on", True, False]})
Mode: TypeAlias = Annotated[Literal["off", "recommend", "on"], BeforeValidator(_as_mode), _MODES]
_NumberOrText = Annotated[str, WithJsonSchema({"type": ["number", "string"]})]
API = {"apiVersion": "stowage.dev/v1alpha1", "kind": "StowageConfiguration"}
"""Optional first keys of a settings file."""


class SettingsError(Exception):
    """One line per invalid setting."""


Reserve: TypeAlias = Annotated[
    Literal["off", "limits", "learned"],
    BeforeValidator(_as_mode),
    WithJsonSchema({"enum": ["off", "limits", "learned", False]}),
]
"""Whether nodes are reserved for large jobs, and what is known of the ends of other pods."""
Plain: TypeAlias = Literal["least", "whole"]
"""The devices of a pod that requests GPUs without further requirements: the least valuable sufficient ones,
or whole GPUs."""


class ExpectedRequest(BaseModel):
    """An expected request of pods, in the format of their manifests. ``weight``: its relative frequency."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    resources: dict[str, _NumberOrText] = {}
    annotations: dict[str, _NumberOrText] = {}
    labels: dict[str, _NumberOrText] = {}
    node_selector: dict[str, _NumberOrText] = Field(default={}, alias="nodeSelector")
    weight: _Relative = 1.0


class Queue(BaseModel):
    """A queue. Times are in seconds; in files also durations (``2h``).

    ``preempts``: the queues whose pods its pods may evict, at lower priority. ``min_runtime``: how long a pod
    runs before it may be evicted. ``max_duration``: the time after which pods of equal priority may also
    evict it; None for never. ``grace``: the time that the evictor allows a victim for its checkpoint; None
    for the pod's ``terminationGracePeriodSeconds``. ``evictions_per_hour``: the maximum number of victims of
    this queue per hour, None for unlimited. ``wait_objective``: the target for the maximum wait of its pods,
    for the metrics; None for no target. ``checkpoint_interval``: how often its pods save their work; None if
    they do not. ``restartable``: its pods may run on spot nodes, and be moved for others. ``consolidation``:
    whether others are moved for its pods; None for the global setting. ``plain_gpu``: the devices of its
    pods; None for the global setting. ``self_protection``: its pods may forbid their eviction by labels and
    annotations of other systems. ``priority_classes``: a pod without a queue label belongs to the queue that
    names its PriorityClass. ``aliases``: names of this queue in Kueue, Volcano and KAI.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra={"type": ["object", "null"]},  # null removes a queue
    )

    preempts: frozenset[str] = frozenset()
    min_runtime: _Seconds = Field(default=0.0, ge=0, le=1e9)
    max_duration: _Interval | None = None
    grace: _Grace | None = None
    evictions_per_hour: _Count | None = None
    wait_objective: _Interval | None = None
    checkpoint_interval: _Interval | None = None
    restartable: bool = False
    consolidation: Mode | None = None
    plain_gpu: Plain | None = None
    self_protection: bool = True
    priority_classes: frozenset[str] = frozenset()
    aliases: frozenset[str] = frozenset()


class Window(BaseModel):
    """When running pods may be moved and MIG layouts changed: for ``duration`` seconds from each time of
    ``cron``, five fields as in crontab, by the clocks of ``zone``, an IANA time zone. A time that the clocks
    skip is the next one that they have; of a time that they have twice, the first counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    zone: str = Field(default="UTC", max_length=64)
    duration: Annotated[float, Field(ge=60, le=7 * 86_400, **_OR_TEXT), _IN_SECONDS]
    cron: str = Field(max_length=200)

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            raise ValueError(f"{name!r} is not a time zone such as Europe/Berlin") from None
        return name

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, text: str) -> str:
        if len(text.split()) != 5:
            raise ValueError(f"{text!r} has not the five fields of cron, such as 0 22 * * 1-5")
        if next(_times(text, datetime(2026, 1, 1)), None) is None:
            raise ValueError(f"{text!r} never comes")
        return text

    def opening(self, now: float, lasts: float) -> float:
        """The start of the window that is open for ``lasts`` more seconds, or of the next one (Unix
        seconds). A window is never too short for itself."""
        ends = now + min(lasts, self.duration)
        after = datetime.fromtimestamp(now - self.duration, ZoneInfo(self.zone))
        starts = (time.timestamp() for time in _times(self.cron, after))
        return next(start for start in starts if now < start + self.duration >= ends)


def _times(cron: str, after: datetime) -> Iterator[datetime]:
    """The times of an expression of cron after this one. Raises ValueError."""
    from cronsim import CronSim, CronSimError  # few clusters have windows

    try:
        return CronSim(cron, after)
    except CronSimError as error:
        raise ValueError(f"{cron!r} is no time in crontab: {error}") from None


def next_window(windows: Sequence[Window], now: float, lasts: float = 0.0) -> float:
    """When the next of the windows opens that lasts so many seconds; 0 if one is open, or there are none."""
    opens = min((window.opening(now, lasts) for window in windows), default=0.0)
    return opens if opens > now else 0.0


DEFAULT_QUEUES: Mapping[str, Queue] = {
    "interactive": Queue(
        preempts=frozenset({"batch", "backfill"}), priority_classes=frozenset({"stowage-interactive"})
    ),
    "batch": Queue(
        preempts=frozenset({"backfill"}),
        min_runtime=600,
        restartable=True,
        priority_classes=frozenset({"stowage-batch"}),
    ),
    "backfill": Queue(
        max_duration=4 * 3600, restartable=True, priority_classes=frozenset({"stowage-backfill"})
    ),
}


def queue_problems(queues: Mapping[str, Queue]) -> Iterator[str]:
    """Contradictions in these queues."""
    classes: dict[str, str] = {}
    aliases = {name: name for name in queues}
    for name, queue in queues.items():
        if not re.fullmatch(LABEL, name):
            yield f"{name!r} is not a valid label value, so no pod could name this queue"
        for other in sorted(queue.preempts - queues.keys()):
            yield f"{name} preempts {other!r}, which is not among the queues ({', '.join(queues)})"
        for known, texts, what in (
            (classes, queue.priority_classes, "PriorityClass"),
            (aliases, queue.aliases, "alias"),
        ):
            for text in sorted(texts):
                if known.setdefault(text, name) != name:
                    yield f"{what} {text!r} names both {known[text]} and {name}"
        if queue.max_duration is not None and queue.max_duration < queue.min_runtime:
            yield f"max_duration of {name} is shorter than its min_runtime"
    try:
        graph = {name: sorted(queue.preempts - {name}) for name, queue in queues.items()}
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"these queues may preempt each other in a cycle: {', '.join(error.args[1][1:])}"


def _whole(default: int, least: int, most: int, what: str) -> Any:  # noqa: ANN401 (a field)
    text = f"a whole number from {least} to {most}: {what}"
    return Field(default, ge=least, le=most, description=text)


def _seconds(default: float, least: int, most: float, what: str) -> Any:  # noqa: ANN401
    until = f" to {most}" if most < 1e9 else ""
    text = f"a number from {least}{until}, or a duration such as 1h30m: seconds {what}"
    return Field(default, ge=least, le=most, description=text)


def _path(what: str) -> Any:  # noqa: ANN401
    return Field(None, min_length=1, description=f"the path of a {what}")


def _flag(default: bool, what: str) -> Any:  # noqa: ANN401
    return Field(default, description=f"true or false: {what}")


def _mode(what: str, needs: str = "evictor") -> Any:  # noqa: ANN401
    text = f"off, recommend or on: whether to {what}. recommend and on need {needs}"
    return Field("off", validate_default=True, description=text)


def _object(what: str) -> Any:  # noqa: ANN401
    return Field(None, pattern=_NAMESPACED, description=f"namespace/name of {what}")


class Settings(BaseModel):
    """All settings. The description of a field specifies the valid values and is quoted in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("queues")
    @classmethod
    def _consistent(cls, queues: dict[str, Queue]) -> dict[str, Queue]:
        if problem := next(queue_problems(queues), ""):
            raise ValueError(problem)
        return queues

    shortlist: int = _whole(
        64, 0, 1_000_000, "maximum number of nodes that filter returns, the best ones; 0 for all that fit"
    )
    # ``cluster.factory`` validates the name, because the policies load kernels.
    policy: str = Field(default="inventory", min_length=1, description="the name of a packing policy")
    minimum_slice_milli: int = _whole(0, 0, 1000, "the smallest useful fraction of a GPU, in thousandths")
    demand: list[ExpectedRequest] = Field(
        default=[],
        description="a list of expected requests, such as "
        '[{"resources": {"cpu": 8, "nvidia.com/gpu": 1}, "weight": 3}]; also with annotations and labels',
    )
    queues: dict[str, Queue] = Field(
        default_factory=lambda: dict(DEFAULT_QUEUES),
        description='queues by name, such as {"batch": {"preempts": ["backfill"], "min_runtime": 600}}',
    )
    preempt_nodes: int = _whole(1, 1, 100, "maximum number of nodes that preempt returns, the best ones")
    shield_seconds: _Seconds = _seconds(
        600.0, 0, 1e9, "for which the replacement of a preempted pod is not preempted"
    )
    spot: Literal["ignore", "prefer", "require"] = Field(
        default="prefer",
        description="ignore, prefer or require: whether restartable pods prefer spot nodes and others avoid "
        "them (prefer), or others are excluded from them (require)",
    )
    spot_nodes: list[Annotated[str, Field(pattern=_LABEL_OR_PAIR)]] = Field(
        default=[],
        max_length=100,
        description="a list of labels or taints such as [capacity-type=spot, team.example/spot]: nodes with "
        "one of these are spot nodes, in addition to those of known providers",
    )
    lifetimes: bool = _flag(
        False, "whether pods prefer nodes whose other pods end no earlier, by past run times of their kind"
    )
    gpu_values: dict[str, _Relative] = Field(
        default={},
        max_length=100,
        description="values of GPUs by model, numbers from 0.000001 to 1000000000, such as "
        '{"H100": 3.9, "T4": 0.35}; only their ratios matter, and other models keep their '
        "relation to the named ones",
    )
    separate_gpus: SeparateGpus = Field(
        default="prefer",
        description="ignore, prefer or require: whether a container that requests several GPUs prefers nodes "
        "that allocate as many physical ones (prefer), or excludes all others (require)",
    )
    plain_gpu: Plain = Field(
        default="least",
        description="least or whole: the devices of a pod that requests nvidia.com/gpu without further "
        "requirements, the least valuable sufficient ones (also replicas or MIG instances) or only whole "
        "GPUs",
    )
    plain_gpu_by_namespace: dict[str, Plain] = Field(
        default={},
        max_length=10_000,
        description='the same by namespace, such as {"training": "whole"}; that of a queue takes precedence',
    )
    evict_kueue_pods: bool = _flag(False, "whether pods that Kueue manages may be evicted")
    gang_check: bool = _flag(True, "whether members of a gang are placed only if all of them fit")
    gang_hold_seconds: _Seconds = _seconds(
        60.0, 0, 3600, "for which room is reserved for pending members of a gang"
    )
    bind: bool = _flag(False, "whether the bind verb binds pods")
    enforce_shares: bool = _flag(
        False, "whether bind has the driver enforce stowage.dev/gpu-compute and gpu-memory where it can"
    )
    volcano: bool = _flag(False, "whether to answer Volcano's extender plugin as well")
    leader_election: str | None = _object(
        "a Lease, or null: only the replica that holds it is ready and binds"
    )
    lease_seconds: _WholeSeconds = _whole(
        15, 3, 3600, "seconds until another replica may take over the Lease"
    )
    evictor_lease: str | None = _object(
        "a Lease, or null for that of leader_election: only the replica that holds it evicts"
    )
    evictor: Mode = _mode("evict pods to make room for pending ones", "evictor_lease or leader_election")
    evictor_schedulers: list[str] = Field(
        default=["stowage"],
        description="a list of schedulerNames whose pods the evictor serves, in addition to those seen in "
        "requests",
    )
    evictions_per_minute: int = _whole(10, 1, 6000, "maximum number of evictions per minute")
    nomination_seconds: _Seconds = _seconds(120.0, 1, 3600, "for which freed room is reserved for a pod")
    scale_up_wait_seconds: _Seconds = _seconds(
        600.0,
        0,
        86400,
        "to wait for a scale-up that an autoscaler has announced for a pod; 0 to ignore announcements",
    )
    consolidation: Mode = _mode("move running pods to make room for large pending jobs")
    consolidation_background: Mode = _mode(
        "move pods even before a job is pending, for expected large jobs and to empty nodes"
    )
    consolidation_gpus: int = _whole(4, 1, 100_000, "minimum GPUs of a job for which other pods are moved")
    consolidation_after_seconds: _Seconds = _seconds(
        300.0,
        0,
        1e9,
        "for which a job must have been pending with enough GPUs free before other pods are moved for it",
    )
    consolidation_small_wait_seconds: _Wait | None = Field(
        default=None,
        description="null, a number from 0, or a duration such as 5m: if a smaller job was pending "
        "for this many seconds, no pod is moved for an hour after it starts",
    )
    consolidation_price: _Relative = Field(
        default=1.0,
        description="a number from 0.000001 to 1000000000: GPU-seconds that moves may lose for each "
        "GPU-second for which the job has been pending",
    )
    consolidation_moves: int = _whole(4, 1, 64, "maximum number of pods moved for one job")
    consolidation_lost_percent: float = Field(
        default=0.5, ge=0, le=100, description="a number from 0 to 100: work that all moves may lose per "
        "hour, in percent of the GPU-hours of the fleet, or 2 GPU-hours if that is more",
    )  # fmt: skip
    windows: list[Window] = Field(
        default=[],
        max_length=32,
        description="a list of times for moves and changes of MIG layouts, such as "
        '[{"cron": "0 22 * * 1-5", "zone": "Europe/Berlin", "duration": "6h"}]; empty for any time',
    )
    mig_layouts: Mode = _mode("change MIG layouts of nodes so that pods that fit nowhere can start")
    mig_layout_seconds: _Seconds = _seconds(
        300.0, 1, 7200, "that a change of a node's MIG layout takes at most"
    )
    mig_layouts_at_once: int = _whole(
        1, 1, 1000, "maximum number of nodes whose MIG layout changes at a time"
    )
    mig_layouts_per_hour: int = _whole(4, 1, 1000, "maximum number of changes of MIG layouts per hour")
    shield_configmap: str | None = _object(
        "a ConfigMap, or null: where to record which jobs recently lost pods, and nodes that are reserved"
    )
    reserve: Reserve = Field(
        default="off",
        description="off, limits or learned: whether to reserve nodes for the large jobs that have been "
        "pending longest. Until then, pods use these nodes that end in time by a declared limit (limits), or "
        "also by past run times of their kind (learned). Needs shield_configmap",
    )
    reserve_after_seconds: _Seconds = _seconds(
        900.0, 0, 1e9, "for which a large job must have been pending before nodes are reserved for it"
    )
    reserve_seconds: _Seconds = _seconds(
        21_600.0, 60, 1e9, "after which nodes are no longer reserved for a job that has not started"
    )
    kueue_priority_boost: bool = _flag(
        False, "whether Kueue evicts first what loses least. Needs evictor_lease or leader_election"
    )
    mig_manager: str | None = Field(
        default=None,
        pattern=rf"^{_NAMESPACE}(/{_OBJECT})?$",
        description="namespace/name of the MIG manager's ConfigMap, or the namespace in which it writes one "
        "per node, or null: where to look up the MIG layouts of nodes",
    )
    node_selector: str | None = Field(
        default=None,
        max_length=1000,
        pattern=_LABEL_SELECTOR,
        description="a label selector such as pool in (a, b), or null: the nodes that this Stowage serves, "
        "null for all",
    )
    shard_schedulers: list[str] = Field(
        default=["stowage"],
        min_length=1,
        max_length=100,
        description="a list of schedulerNames whose pods belong to this Stowage where node_selector is set",
    )
    kubernetes_version: str | None = Field(
        default=None,
        pattern=r"^v?\d+\.\d+(\.\S*)?$",
        description='a version in quotes such as "1.36", or null to ask the API server',
    )
    debug_token_file: str | None = _path(
        "file with a token, or null: requests with it may read /debug and /metrics"
    )
    debug_token_review: bool = _flag(
        False,
        "whether /debug and /metrics require a token that the API server accepts, and the right to read them",
    )
    allowed_hosts: list[Annotated[str, Field(pattern=rf"^{_HOST_PART}(\.{_HOST_PART})*$")]] = Field(
        default=[],
        max_length=64,
        description="a list of at most 64 host names, such as [stowage.example.com], that callers "
        "may use, in addition to addresses, localhost, names without a dot and Services",
    )
    body_limit_mib: int = _whole(64, 1, 1024, "the largest request body in MiB")
    decisions_kept: int = _whole(1000, 0, 1_000_000, "the number of pods whose last decisions are stored")
    history_path: str | None = _path("directory for past decisions and samples, or null")
    history_mib: int = _whole(128, 1, 1_000_000, "the size of all files in history_path in MiB")
    tracing: bool = _flag(False, "whether each call of a verb is traced as an OpenTelemetry span")
    drain_seconds: _Seconds = _seconds(2.0, 0, 300, "between SIGTERM and closing the sockets")
    log_level: Literal["debug", "decision", "info", "warning", "error"] = Field(
        default="info", description="debug, decision, info, warning or error"
    )

    @field_validator("consolidation", "consolidation_background", "mig_layouts")
    @classmethod
    def _needs_evictor(cls, value: Mode, info: ValidationInfo) -> Mode:
        queues = info.data.get("queues", {}).values()
        modes = {value, *(queue.consolidation for queue in queues)} - {"off", None}
        if modes and info.data.get("evictor") == "off":
            raise ValueError("needs evictor: recommend or on, even for a single queue")
        return value

    @field_validator("reserve")
    @classmethod
    def _needs_configmap(cls, value: Reserve, info: ValidationInfo) -> Reserve:
        if value != "off" and not info.data.get("shield_configmap"):
            raise ValueError("needs shield_configmap, where all replicas find the reservations")
        return value

    @field_validator("evictor", "shield_configmap", "kueue_priority_boost")
    @classmethod
    def _needs_lease(cls, value: str | bool | None, info: ValidationInfo) -> str | bool | None:
        # Also with a single replica: during an update there are two for a moment.
        leases = info.data.get("evictor_lease"), info.data.get("leader_election")
        if value not in (None, "off", False) and not any(leases):
            raise ValueError(
                "needs evictor_lease or leader_election, so that only one replica evicts at a time"
            )
        return value


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file."""
    found = Settings.model_json_schema()
    found["properties"] = {key: {"const": value} for key, value in API.items()} | found["properties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | found
