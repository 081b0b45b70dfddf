"""The decoder of Kubernetes objects of all kinds, and the metadata that every object has.

A kind is a ``Manifest``: the fields that Stowage reads, under the names of the API. msgspec skips the text of
all others, nine tenths of a pod or node, checking only the structure of the JSON. It accepts only values that
match the types exactly. Anything else is read again by the rules of Go and Kubernetes: null means absent, and
a quantity may be a number ("cpu: 1").

An object of the API server is never dropped because of one field: only the unreadable fields are
(``Manifest.salvaged``), and the kind determines their substitute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, reduce
from itertools import chain, count, repeat
from operator import add, getitem
from threading import Lock
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from extender.untrusted.limits import DEPTH, KEY, LISTED_NAMES, OBJECT_ENTRIES, shorten
from extender.untrusted.visible import visible

_T = TypeVar("_T")

# Domains (with their subdomains) and unqualified prefixes of annotations about GPUs, queues, gangs or
# preemption, besides those of ``read_also``. All others are dropped: on most pods they exceed the rest of the
# record.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com", ".amd.com"),
    *(".scheduling.x-k8s.io", ".jobset.sigs.k8s.io", ".leaderworkerset.sigs.k8s.io", ".ray.io"),
    *(".cluster-autoscaler.kubernetes.io", ".karpenter.sh"),
)
_SHARED_ENTRIES = 64  # more labels than any template has
_LARGEST = 1 << 63
_TIMESTAMP = 40  # characters; RFC 3339 with nanoseconds and an offset has 35
_UNQUALIFIED_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|$)|[][{}]', re.DOTALL)
"""Brackets, and strings, which may contain some."""
_FIELDS_LEFT_OUT = 8
"""Maximum per object. If more are unreadable, whole parts such as ``spec.containers`` are omitted."""
_IDENTITY = (["metadata", "name"], ["metadata", "namespace"], ["metadata", "uid"])

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A small hashable map from name to value, sorted by name. Quantities are kept as written."""
Texts: TypeAlias = dict[str, str]
"""A map whose null entries are ignored, such as a map of quantities."""
Labels: TypeAlias = Annotated[Texts, Meta(extra={"null": ""})]
"""A map in which null means an empty string."""
Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of the API server; JSON allows larger ones, which no float can hold."""
_Json: TypeAlias = bytes | msgspec.Raw
Name: TypeAlias = Annotated[str, Meta(max_length=KEY)]
"""The name of an object. The API server allows 253 characters, so it serves no object with a longer one."""


def pairs_of(entries: Mapping[str, str]) -> Pairs:
    """The entries, sorted."""
    return tuple(sorted(entries.items()))


class Unreadable(ValueError):
    """An object does not match its kind. The text has the location, in at most ``PROBLEM`` characters."""


# Manifests have no reference cycles, so the garbage collector can ignore them.
class OwnerManifest(Struct, frozen=True, gc=False):
    kind: str = ""
    name: Name = ""
    uid: Name = ""
    controller: bool = False


class Metadata(Struct, frozen=True, gc=False):
    name: Name = ""
    generateName: Name = ""
    namespace: Name = ""
    uid: Name = ""
    labels: Labels = {}
    annotations: Labels = {}
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: Int | None = None
    resourceVersion: str = ""
    generation: Int = 0
    ownerReferences: tuple[OwnerManifest, ...] = ()

    @property
    def namespace_or_default(self) -> str:
        """One shared string for all objects of a namespace."""
        return sys.intern(self.namespace or "default")

    @property
    def controller(self) -> OwnerManifest | None:
        return next((owner for owner in self.ownerReferences if owner.controller), None)


class Named:
    """A record of a cluster-scoped object."""

    __slots__ = ()
    name: str

    @property
    def key(self) -> str:
        return self.name


class Namespaced:
    """A record of a namespaced object."""

    __slots__ = ()
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Manifest(Struct, frozen=True, gc=False):
    """The part of an object that Stowage reads; ``record()`` returns the part that it keeps."""

    metadata: Metadata = Metadata()

    @classmethod
    def from_json(cls, text: bytes | msgspec.Raw) -> Self:
        """Raises ``Unreadable``."""
        try:
            try:
                return decode(text, cls)
            except msgspec.ValidationError:
                value = decode(text, Any)
        except MALFORMED as error:
            raise Unreadable(decoding_problem(error)) from None
        return read_value(value, cls)

    @classmethod
    def salvaged(cls, source: object) -> tuple[Self, str, tuple[str, ...]]:
        """The readable part of an object, the problem of the rest ("" for none), and the omitted fields, such
        as ``.spec.containers``. Overlong names in its metadata are truncated. ``source``: JSON, or the output
        of a YAML parser. Raises ``Unreadable`` if it has no name."""
        problem, left_out = "", tuple[str, ...]()
        try:
            manifest = cls.from_json(source) if isinstance(source, _Json) else cls.from_value(source)
        except Unreadable as error:
            problem = str(error)
            try:
                value = decode(source, Any) if isinstance(source, _Json) else source
                manifest, left_out = _repaired(_lenient(value, cls), cls)
            except MALFORMED:
                raise Unreadable(problem) from None
        if not manifest.metadata.name:
            raise Unreadable(problem or "has no name")
        return manifest, problem, left_out

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Read the output of a JSON or YAML parser. Raises ``Unreadable``."""
        return read_value(value, cls)

    record: ClassVar[Callable[..., Any]]


MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)
"""Exceptions of the decoder."""


_type_info: Callable[[object], inspect.Type] = lru_cache(inspect.type_info)
_decoders: dict[Any, Any] = {}
_making = Lock()


def decoder_of(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """The decoder of a type. msgspec (0.22) inspects a type, and its parts, when it first decodes one; the
    process crashes if two threads do that at once."""
    if kind not in _decoders:
        with _making:
            _decoders[kind] = msgspec.json.Decoder(kind)
    decoder: msgspec.json.Decoder[_T] = _decoders[kind]
    return decoder


def decode(text: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Decode a text without values nested deeper than any field that is read: users write these into free
    fields, such as the parameters of a claim, and the decoder would reject everything around them. Raises
    ``MALFORMED``."""
    try:
        return decoder_of(kind).decode(text)
    except RecursionError:
        return decoder_of(kind).decode(_outer_levels(bytes(text)))


def _outer_levels(text: bytes) -> bytes:
    """The JSON with 0 in place of each list or map nested deeper than ``DEPTH``."""
    kept, depth, start = list[bytes](), 0, 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in b"[{":
            depth += 1
            if depth == DEPTH + 1:
                kept.append(text[start : match.start()])
        elif bracket in b"]}":
            if depth == DEPTH + 1:
                kept.append(b"0")
                start = match.end()
            depth -= 1
    return b"".join([*kept, text[start:] if depth <= DEPTH else b""])


def _repaired(value: object, kind: type[_T]) -> tuple[_T, tuple[str, ...]]:
    """The value without its unreadable fields, and the names of these. Raises ``Unreadable``."""
    left_out: list[str] = []
    for tries in count():
        try:
            return msgspec.convert(value, kind, strict=False), tuple(left_out)
        except msgspec.ValidationError as error:
            path = _path_of(error)[: None if tries < _FIELDS_LEFT_OUT else 2]
        if not path:
            raise Unreadable("it is not an object")
        around: Any = reduce(getitem, path[:-1], value)  # type: ignore[arg-type]
        unread = around[path[-1]]
        if path in _IDENTITY or (path[0] == "metadata" and isinstance(unread, str) and len(unread) > KEY):
            around[path[-1]] = str(unread)[:KEY]
        else:
            del around[path[-1]]
            left_out.append("".join(f".{step}" for step in path))
    raise AssertionError  # each iteration removes a field


def _path_of(error: msgspec.ValidationError) -> list[Any]:
    """The path of the unreadable value: field names, and list indices. Maps are read as a whole."""
    path = str(error).rpartition("`$")[2].partition("[...]")[0]
    return [int(step) if step.isdecimal() else step for step in re.findall(r"[.\[](\w+)", path)]


def read_value(value: object, kind: type[_T]) -> _T:
    """Read a part of a manifest from the output of a JSON or YAML parser. Raises ``Unreadable``."""
    decoder_of(kind)  # from here on the type is known
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert(_lenient(value, kind), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Unreadable(decoding_problem(error)) from None


def as_map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def is_large(value: object) -> bool:
    """Whether the lists and maps in a value have more than ``OBJECT_ENTRIES`` entries together."""
    unread, left = [value], OBJECT_ENTRIES
    while unread:
        part = unread.pop()
        if isinstance(part, dict | list):
            left -= len(part)
            if left < 0:
                return True
            unread += part.values() if isinstance(part, dict) else part
    return False


def _lenient(value: object, kind: type) -> object:
    """The value as Go reads it; a large one as it is, because Python takes seconds for it."""
    return value if is_large(value) else _as_go_reads(value, _type_info(kind))


def _as_go_reads(value: object, expected: inspect.Type) -> object:
    """The value without nulls, and with strings instead of numbers in maps of strings, such as quantities. A
    device name that is a number is kept: the device that it means is unknown."""
    most = getattr(expected, "max_length", None)
    if most is not None and isinstance(value, dict | list) and len(value) > most:
        return value  # it will be rejected as a whole
    match value, expected:
        case dict(), inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            types = {field.encode_name: field.type for field in fields}
            present = {key: entry for key, entry in value.items() if entry is not None}
            return {k: _as_go_reads(e, types[k]) if k in types else e for k, e in present.items()}
        case dict(), inspect.Metadata(type=inner):  # ``Labels``
            return _as_go_reads({k: "" if e is None else e for k, e in value.items()}, inner)
        case dict(), inspect.DictType(value_type=inspect.StrType()):
            return {key: _as_text(entry) for key, entry in value.items() if entry is not None}
        case dict(), inspect.DictType(value_type=inner):
            return {key: _as_go_reads(e, inner) for key, e in value.items() if e is not None}
        case list(), inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return [_as_go_reads(entry, inner) for entry in value]
        case _, inspect.UnionType(types=types):
            return _as_go_reads(value, types[0])  # the other type is None
    return value


def _as_text(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return str(value)
    return value


def decoding_problem(error: Exception) -> str:
    """The path and its problem: ``spec.containers.0: Expected object, got int``."""
    if not isinstance(error, msgspec.ValidationError):
        return "Invalid JSON"
    text = visible(str(error).replace("`", "").replace(" - at key in $", " - at $"))
    text, _, path = text.partition(" - at $")
    path = path.replace("[...]", ".*").replace("[", ".").replace("]", "").lstrip(".")
    return shorten(": ".join(filter(None, (path, text))))


_read_also: set[str] = set()
"""Domains, and names without a domain, that ``read_also`` added."""
NO_ENTRIES: dict[str, str] = {}
_last_labels: list[Mapping[str, str]] = [NO_ENTRIES]
"""The labels that were read last."""


def relevant_entries(entries: Labels) -> Mapping[str, str]:
    """The annotations that Stowage may read."""
    kept = {
        name: text
        for key, text in entries.items()
        if len(key) <= KEY and (name := _relevant_name(key)) is not None
    }
    return kept or NO_ENTRIES


def all_entries(entries: Labels) -> Mapping[str, str]:
    """The labels of a pod, with one string object for equal texts of all pods. Pods of a template that are
    read consecutively share one map."""
    if not entries:
        return NO_ENTRIES
    if entries == _last_labels[0]:
        return _last_labels[0]
    labels = {key: text for key, text in entries.items() if len(key) <= KEY}
    if len(entries) <= _SHARED_ENTRIES:  # more are unusual: they would fill the intern table
        labels = _last_labels[0] = interned(labels)
    return labels


@lru_cache(maxsize=4096)
def _relevant_name(key: str) -> str | None:
    """The key as one string object for all pods, None if it is not relevant.

    ``key`` has at most ``KEY`` characters, so the size of the cache is bounded.
    """
    return key if is_relevant(key) else None


def read_also(names: Iterable[str]) -> None:
    """Keep the annotations with these names, or with their domains, of all objects that are read from now
    on."""
    _read_also.update(name.partition("/")[0] for name in names)
    _relevant_name.cache_clear()


def is_relevant(key: str) -> bool:
    """Whether, by its name, an annotation or resource is about GPUs, queues, gangs or preemption."""
    domain, slash, _ = key.partition("/")
    known = f".{domain}".endswith(_DOMAINS) if slash else key.startswith(_UNQUALIFIED_PREFIXES)
    return known or domain in _read_also


def is_extended(resource: str) -> bool:
    """Kubernetes's ``IsExtendedResourceName`` (k8s.io/component-helpers)."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def drop_large_entries(
    labels: Mapping[str, str], annotations: Mapping[str, str], longest: int, total: int
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...], str]:
    """Labels and annotations of at most ``longest`` characters each, and ``total`` including their names.

    Third, the names of those that were dropped (the largest are dropped first); fourth, a problem if there
    are too many names to list, else "".
    """
    maps = labels, annotations
    if sum([len("".join(m)) + len("".join(m.values())) for m in maps if m]) <= longest:  # almost always
        return labels, annotations, (), ""
    sizes = [map(add, map(len, entries), map(len, entries.values())) for entries in maps]
    by_size = sorted(chain(zip(sizes[0], labels, repeat(0)), zip(sizes[1], annotations, repeat(1))))
    kept: tuple[dict[str, str], dict[str, str]] = {}, {}
    dropped = []
    for place, (size, key, which) in enumerate(by_size):
        text = maps[which][key]
        total -= size
        if total < 0:  # all later ones are at least as large
            dropped += [key for _, key, _ in by_size[place:]]
            break
        if len(text) > longest:
            dropped.append(key)
        else:
            kept[which][key] = text
    too_many = f"more than {LISTED_NAMES} annotations and labels are too large"
    return *kept, tuple(dropped[:LISTED_NAMES]), too_many if len(dropped) > LISTED_NAMES else ""


def interned(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries with one string object for equal texts of all objects."""
    return {sys.intern(key): sys.intern(text) for key, text in entries.items()}


def unix_seconds(timestamp: str | None) -> float:
    """A timestamp in Unix seconds; 0 if it is absent or malformed, because it only orders pods by age."""
    return _unix_seconds(timestamp) if timestamp and len(timestamp) <= _TIMESTAMP else 0.0


@lru_cache(maxsize=1024)  # short texts: each event of a pod repeats its times
def _unix_seconds(timestamp: str) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def micro_time() -> str:
    """The current time as a MicroTime, the format of times in a Lease and in an Event."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
