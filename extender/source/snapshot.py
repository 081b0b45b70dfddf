"""A cluster from files as kubectl prints them: ``kubectl get nodes,pods -A -o json``.

A file is JSON or YAML (one or several documents) and contains a List, a NodeList or PodList, an array, or
single objects. Objects of other kinds are ignored. A broken item is reported and skipped. Any other file is
an error. JSON is read item by item, so a file may be larger than the memory; YAML is parsed as a whole.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from extender.k8s.device_objects import NO_LAYOUTS, MigLayouts
from extender.k8s.manifest import Unreadable
from extender.k8s.objects import REQUIRED_KINDS, Event, KubernetesObject, Listed, Node, Pod, Upserted
from extender.source.interface import Apply, BindConflict, BindError, Source, Unavailable
from extender.source.state_dump import Header, is_dump, parse
from extender.source.watched_kinds import AWAITED_KINDS, MANIFESTS
from extender.untrusted.json_stream import members
from extender.untrusted.limits import QUOTED, SNAPSHOT_OBJECT, SNAPSHOT_YAML, shorten
from extender.untrusted.yaml_reader import TextError, bounded_json, yaml_documents

_log = logging.getLogger(__name__)
_LOGGED_PROBLEMS = 20
_HEAD = 1024
"""Characters that tell the format of a file."""
_JSON = re.compile(r"\s*[{\[]")
_MEMBERS = 64
"""Members of a map that is no list of objects. An object has less than ten."""
_NO_OBJECTS = "holds no Kubernetes objects"
Opened: TypeAlias = Callable[[], TextIO]
"""Begins to read a text anew."""
_LISTS = {"List": "", **{f"{kind}List": kind for kind in MANIFESTS}}
"""The kind of the items of each kind of list, for items that do not name their kind."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with an item: the ``index``-th object of ``file``, from 0."""

    file: str
    index: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: item {self.index}: {self.reason}"


