"""The state of a cluster from files, in the forms that kubectl prints: ``kubectl get nodes,pods -A -o json``.

JSON or YAML (also of several documents); a List, NodeList or PodList, an array, or single objects. Other
kinds are passed over. A broken item is reported and skipped; a file that is none of all this is an error.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from extender.k8s.manifests import MANIFESTS
from extender.k8s.objects import (
    DEVICE_KINDS,
    Event,
    Kind,
    KoordinatorDevice,
    Listed,
    MigLayouts,
    Node,
    Pod,
    Upserted,
)
from extender.k8s.resource_api.objects import DeviceClass, Record, ResourceClaim, ResourceSlice
from extender.source.interface import Apply, BindConflict, BindError, Lease, Unavailable
from extender.untrusted.limits import QUOTED, shorten
from extender.untrusted.validation import validation_problem
from extender.untrusted.yaml_reader import TextError, bounded_json, json_document, yaml_documents

_log = logging.getLogger(__name__)
_SHOWN = 20  # broken items in the log; a file full of them must not bury everything else
_LISTS = {"List": "", **{f"{kind}List": kind for kind in MANIFESTS}}  # items may not name their kind


@dataclass(frozen=True, slots=True)
class Problem:
    """An item that was skipped: the ``index``-th object of ``file``, from 0."""

    file: str
    index: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: item {self.index}: {self.reason}"


@dataclass(slots=True)
class Snapshot:
    """Nodes and pods by key, what there is beside them by kind and key, and what could not be read."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    devices: dict[tuple[str, str], Record | KoordinatorDevice | MigLayouts] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, text: str, file: str, nodes: int | None = None) -> None:
        """Take in the objects of a text; of two with one name the later counts. Raises ``Unavailable``.

        ``nodes``: at most so many scalars, lists and maps; a file of the operator may have any number.
        """
        for index, item in enumerate(_items(text, file, nodes)):
            match item:
                case Node():
                    self._note_again(item.key in self.nodes, file, index, f"Node {item.key}")
                    self.nodes[item.key] = item
                case Pod():
                    self._note_again(item.key in self.pods, file, index, f"Pod {item.key}")
                    self.pods[item.key] = item
                case MigLayouts() if not item.layouts:
                    pass  # a ConfigMap of something else
                case ResourceSlice() | ResourceClaim() | DeviceClass() | KoordinatorDevice() | MigLayouts():
                    self._note_again(
                        (item.kind, item.key) in self.devices, file, index, item.key or item.name
                    )
                    self.devices[item.kind, item.key] = item
                case _Broken(reason):
                    self.problems.append(Problem(file, index, reason))

    def _note_again(self, known: bool, file: str, index: int, name: str) -> None:
        if known:
            self.problems.append(Problem(file, index, f"{name} comes a second time, this one counts"))


