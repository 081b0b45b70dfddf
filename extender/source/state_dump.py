"""The format of ``GET /debug/state``: the knowledge of a service, so that a command can answer as it does.

Lines of JSON: a ``Header``, a line ``{"kind": ..., "record": {...}}`` for each record that the service keeps
(no manifests, so nothing that Stowage does not need), and a last line with their number. A dump without the
last line is incomplete, and is rejected.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from extender.k8s.node_filter import NodeRequirement
from extender.k8s.objects import KubernetesObject, PodGroup, PodGroupKind
from extender.k8s.resource_slices import DeviceTaintRule, DeviceTaintRuleKind
from extender.source.errors import Unavailable
from extender.untrusted.limits import shorten, validation_problem
from packing.model.request import Request

_START = b'{"kind":"StowageState"'
FORMAT = 2
_RECORDS: Mapping[str, type[KubernetesObject]] = {
    **{record.kind: record for record in get_args(KubernetesObject) if isinstance(record.kind, str)},
    **dict.fromkeys(get_args(PodGroupKind), PodGroup),
    **dict.fromkeys(get_args(DeviceTaintRuleKind), DeviceTaintRule),
}


@dataclass(frozen=True, slots=True)
class Learned:
    """A request of pods, and its relative frequency."""

    request: Request
    weight: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Header:
    """The knowledge of a service in addition to the objects of the cluster.

    ``at``: Unix seconds. ``settings``: those that differ from the defaults. ``learned``: the demand,
    from the pods counted by ``arrived``.
    ``disruptions``: from ``DisruptionLog.dump``; ``succeeded``: from ``GangTable.succeeded``.
    ``eviction_helps_extenders``: see ``State``.
    """

    version: str
    replica: str
    at: float
    settings: dict[str, Any] = field(default_factory=dict)
    learned: tuple[Learned, ...] = ()
    disruptions: dict[str, Any] = field(default_factory=dict)
    succeeded: dict[str, int] = field(default_factory=dict)
    eviction_helps_extenders: bool = False
    arrived: Annotated[int, Field(ge=0, le=2**53)] = 0


def prepare() -> None:
    """Create the encoders, which takes some ten milliseconds once. Callable from any thread."""
    for kind in (Header, *_RECORDS.values()):
        _adapter(kind)


def header_line(header: Header) -> bytes:
    fields = _adapter(Header).dump_python(header, mode="json")
    return to_json({"kind": "StowageState", "format": FORMAT, **fields}) + b"\n"


def record_line(record: KubernetesObject) -> bytes:
    """The line of one record, without fields that have their default value."""
    fields = _adapter(_RECORDS[record.kind]).dump_python(record, mode="json", exclude_defaults=True)
    return to_json({"kind": record.kind, "record": fields}, inf_nan_mode="constants") + b"\n"


def end_line(records: int) -> bytes:
    return to_json({"kind": "End", "records": records}) + b"\n"


def is_dump(text: bytes) -> bool:
    return text.startswith(_START)


def parse_dump(text: bytes, file: str) -> tuple[Header, list[KubernetesObject]]:
    """Header and records of a dump. Raises ``Unavailable`` with the file and the problem."""
    lines = _lines(text, file)
    first = next(lines)
    if first.pop("format", None) != FORMAT:
        raise Unavailable(f"{file}: is a dump of another version of Stowage")
    del first["kind"]
    header: Header = _validated(Header, first, f"{file}: line 1")
    records: list[KubernetesObject] = []
    for number, line in enumerate(lines, 2):
        if line.get("kind") == "End":
            if line.get("records") != len(records):
                raise Unavailable(f"{file}: is incomplete: {len(records)} of {line.get('records')} records")
            return header, records
        record_type = _RECORDS.get(str(line.get("kind")))
        if record_type is None:
            raise Unavailable(f"{file}: line {number}: a record of an unknown kind")
        records.append(_validated(record_type, line.get("record"), f"{file}: line {number}"))
    raise Unavailable(f"{file}: is incomplete: the dump ended after {len(records)} records")


def _lines(text: bytes, file: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(io.BytesIO(text), 1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise Unavailable(f"{file}: line {number}: is not JSON, so the dump is incomplete") from None
        if not isinstance(found, dict):
            raise Unavailable(f"{file}: line {number}: is not an object")
        yield found


def _validated(kind: type[Any], fields: object, where: str) -> Any:  # noqa: ANN401 (an object of that type)
    try:
        return _adapter(kind).validate_python(_with_node_sets(fields) if kind is Header else fields)
    except ValidationError as error:
        raise Unavailable(shorten(f"{where}: {validation_problem(error)}")) from None
    except TypeError:  # a list where the record has pairs
        raise Unavailable(f"{where}: is not a record") from None


def _with_node_sets(fields: object) -> object:
    """``Request.node_set`` may be any hashable object; here it is a ``NodeRequirement``."""
    learned = fields.get("learned") if isinstance(fields, dict) else None
    for entry in learned if isinstance(learned, list) else ():
        request = entry.get("request") if isinstance(entry, dict) else None
        if isinstance(request, dict) and request.get("node_set") is not None:
            request["node_set"] = _adapter(NodeRequirement).validate_python(request["node_set"])
    return fields


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
