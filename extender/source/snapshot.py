"""A cluster from files: output of ``kubectl get nodes,pods -A -o json``, or the dump of a service."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from extender.k8s.objects import REQUIRED_KINDS, Event, KubernetesObject, Listed, Node, Pod, Upserted
from extender.source.errors import BindConflict, BindError, Unavailable
from extender.source.interface import Apply, Source
from extender.source.object_texts import Broken, Item, objects_of
from extender.source.state_dump import Header, is_dump, parse_dump
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.files import FileError, FileReader
from extender.untrusted.limits import STATE_DUMP, shorten

_log = logging.getLogger(__name__)
_LOGGED_PROBLEMS = 20


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
    """The first problems."""
    more_problems: int = 0
    dump: Header | None = None
    """What a service knew in addition to these objects, if it wrote the file (``GET /debug/state``)."""

    def add(self, text: str | bytes, file: str) -> None:
        """Add the objects of a text; the last of several with the same name wins. Raises ``Unavailable``."""
        content = text.encode() if isinstance(text, str) else text
        items: Iterable[Item]
        if is_dump(content):
            self.dump, items = parse_dump(content, file)
        else:
            items = objects_of(content, file)
        for index, item in enumerate(items):
            if isinstance(item, Broken):
                self._report(file, index, item.reason)
            elif item is not None:
                self._put(item, file, index)

    def _put(self, item: KubernetesObject, file: str, index: int) -> None:
        known: dict[Any, Any] = self.others
        if item.kind in ("Node", "Pod"):
            known = self.nodes if item.kind == "Node" else self.pods
        key, name = (item.kind, item.key) if known is self.others else item.key, f"{item.kind} {item.key}"
        if key in known:
            self._report(file, index, f"{name} is a duplicate and replaces the earlier one")
        known[key] = replace(item, uid=item.key) if isinstance(item, Pod) and not item.uid else item
        if item.problem:  # it counts as the larger use, as from a watch
            self._report(file, index, shorten(f"{name}: {item.problem}"))

    def _report(self, file: str, index: int, reason: str) -> None:
        if len(self.problems) < _LOGGED_PROBLEMS:
            self.problems.append(Problem(file, index, reason))
        else:
            self.more_problems += 1


def read(paths: Iterable[Path]) -> Snapshot:
    """The objects of all files, ``-`` for standard input. Raises ``Unavailable`` with the file's name."""
    snapshot, reader = Snapshot(), FileReader(STATE_DUMP)
    for path in paths:
        try:
            snapshot.add(reader.read(path), str(path))
        except FileError as error:
            raise Unavailable(str(error)) from None
        except UnicodeDecodeError:
            raise Unavailable(f"{path}: is not text") from None
    return snapshot


def moment_of(pods: Iterable[Pod]) -> float:
    """The earliest time at which a snapshot with these pods can be taken, in Unix seconds."""
    times = (max(pod.created, pod.started, pod.disrupted, pod.deleted, pod.finished) for pod in pods)
    return max(times, default=0.0)


class SnapshotSource(Source):
    """A cluster in memory, changed only by binds."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._snapshot, self._name = snapshot, name
        self.dump = snapshot.dump
        self._apply: Apply = lambda events: None

    def start(self, apply: Apply, backlog: object = None, background: object = None) -> None:
        """Deliver everything before returning. Waiting times of pods are those of the file's time."""
        self._apply = apply
        pods = self._snapshot.pods
        since = time.time() - (self.dump.at if self.dump else moment_of(pods.values()))
        for key, pod in pods.items():
            if pod.created and not pod.node_name:
                pods[key] = replace(pod, created=pod.created + since)
        for events in self.list_once():
            apply(events)

    def list_once(self) -> Iterator[Sequence[Event]]:
        for problem in self._snapshot.problems:
            _log.warning("snapshot: %s", problem)
        if more := self._snapshot.more_problems:
            _log.warning("snapshot: %d more problems", more)
        nodes, pods, others = self._snapshot.nodes, self._snapshot.pods, self._snapshot.others
        events: list[Event] = [*map(Upserted, nodes.values()), Listed("Node", frozenset(nodes))]
        events += map(Upserted, others.values())
        yield [*events, *map(Upserted, pods.values()), Listed("Pod", frozenset(pods))]
        yield [
            Listed(kind, frozenset(key for of, key in others if of == kind))
            for kind in WATCHED_KINDS.keys() - REQUIRED_KINDS
        ]

    def stop(self) -> None:
        """Stop delivering binds."""
        self._apply = lambda events: None

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Record the pod as bound, even if it is not in the snapshot. Raises ``BindError``."""
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
        return f"{self._name} ({len(self._snapshot.nodes):,} nodes, {len(self._snapshot.pods):,} pods)"
