"""How Stowage reads a Kubernetes object: one decoder for all kinds, and the metadata that every object has.

A kind is a ``Manifest``: the fields that Stowage reads, under the names of the API. msgspec skips the text of
all others, nine tenths of a pod or node, without checking more than the structure of its JSON. It takes only
what is exactly as the types say. Anything else is read again as Go and Kubernetes read it: null is as good as
absent, and a quantity may be a number ("cpu: 1").

An object of the API server is never left out because of one field: what cannot be read of it is
(``Manifest.salvaged``), and the kind says what that counts as.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, reduce
from itertools import chain, count, repeat
from operator import add, getitem
from threading import Lock
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from extender.untrusted.limits import DEPTH, KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import visible

_T = TypeVar("_T")

# Domains (with their subdomains) and unqualified prefixes of annotations about GPUs, queues, gangs or
# preemption. All others are dropped: on most pods they are larger than everything that is kept.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com"),
    *(".scheduling.x-k8s.io", ".jobset.sigs.k8s.io", ".leaderworkerset.sigs.k8s.io", ".ray.io"),
    *(".cluster-autoscaler.kubernetes.io", ".karpenter.sh"),
)
_SHARED_ENTRIES = 64  # no template has as many labels
_LARGEST = 1 << 63
_TIMESTAMP = 40  # characters; RFC 3339 with nanoseconds and an offset has 35
_UNQUALIFIED_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|$)|[][{}]', re.DOTALL)
"""Brackets, and texts, which may have some inside."""
_FIELDS_LEFT_OUT = 8
"""Of one object, one by one. If more cannot be read, whole parts such as ``spec.containers`` are left out."""
_IDENTITY = (["metadata", "name"], ["metadata", "namespace"], ["metadata", "uid"])

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A small hashable map from name to value, sorted by name. Quantities stay as they were written."""
Texts: TypeAlias = dict[str, str]
"""A map in which an entry that is null does not count, such as one of quantities."""
Labels: TypeAlias = Annotated[Texts, Meta(extra={"null": ""})]
"""A map in which null is an empty text."""
Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number as the API server has it; JSON has longer ones, which no float can hold."""
Name: TypeAlias = Annotated[str, Meta(max_length=KEY)]
"""The name of an object. The API server allows 253 characters, so it serves no object with a longer one."""


class Unreadable(ValueError):
    """An object has not the form of its kind. The text says where, in at most ``PROBLEM`` characters."""


# No part of a manifest refers back to a whole, so the garbage collector need not look at any of them.
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
    ownerReferences: tuple[OwnerManifest, ...] = ()

    @property
    def namespace_or_default(self) -> str:
        """One text for all objects of a namespace."""
        return sys.intern(self.namespace or "default")

    @property
    def controller(self) -> OwnerManifest | None:
        return next((owner for owner in self.ownerReferences if owner.controller), None)


class Named:
    """A record of an object that has no namespace."""

    __slots__ = ()
    name: str

    @property
    def key(self) -> str:
        return self.name


class Namespaced:
    """A record of an object in a namespace."""

    __slots__ = ()
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Manifest(Struct, frozen=True, gc=False):
    """The part of an object that Stowage reads. Its ``record()`` is what it keeps of it."""

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
    def salvaged(cls, text: bytes | msgspec.Raw) -> tuple[Self, str, tuple[str, ...]]:
        """What of an object can be read, what cannot be ("" if all can), and the fields that are left out for
        that, as ``.spec.containers``. Names in its metadata that are too long are cut. Raises ``Unreadable``
        if it has no name."""
        try:
            return cls.from_json(text), "", ()
        except Unreadable as error:
            problem = str(error)
        try:
            manifest, left_out = _repaired(_as_go_reads(decode(text, Any), _type_info(cls)), cls)
        except MALFORMED:
            raise Unreadable(problem) from None
        if not manifest.metadata.name:
            raise Unreadable(problem)
        return manifest, problem, left_out

    @classmethod
    def from_value(cls, value: object) -> Self:
        """The same of what a JSON or YAML parser has made. Raises ``Unreadable``."""
        return read_value(value, cls)

    record: ClassVar[Callable[..., Any]]


MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)
"""What the decoder raises."""


_type_info: Callable[[object], inspect.Type] = lru_cache(inspect.type_info)
_decoders: dict[Any, Any] = {}
_making = Lock()


def decoder_of(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """The decoder of a type. msgspec (0.22) looks at a type, and at those in it, when it first decodes one;
    the process crashes if two threads do that at once."""
    if kind not in _decoders:
        with _making:
            _decoders[kind] = msgspec.json.Decoder(kind)
    decoder: msgspec.json.Decoder[_T] = _decoders[kind]
    return decoder


def decode(text: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Without what is nested deeper than anything that is read: users write such values into free fields, as
    the parameters of a claim, and the decoder refuses all that is around them. Raises ``MALFORMED``."""
    try:
        return decoder_of(kind).decode(text)
    except RecursionError:
        return decoder_of(kind).decode(_outer_levels(bytes(text)))