def read(paths: Iterable[Path]) -> Snapshot:
    """The objects of all files together. Raises ``Unavailable`` with the file and what is wrong with it."""
    snapshot = Snapshot()
    for path in paths:
        try:
            raw = path.read_bytes()
            text = raw.decode(json.detect_encoding(raw))  # PowerShell's ">" writes UTF-16
        except OSError as error:
            raise Unavailable(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unavailable(f"{path}: is not text") from None
        del raw
        snapshot.add(text, str(path))
    return snapshot


class SnapshotSource:
    """A cluster that changes by binds alone, and in memory only."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._snapshot = snapshot
        self._name = name
        self._apply: Apply = lambda events: None

    def start(self, apply: Apply) -> None:
        """Deliver everything at once, before it returns."""
        problems = self._snapshot.problems
        for problem in problems[:_SHOWN]:
            _log.warning("Skipped: %s", problem)
        if len(problems) > _SHOWN:
            _log.warning("Skipped: %d more", len(problems) - _SHOWN)
        self._apply = apply
        nodes, pods = self._snapshot.nodes, self._snapshot.pods
        events: list[Event] = [*map(Upserted, nodes.values()), Listed("Node", frozenset(nodes))]
        events += map(Upserted, self._snapshot.devices.values())
        apply([*events, *map(Upserted, pods.values()), Listed("Pod", frozenset(pods))])
        known = self._snapshot.devices
        apply([Listed(kind, frozenset(key for of, key in known if of == kind)) for kind in DEVICE_KINDS])

    def follow_mig_layouts(self, namespace: str, name: str) -> None:
        """Whatever the files have of them is delivered."""

    def stop(self) -> None:
        """Nothing runs."""
        self._apply = lambda events: None

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Remember the pod as bound, also one that the snapshot does not have. Raises ``BindError``."""
        known = self._snapshot.pods.get(pod.key, pod)
        if known.uid != pod.uid:
            raise BindConflict("the pod was made anew under its name")
        if known.node_name:
            raise BindConflict(f"the pod is bound to {known.node_name} already")
        if known.phase != "Pending" or known.deleting:
            raise BindConflict("the pod is not pending")
        if node not in self._snapshot.nodes:
            raise BindError(f"node {node} is not in the snapshot")
        bound = replace(known, node_name=node, annotations={**known.annotations, **(annotations or {})})
        self._snapshot.pods[pod.key] = bound
        self._apply([Upserted(bound)])

    async def look_up(self, pod: Pod) -> Pod | None:
        """The pod of this name in the snapshot."""
        return self._snapshot.pods.get(pod.key)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """The pods of this node in the snapshot."""
        return [pod for pod in self._snapshot.pods.values() if pod.node_name == node]

    async def caught_up(self) -> bool:
        """Always: nothing changes."""
        return True

    def interruption(self) -> None:
        """Never."""

    async def relist(self) -> None:
        """Nothing is new."""

    def lease(self, namespace: str, name: str, seconds: int) -> Lease:
        """Raises ``Unavailable``."""
        raise Unavailable("leader_election: a snapshot has no Lease")

    def write_only_while(self, allowed_for: Callable[[], float]) -> None:
        """There is no Lease to hold."""

    def staleness(self) -> Mapping[Kind, float]:
        """Empty: there is nothing newer."""
        return {}

    def server_version(self) -> str:
        """Unknown."""
        return ""

    def describe(self) -> str:
        """The name and how much there is."""
        return f"{self._name} ({len(self._snapshot.nodes)} nodes, {len(self._snapshot.pods)} pods)"


@dataclass(frozen=True, slots=True)
class _Broken:
    reason: str


_Item: TypeAlias = (
    Node | Pod | Record | KoordinatorDevice | MigLayouts | _Broken | None
)  # None: not of a kind that is read
_READ = (Node, Pod, ResourceSlice, ResourceClaim, DeviceClass, KoordinatorDevice, MigLayouts, _Broken)


def _items(text: str, file: str, nodes: int | None) -> Iterator[_Item]:
    for document in _documents(text, file, nodes):
        kind = _kind(document)
        items = (document.get("items") or []) if kind in _LISTS else document
        if isinstance(items, list):
            yield from (_item(item, _LISTS.get(kind, "")) for item in items)
        elif isinstance(items, _READ) or _kind(items):
            yield _item(items)
        else:
            raise Unavailable(f"{file}: holds no Kubernetes objects")


def _documents(text: str, file: str, nodes: int | None) -> list[Any]:
    is_json = re.match(r"\s*[{\[]", text)
    try:
        if is_json:
            return [json_document(text, _narrowed) if nodes is None else bounded_json(text, nodes)]
        documents = yaml_documents(text, nodes=nodes, hook=_narrowed)
    except TextError as error:
        raise Unavailable(f"{file}: is not {'JSON' if is_json else 'YAML'}: {error}") from None
    if documents := [one for one in documents if one is not None]:
        return documents
    raise Unavailable(f"{file}: is empty")


def _narrowed(obj: dict[str, Any]) -> object:
    # While the rest is still being parsed: the dicts of 30,000 pods are a gigabyte, their records are not.
    # (An ownerReference has a kind, too, but no metadata.)
    return _item(obj) if _kind(obj) in MANIFESTS and "metadata" in obj else obj


def _item(item: object, kind: str = "") -> _Item:
    if isinstance(item, _READ):
        return item
    if not isinstance(item, dict):
        return _Broken("is no object")
    kind = _kind(item) or kind
    if not kind:
        return _Broken("has no kind")
    if kind not in MANIFESTS:
        return None
    try:
        record = MANIFESTS[kind].model_validate(item).record()
    except ValidationError as error:
        return _Broken(shorten(f"{kind} {_name(item)}: {validation_problem(error)}"))
    return record if record.name else _Broken(f"{kind} without a name")


def _kind(obj: object) -> str:
    kind = obj.get("kind") if isinstance(obj, dict) else None
    return kind if isinstance(kind, str) else ""


def _name(item: dict[str, Any]) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return shorten(str(name), QUOTED) if name else "without a name"
