"""The messages of Volcano's extender plugin: parsing and encoding.

The names of the fields are those of Volcano's Go types at commit ed72c7c8 (v1.16.0-alpha.1): the outer types
have JSON tags (``pkg/scheduler/plugins/extender/argument.go``), the inner ones have none
(``pkg/scheduler/api/job_info.go`` and ``node_info.go``), so their keys are the capitalized Go names. Pods and
nodes in them are ordinary camelCase objects.

Volcano sends much more than an answer needs: all pods of each node. A message is cut where the nodes begin,
which is always after the task, and only the part before that is parsed. This is safe: no JSON string contains
an unescaped quote, and the part before is valid JSON only if the cut was in the outermost object. Otherwise
the whole message is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, Raw, Struct
from msgspec.json import encode

from extender.k8s.objects import Pod
from extender.protocol.messages import BadMessage, decode_message, decode_pod
from extender.untrusted.limits import KEY
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
"""A verb, as in its path and in metrics."""
VOLCANO_VERBS: tuple[VolcanoVerb, ...] = get_args(VolcanoVerb)
WITHOUT_BODY: frozenset[VolcanoVerb] = frozenset({"volcano/onSessionOpen", "volcano/onSessionClose"})
"""The verbs whose messages contain nothing that Stowage needs. The first one sends the whole cluster."""


class TaskStatus(IntEnum):
    """The state of a task in Volcano (``TaskStatus`` in ``pkg/scheduler/api/types.go``); there may be
    others."""

    PENDING = 1
    ALLOCATED = 2
    PIPELINED = 4
    RELEASING = 64


class Code(IntEnum):
    """The result of a predicate (``pkg/scheduler/api/types.go``). A node with ``UNSCHEDULABLE`` remains a
    candidate for evictions; those with the other two errors do not."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3


class Vote(IntEnum):
    """The vote on victims (``pkg/scheduler/plugins/util/util.go``). Without victims, REJECT and PERMIT mean
    the same: this tier of plugins evicts no pods."""

    REJECT = -1
    ABSTAIN = 0
    PERMIT = 1


_Text: TypeAlias = Annotated[str, Meta(max_length=KEY)]


class Task(Struct, frozen=True, gc=False):
    """``TaskInfo``: a pod, identified by its UID, with its node and status in Volcano's session."""

    UID: Annotated[str, Meta(min_length=1, max_length=KEY)]
    NodeName: _Text = ""
    Status: int = 0


class _TaskWithPod(Struct):
    Pod: Raw


class _Named(Struct, gc=False):
    Name: str


class _OneTask(Struct):
    task: Task


class _OneTaskWithPod(Struct):
    task: _TaskWithPod


class _OneNode(_OneTask):
    node: _Named


class _ManyNodes(_OneTask):
    nodes: list[_Named] | None


class _Eviction(Struct):
    evictor: Task
    evictees: list[Task] | None


class _WholeEvictees(Struct):
    evictees: list[Raw] | None


class _Evictor(Struct):
    evictor: _TaskWithPod


@dataclass(frozen=True, slots=True)
class NodeArgs:
    """Arguments of predicate. ``head`` contains the task as JSON, ``counted`` the node with all tasks that
    Volcano counts there."""

    task: Task
    node: str
    head: bytes
    counted: bytes


@dataclass(frozen=True, slots=True)
class NodesArgs:
    """Arguments of prioritize. ``nodes`` are distinct names, ``head`` contains the task as JSON."""

    task: Task
    nodes: list[str]
    head: bytes


@dataclass(frozen=True, slots=True)
class EvictionArgs:
    """Arguments of preemptable and reclaimable. ``evictees`` are their JSON, parallel to ``candidates``."""

    evictor: Task
    candidates: list[Task]
    evictees: list[Raw]
    body: bytes


_NAME = rb'([^"\\\x00-\x1f]{1,253})"'
_NODE = re.compile(rb',"node":\{"Name":"' + _NAME)
_NAMES = re.compile(rb'\{"Name":"' + _NAME + rb',"Node":')
_NODES_KEY = b',"nodes":['
_FIRST_NODE = _NODES_KEY + b'{"Name":"'
_LONGEST_NAME = 253 + len('{"Name":"","Node":')


def parse_predicate(body: bytes) -> NodeArgs:
    """Arguments of predicate. Raises ``BadMessage``."""
    if cut := _NODE.search(body):
        head, counted = body[: cut.start()] + b"}", body[cut.start() :]
        with suppress(BadMessage):  # the part before the node need not be a message
            task = decode_message(head, _OneTask).task
            return NodeArgs(task, cut[1].decode(errors="replace"), head, counted)
    message = decode_message(body, _OneNode)
    return NodeArgs(message.task, message.node.Name, body, body)


def parse_prioritize(body: bytes) -> NodesArgs:
    """Arguments of prioritize, reduced by ``NamesOnly`` or whole. Raises ``BadMessage``."""
    message = decode_message(body, _ManyNodes)
    return NodesArgs(message.task, [*dict.fromkeys(node.Name for node in message.nodes or ())], body)


def parse_eviction(body: bytes) -> EvictionArgs:
    """Arguments of preemptable and reclaimable. Raises ``BadMessage``."""
    message = decode_message(body, _Eviction)  # first, because the JSON is larger than the decoded tasks
    evictees = decode_message(body, _WholeEvictees).evictees or []
    return EvictionArgs(message.evictor, message.evictees or [], evictees, body)


def parse_event(body: bytes) -> Task:
    """The task of allocate or deallocate. Raises ``BadMessage``."""
    return decode_message(body, _OneTask).task


def task_pod(head: bytes) -> Pod:
    """The pod of a task, for pods that the watch has not observed yet. Raises ``BadMessage``."""
    return decode_pod(decode_message(head, _OneTaskWithPod).task.Pod)


def evictor_pod(body: bytes) -> Pod:
    """The pod that may evict others. Raises ``BadMessage``."""
    return decode_pod(decode_message(body, _Evictor).evictor.Pod)


class NamesOnly:
    """A prioritize message, reduced to the task and the node names while it arrives.

    With 1,000 nodes of 8 pods it has 60 MiB, and Volcano chooses no node if the call fails.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._in_nodes = self._has_names = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the parts of the message so far that are kept and have not been returned yet."""
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
        """The last part of the message."""
        return b"]}" if self._in_nodes else self._rest


def encode_predicate(text: str, code: Code) -> bytes:
    """``PredicateResponse``; an empty text means that the pod fits."""
    return encode({"status": visible(text), "code": int(code)})


def encode_priorities(scores: Mapping[str, float]) -> bytes:
    """``PrioritizeResponse``. Volcano fails the call if the map is null."""
    return encode({"nodeScore": scores, "errorMessage": ""})


def encode_victims(vote: Vote, victims: Sequence[Raw]) -> bytes:
    """``PreemptableResponse``. Volcano continues with these objects, so they are complete."""
    return encode({"status": int(vote), "victims": victims})


def encode_event(error: str = "") -> bytes:
    """``EventHandlerResponse``; an error reverts an allocation."""
    return encode({"errorMessage": visible(error)})
