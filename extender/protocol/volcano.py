"""The messages of Volcano's extender plugin, and how they are read and answered.

The names of the fields are those of Volcano's Go types at commit ed72c7c8 (v1.16.0-alpha.1): the outer ones
have JSON tags (``pkg/scheduler/plugins/extender/argument.go``), the types inside have none
(``pkg/scheduler/api/job_info.go`` and ``node_info.go``), so their keys are the capitalised Go names. Pods and
nodes in them are ordinary camelCase objects.

Volcano sends much more than an answer needs: with each node all its pods. A message is cut where the
nodes begin, which is always behind the task, and only the part before that is parsed. This is safe: no JSON
string contains an unescaped quote, and the part before is valid JSON only if the cut was in the outermost
object. Otherwise all of it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.messages import BadMessage
from extender.untrusted.limits import KEY, validation_problem
from extender.untrusted.visible import visible

VolcanoVerb: TypeAlias = Literal[
    "volcano/onSessionOpen",
    "volcano/onSessionClose",
    "volcano/predicate",
    "volcano/prioritize",
    "volcano/preemptable",
    "volcano/reclaimable",
    "volcano/allocate",
    "volcano/deallocate",
]
"""A verb, as its path and in the metrics."""
VOLCANO_VERBS: tuple[VolcanoVerb, ...] = get_args(VolcanoVerb)
WITHOUT_BODY: frozenset[VolcanoVerb] = frozenset({"volcano/onSessionOpen", "volcano/onSessionClose"})
"""The verbs whose message says nothing that Stowage needs. The first one sends the whole cluster."""


class TaskStatus(IntEnum):
    """What Volcano does with a task (``TaskStatus`` in ``pkg/scheduler/api/types.go``); others may follow."""

    PENDING = 1
    ALLOCATED = 2
    PIPELINED = 4
    RELEASING = 64


class Code(IntEnum):
    """Of a predicate (``pkg/scheduler/api/types.go``). A node with ``UNSCHEDULABLE`` stays a candidate for
    evictions; those with the two others do not."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3


class Vote(IntEnum):
    """On victims (``pkg/scheduler/plugins/util/util.go``). Without victims, the first and the last one mean
    the same: nobody is evicted by the votes of this tier of plugins."""

    REJECT = -1
    ABSTAIN = 0
    PERMIT = 1