@dataclass(slots=True)
class Snapshot:
    """Nodes and pods by key, all other objects by kind and key, and the items that could not be read."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    others: dict[tuple[str, str], KubernetesObject] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """The first ones."""
    more_problems: int = 0
    dump: Header | None = None
    """What a service knew beside these objects, if it wrote the file (``GET /debug/state``)."""

    def add(self, text: str, file: str, nodes: int | None = None) -> None:
        """Add the objects of a text; of two with one name the later one counts. Raises ``Unavailable``.
        ``nodes``: as for ``documents``."""
        self.add_file(lambda: io.StringIO(text), file, nodes)

    def add_file(self, opened: Opened, file: str, nodes: int | None = None) -> None:
        """The same of a file."""
        for index, item in enumerate(self._items(opened, file, nodes)):
            match item:
                case Node():
                    self._report_duplicate(item.key in self.nodes, file, index, f"Node {item.key}")
                    self.nodes[item.key] = item
                case Pod():
                    self._report_duplicate(item.key in self.pods, file, index, f"Pod {item.key}")
                    self.pods[item.key] = item if item.uid else replace(item, uid=item.key)
                case MigLayouts(problem=problem) if problem == NO_LAYOUTS:
                    pass  # a ConfigMap with other data
                case _Broken(reason):
                    self._report(file, index, reason)
                case _ if item is not None:
                    is_known = (item.kind, item.key) in self.others
                    self._report_duplicate(is_known, file, index, item.key)
                    self.others[item.kind, item.key] = item

    def _items(self, opened: Opened, file: str, nodes: int | None) -> Iterable[_Item]:
        with opened() as begin:
            head = begin.read(_HEAD)
        if is_dump(head):
            with opened() as lines:
                self.dump, records = parse(lines, file)
            return records
        if nodes is None and _JSON.match(head):
            return _streamed(opened, file)
        with opened() as whole:
            text = whole.read(SNAPSHOT_YAML + 1)
        if len(text) > SNAPSHOT_YAML:
            limit = f"{SNAPSHOT_YAML >> 20} MiB of YAML"
            raise Unavailable(f"{file}: is more than {limit}: use JSON ('kubectl get ... -o json')")
        return _items(text, file, nodes)

    def _report(self, file: str, index: int, reason: str) -> None:
        if len(self.problems) < _LOGGED_PROBLEMS:
            self.problems.append(Problem(file, index, reason))
        else:
            self.more_problems += 1

    def _report_duplicate(self, is_known: bool, file: str, index: int, name: str) -> None:
        if is_known:
            self._report(file, index, f"{name} is a duplicate and replaces the earlier one")


def read(paths: Iterable[Path]) -> Snapshot:
    """The objects of all files. Raises ``Unavailable`` with the file and the problem."""
    snapshot = Snapshot()
    for path in paths:
        try:
            snapshot.add_file(_opener(path), str(path))
        except OSError as error:
            raise Unavailable(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unavailable(f"{path}: is not text") from None
    return snapshot


def _opener(path: Path) -> Opened:
    """How to read the text, from its begin each time. A pipe is read once, into memory."""
    with path.open("rb") as raw:
        begin = raw.read(4)
        encoding = json.detect_encoding(begin)  # ">" of PowerShell writes UTF-16
        if raw.seekable():
            return lambda: path.open(encoding=encoding, newline="\n")
        piped = begin + raw.read()
    return lambda: io.TextIOWrapper(io.BytesIO(piped), encoding, newline="\n")


class SnapshotSource(Source):
    """A cluster in memory that only binds change."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._snapshot, self._name = snapshot, name
        self.dump = snapshot.dump
        self._apply: Apply = lambda events: None

    def start(self, apply: Apply, applied: object = None, background: object = None) -> None:
        """Deliver everything before it returns."""
        for problem in self._snapshot.problems:
            _log.warning("snapshot: %s", problem)
        if more := self._snapshot.more_problems:
            _log.warning("snapshot: %d more problems", more)
        self._apply = apply
        for events in self.list_once():
            apply(events)

    def list_once(self) -> Iterator[Sequence[Event]]:
        nodes, pods, others = self._snapshot.nodes, self._snapshot.pods, self._snapshot.others
        events: list[Event] = [*map(Upserted, nodes.values()), Listed("Node", frozenset(nodes))]
        events += map(Upserted, others.values())
        yield [*events, *map(Upserted, pods.values()), Listed("Pod", frozenset(pods))]
        yield [
            Listed(kind, frozenset(key for of, key in others if of == kind))
            for kind in AWAITED_KINDS - REQUIRED_KINDS
        ]

    def stop(self) -> None:
        """Deliver no more binds."""
        self._apply = lambda events: None

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Remember the pod as bound, also a pod that is not in the snapshot. Raises ``BindError``."""
        known = self._snapshot.pods.get(pod.key, pod)
        if known.uid != pod.uid:
            raise BindConflict("the pod was recreated under its name")
        if known.node_name:
            raise BindConflict(f"the pod is already bound to {known.node_name}")
        if known.phase != "Pending" or known.deleting:
            raise BindConflict("the pod is not pending")
        if node not in self._snapshot.nodes:
            raise BindError(f"node {node} is not in the snapshot")
        bound = replace(known, node_name=node, annotations={**known.annotations, **(annotations or {})})
        self._snapshot.pods[pod.key] = bound
        self._apply([Upserted(bound)])

    async def look_up(self, pod: Pod) -> Pod | None:
        return self._snapshot.pods.get(pod.key)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        return [pod for pod in self._snapshot.pods.values() if pod.node_name == node]

    def describe(self) -> str:
        """The name and the numbers of nodes and pods."""
        return f"{self._name} ({len(self._snapshot.nodes)} nodes, {len(self._snapshot.pods)} pods)"


@dataclass(frozen=True, slots=True)
class _Broken:
    reason: str


_Parsed: TypeAlias = KubernetesObject | _Broken
_Item: TypeAlias = _Parsed | None
"""None: an object of a kind that is ignored."""


def _items(text: str, file: str, nodes: int | None) -> Iterator[_Item]:
    """The objects of a text that is parsed as a whole."""
    for document in documents(text, file, nodes, hook=_parse_early):
        kind = _kind(document)
        items = (document.get("items") or []) if kind in _LISTS else document
        if isinstance(items, list):
            yield from (_item(item, _LISTS.get(kind, "")) for item in items)
        elif isinstance(items, _Parsed) or _kind(items):
            yield _item(items)
        else:
            raise Unavailable(f"{file}: {_NO_OBJECTS}")


def _streamed(opened: Opened, file: str) -> Iterator[_Item]:
    """The objects of a JSON text, one after the other: the dicts of 30,000 pods take a gigabyte."""
    kind: object = None
    found: dict[str, Any] = {}
    listed = False
    try:
        with opened() as text:
            for name, value, is_item in members(text, SNAPSHOT_OBJECT):
                if is_item and name in ("", "items"):
                    # kubectl writes the kind of a list after its items, which have one of their own.
                    if name and kind is None and not _kind(value):
                        kind = _kind_in(opened)
                    yield _item(value, _LISTS.get(str(kind), str(kind or "")))
                    listed = True
                elif len(found) < _MEMBERS:
                    found[name] = value
                    kind = value if name == "kind" else kind
    except TextError as error:
        raise Unavailable(f"{file}: is not JSON: {error}") from None
    if found.get("items") or not (listed or _kind(found)):
        raise Unavailable(f"{file}: {_NO_OBJECTS}")
    if not listed and kind not in _LISTS:
        yield _item(found)


def _kind_in(opened: Opened) -> object:
    """The kind of the map in a JSON text, None without one."""
    with opened() as text:
        return next((value for name, value, _ in members(text, SNAPSHOT_OBJECT) if name == "kind"), None)


def documents(
    text: str, file: str, nodes: int | None = None, hook: Callable[[dict[str, Any]], object] | None = None
) -> list[Any]:
    """The documents of a JSON or YAML text, at least one. Raises ``Unavailable``.

    ``nodes``: the most scalars, lists and maps that the text may contain, None for any number in YAML.
    ``hook`` gives the value to use for a map of YAML.
    """
    is_json = _JSON.match(text)
    try:
        if is_json and nodes is not None:
            return [bounded_json(text, nodes)]
        read = yaml_documents(text, nodes=nodes, hook=hook)
    except TextError as error:
        raise Unavailable(f"{file}: is not {'JSON' if is_json else 'YAML'}: {error}") from None
    if not_empty := [document for document in read if document is not None]:
        return not_empty
    raise Unavailable(f"{file}: is empty")


def _parse_early(obj: dict[str, Any]) -> object:
    # Called while the rest is still being decoded: the dicts of 30,000 pods take a gigabyte, their records do
    # not. An ownerReference has a kind, too, but no metadata.
    return _item(obj) if _kind(obj) in MANIFESTS and "metadata" in obj else obj


def _item(item: object, kind: str = "") -> _Item:
    if isinstance(item, _Parsed):
        return item
    if not isinstance(item, dict):
        return _Broken("is not an object")
    kind = _kind(item) or kind
    if not kind:
        return _Broken("has no kind")
    if kind not in MANIFESTS:
        return None
    try:
        record = MANIFESTS[kind].from_value(item).record()
    except Unreadable as error:
        return _Broken(shorten(f"{kind} {_name(item)}: {error}"))
    return record if record.name else _Broken(f"{kind} without a name")


def _kind(obj: object) -> str:
    kind = obj.get("kind") if isinstance(obj, dict) else None
    return kind if isinstance(kind, str) else ""


def _name(item: dict[str, Any]) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return shorten(str(name), QUOTED) if name else "without a name"
