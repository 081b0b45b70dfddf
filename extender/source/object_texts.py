"""The objects in kubectl's output: JSON, or YAML of one or several documents.

A text contains a List, a NodeList or PodList, an array, or single objects. Objects of other kinds are
skipped. The others are read as those of a watch (``WatchedKind.read``): an object that is not fully readable
counts, with its problem, and one without a name is broken. JSON objects are decoded one at a time, because
the dicts of 30,000 pods take a gigabyte. YAML is parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import Raw, Struct, ValidationError

from extender.k8s.device_objects import NO_LAYOUTS
from extender.k8s.manifest import MALFORMED, Unreadable, decode, decoding_problem, read_value
from extender.k8s.objects import KubernetesObject, MigLayouts
from extender.source.errors import Unavailable
from extender.source.watched_kinds import KINDS_IN_FILES
from extender.untrusted.limits import SNAPSHOT_OBJECT, SNAPSHOT_YAML, shorten
from extender.untrusted.yaml_reader import TextError, bounded_json, yaml_documents

_NO_OBJECTS = "holds no Kubernetes objects"
_LISTS = {"List": "", **{f"{kind}List": kind for kind in KINDS_IN_FILES}}
"""The kind of the items of each kind of list, for items that do not name their kind."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The reason an object cannot be read at all."""

    reason: str


_Read: TypeAlias = KubernetesObject | Broken
Item: TypeAlias = _Read | None
"""None: an object of a kind that is ignored."""


class _Object(Struct):
    """The fields of an object, or of a list of objects, that are decoded first."""

    kind: str = ""
    items: list[Raw] | None = None


_JSON: Any = list[Raw] | _Object


class _Kind(Struct):
    kind: Any = ""
    apiVersion: Any = ""


def objects_of(text: bytes, file: str) -> Iterable[Item]:
    """The objects of a file. Raises ``Unavailable`` if it is neither JSON nor YAML, or has no objects, and
    ``UnicodeDecodeError``."""
    if text.lstrip().startswith((b"{", b"[")):
        return _of_json(text, file)
    if len(text) > SNAPSHOT_YAML:
        limit = f"{SNAPSHOT_YAML >> 20} MiB of YAML"
        raise Unavailable(f"{file}: is more than {limit}: use JSON ('kubectl get ... -o json')")
    return _of_documents(_yaml(text.decode(), file, None, _parse_early), file)


def objects_of_manifest(text: str, file: str, nodes: int) -> Iterable[Item]:
    """The objects of a text from a request, with at most ``nodes`` scalars, lists and maps. Raises
    ``Unavailable``."""
    return _of_documents(documents(text, file, nodes), file)


def documents(text: str, file: str, nodes: int) -> list[Any]:
    """The documents of a text from a request, at least one. Raises ``Unavailable``."""
    if not text.lstrip().startswith(("{", "[")):
        return _yaml(text, file, nodes)
    try:
        return [bounded_json(text, nodes)]
    except TextError as error:
        raise Unavailable(f"{file}: is not JSON: {error}") from None


def _yaml(
    text: str, file: str, nodes: int | None, hook: Callable[[dict[str, Any]], object] | None = None
) -> list[Any]:
    try:
        read = yaml_documents(text, nodes=nodes, hook=hook)
    except TextError as error:
        raise Unavailable(f"{file}: is not YAML: {error}") from None
    if not_empty := [document for document in read if document is not None]:
        return not_empty
    raise Unavailable(f"{file}: is empty")


def _of_documents(read: Iterable[Any], file: str) -> Iterator[Item]:
    for document in read:
        kind = _kind(document)
        items = (document.get("items") or []) if kind in _LISTS else document
        if isinstance(items, list):
            yield from (_item(item, _LISTS.get(kind, "")) for item in items)
        elif isinstance(items, _Read) or _kind(items):
            yield _item(items)
        else:
            raise Unavailable(f"{file}: {_NO_OBJECTS}")


def _of_json(text: bytes, file: str) -> Iterator[Item]:
    try:
        found = decode(text, _JSON)
    except ValidationError:
        raise Unavailable(f"{file}: {_NO_OBJECTS}") from None
    except MALFORMED as error:
        raise Unavailable(f"{file}: is not JSON: {shorten(str(error), 100)}") from None
    kind, items = ("", found) if isinstance(found, list) else (found.kind, found.items)
    if items is None and kind not in _LISTS:
        if not kind:
            raise Unavailable(f"{file}: {_NO_OBJECTS}")
        items = [Raw(text)]
    for item in items or ():
        if memoryview(item).nbytes > SNAPSHOT_OBJECT:
            raise Unavailable(f"{file}: a value has more than {SNAPSHOT_OBJECT} characters")
        yield _item(item, _LISTS.get(kind, kind))


def _parse_early(obj: dict[str, Any]) -> object:
    # Called while later objects are still being decoded: the dicts of 30,000 pods take a gigabyte, their
    # records do not. An ownerReference also has a kind, but no metadata.
    return _item(obj) if _kind(obj) in KINDS_IN_FILES and "metadata" in obj else obj


def _item(item: object, kind: str = "") -> Item:
    """``item``: JSON, output of the YAML parser, or already read. ``kind``: if it does not name its own."""
    if isinstance(item, _Read):
        return item
    try:
        read = decode(item, _Kind) if isinstance(item, Raw) else read_value(item, _Kind)
    except MALFORMED as error:
        is_json = not isinstance(error, ValidationError | Unreadable)
        return Broken(decoding_problem(error) if is_json else "is not an object")
    kind = (read.kind if isinstance(read.kind, str) else "") or kind
    if not kind:
        return Broken("has no kind")
    if kind not in KINDS_IN_FILES or (kind == "Workload" and "kueue" not in str(read.apiVersion)):
        return None
    try:
        record, _ = KINDS_IN_FILES[kind].read(item)
    except Unreadable as error:
        return Broken(shorten(f"{kind}: {error}"))
    return None if isinstance(record, MigLayouts) and record.problem == NO_LAYOUTS else record


def _kind(obj: object) -> str:
    kind = obj.get("kind") if isinstance(obj, dict) else None
    return kind if isinstance(kind, str) else ""