_Text: TypeAlias = Annotated[str, Field(max_length=KEY)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", cache_strings="keys")


class Task(_Message):
    """``TaskInfo``: a pod, by its UID, and where and what it is in Volcano's session."""

    UID: _Text = Field(min_length=1)
    NodeName: _Text = ""
    Status: int = 0


class _TaskWithPod(_Message):
    Pod: PodManifest


class _Named(_Message):
    Name: str


class _OneTask(_Message):
    task: Task


class _OneTaskWithPod(_Message):
    task: _TaskWithPod


class _OneNode(_OneTask):
    node: _Named


class _ManyNodes(_OneTask):
    nodes: Annotated[list[_Named], Field(fail_fast=True)] | None


class _Eviction(_Message):
    evictor: Task
    evictees: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None


class _Evictor(_Message):
    evictor: _TaskWithPod


_Model = TypeVar("_Model", bound=_Message)


@dataclass(frozen=True, slots=True)
class NodeArgs:
    """Arguments of predicate. ``head`` has the task as JSON, ``counted`` the node with all tasks that Volcano
    counts there."""

    task: Task
    node: str
    head: bytes
    counted: bytes


@dataclass(frozen=True, slots=True)
class NodesArgs:
    """Arguments of prioritize. ``nodes`` are distinct names, ``head`` has the task as JSON."""

    task: Task
    nodes: list[str]
    head: bytes


@dataclass(frozen=True, slots=True)
class EvictionArgs:
    """Arguments of preemptable and reclaimable. ``evictees`` are unchanged, parallel to ``candidates``."""

    evictor: Task
    candidates: list[Task]
    evictees: list[dict[str, Any]]
    body: bytes


_NAME = rb'([^"\\\x00-\x1f]{1,253})"'
_NODE = re.compile(rb',"node":\{"Name":"' + _NAME)
_NODES = re.compile(rb',"nodes":(?:null\}|\[(?=\{"Name":"' + _NAME + rb"|\]))")
_NAMES = re.compile(rb'\{"Name":"' + _NAME + rb',"Node":')
_NODES_KEY = b',"nodes":['
_FIRST_NODE = _NODES_KEY + b'{"Name":"'
_LONGEST_NAME = 253 + len('{"Name":"","Node":')


def parse_predicate(body: bytes) -> NodeArgs:
    """Raises ``BadMessage``."""
    if (cut := _NODE.search(body)) and (task := _task_before(body, cut.start())):
        head, counted = body[: cut.start()] + b"}", body[cut.start() :]
        return NodeArgs(task, cut[1].decode(errors="replace"), head, counted)
    message = _read(_OneNode, body)
    return NodeArgs(message.task, message.node.Name, body, body)


def parse_prioritize(body: bytes) -> NodesArgs:
    """Raises ``BadMessage``."""
    if (cut := _NODES.search(body)) and (task := _task_before(body, cut.start())):
        names = dict.fromkeys(_NAMES.findall(body, cut.end()))
        return NodesArgs(task, [name.decode(errors="replace") for name in names], body[: cut.start()] + b"}")
    message = _read(_ManyNodes, body)
    return NodesArgs(message.task, [*dict.fromkeys(node.Name for node in message.nodes or ())], body)


def parse_eviction(body: bytes) -> EvictionArgs:
    """Raises ``BadMessage``."""
    message = _read(_Eviction, body)
    evictees = message.evictees or []
    return EvictionArgs(message.evictor, [_task(one) for one in evictees], evictees, body)


def parse_event(body: bytes) -> Task:
    """The task of allocate or deallocate. Raises ``BadMessage``."""
    return _read(_OneTask, body).task


def task_pod(head: bytes) -> Pod:
    """The pod of a task, for a pod that the watch has not shown yet. Raises ``BadMessage``."""
    return _read(_OneTaskWithPod, head).task.Pod.record()


def evictor_pod(body: bytes) -> Pod:
    """The same for the pod that may evict others."""
    return _read(_Evictor, body).evictor.Pod.record()


class NamesOnly:
    """A message to prioritize, reduced while it arrives to the task and the names of the nodes.

    With 1,000 nodes of 8 pods it has 60 MiB, and Volcano takes no node at all where the call fails.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._in_nodes = self._has_names = False

    def feed(self, chunk: bytes) -> bytes:
        """What is kept of the message so far and was not returned before."""
        data, kept = self._rest + chunk, b""
        if not self._in_nodes:
            cut = data.find(_FIRST_NODE)
            if cut < 0:
                split = max(len(data) - len(_FIRST_NODE) + 1, 0)
                self._rest = data[split:]
                return data[:split]
            self._in_nodes = True
            cut += len(_NODES_KEY)
            kept, data = data[:cut], data[cut:]
        names, end = [], 0
        for match in _NAMES.finditer(data):
            names.append(match[0])
            end = match.end()
        self._rest = data[max(end, len(data) - _LONGEST_NAME) :]
        if names:
            kept += (b"," if self._has_names else b"") + b"null},".join(names) + b"null}"
            self._has_names = True
        return kept

    def end(self) -> bytes:
        """The end of the message."""
        return b"]}" if self._in_nodes else self._rest


def encode_predicate(text: str, code: Code) -> bytes:
    """``PredicateResponse``; an empty text means that the pod fits."""
    return to_json({"status": visible(text), "code": int(code)})


def encode_priorities(scores: Mapping[str, float]) -> bytes:
    """``PrioritizeResponse``. Volcano fails the call if the map is null."""
    return to_json({"nodeScore": scores, "errorMessage": ""})


def encode_victims(vote: Vote, victims: Sequence[Mapping[str, Any]]) -> bytes:
    """``PreemptableResponse``. Volcano goes on with these objects, so they are whole."""
    return to_json({"status": int(vote), "victims": victims})


def encode_event(error: str = "") -> bytes:
    """``EventHandlerResponse``; an error undoes an allocation."""
    return to_json({"errorMessage": visible(error)})


def _task_before(body: bytes, end: int) -> Task | None:
    """The task of a message that is cut here; None where that is no message."""
    try:
        return _OneTask.model_validate_json(body[:end] + b"}").task
    except ValidationError:
        return None


def _task(evictee: object) -> Task:
    try:
        return Task.model_validate(evictee)
    except ValidationError as error:
        raise BadMessage(f"evictees{validation_problem(error)}") from None


def _read(model: type[_Model], body: bytes) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise BadMessage(validation_problem(error).removeprefix(": ")) from None