def _outer_levels(text: bytes) -> bytes:
    """The JSON with 0 for each list or map that is nested deeper than ``DEPTH``."""
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
    """The value without the fields that cannot be read, and these. Raises ``Unreadable``."""
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
    raise AssertionError  # each try has one field less


def _path_of(error: msgspec.ValidationError) -> list[Any]:
    """Of what cannot be read: names of fields, and places in lists. A map is read as a whole."""
    path = str(error).rpartition("`$")[2].partition("[...]")[0]
    return [int(step) if step.isdecimal() else step for step in re.findall(r"[.\[](\w+)", path)]


def read_value(value: object, kind: type[_T]) -> _T:
    """A part of a manifest, of what a JSON or YAML parser has made. Raises ``Unreadable``."""
    decoder_of(kind)  # from here on the type is known
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert(_as_go_reads(value, _type_info(kind)), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Unreadable(decoding_problem(error)) from None


def _as_go_reads(value: object, expected: inspect.Type) -> object:
    """The value without nulls, and with texts in the place of numbers in maps of texts, such as those of
    quantities. The name of a device that is a number stays one: nobody knows which device it means."""
    most = getattr(expected, "max_length", None)
    if most is not None and isinstance(value, dict | list) and len(value) > most:
        return value  # it will be refused as a whole
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
            return _as_go_reads(value, types[0])  # the other one is None
    return value


def _as_text(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return str(value)
    return value


def decoding_problem(error: Exception) -> str:
    """The path and what is wrong there: ``spec.containers.0: Expected object, got int``."""
    if not isinstance(error, msgspec.ValidationError):
        return "Invalid JSON"
    text = visible(str(error).replace("`", "").replace(" - at key in $", " - at $"))
    text, _, path = text.partition(" - at $")
    path = path.replace("[...]", ".*").replace("[", ".").replace("]", "").lstrip(".")
    return shorten(": ".join(filter(None, (path, text))))


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
    """The labels of a pod, with one string object for equal texts of all pods. Pods of one template that are
    read one after the other share one object."""
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


def is_relevant(key: str) -> bool:
    """Whether an annotation or resource is about GPUs, queues, gangs or preemption, by its name."""
    domain, slash, _ = f".{key}".partition("/")
    return domain.endswith(_DOMAINS) if slash else key.startswith(_UNQUALIFIED_PREFIXES)


def is_extended(resource: str) -> bool:
    """As Kubernetes says it (``IsExtendedResourceName`` in k8s.io/component-helpers)."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def drop_large_entries(
    labels: Mapping[str, str], annotations: Mapping[str, str], longest: int, total: int
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...], str]:
    """Labels and annotations of at most ``longest`` characters each, and ``total`` together with their names.

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
        if total < 0:  # all that follow are at least as large
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


@lru_cache(maxsize=1024)  # of short texts: the times of one pod come again with each of its events
def _unix_seconds(timestamp: str) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def micro_time() -> str:
    """Now as a MicroTime, the format of times in a Lease and in an Event."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
