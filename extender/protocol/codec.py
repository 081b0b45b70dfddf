"""Parses requests of kube-scheduler (``messages.py``) and encodes replies.

Pods and nodes in a message are ordinary camelCase objects. Replies contain all fields, with ``null`` for
unused ones.

Only the parts of a message that the verbs read are decoded: 60 MiB of JSON may contain millions of other
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw, Struct
from msgspec.json import encode

from extender.k8s.objects import Pod
from extender.protocol.messages import (
    BadMessage,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
    Victims,
    decode_message,
    decode_pod,
    filter_error,
)
from extender.protocol.node_names import NO_NAMES, Bytes, NodeNames
from extender.untrusted.limits import KEY, MESSAGE_NAMES, MESSAGE_POD, MESSAGE_VICTIMS, NODE_VICTIMS

_NULL = Raw(b"null")
_T = TypeVar("_T")


class _PodMetadata(Struct):
    uid: str
    resourceVersion: str = ""


class _Pod(Struct):
    metadata: _PodMetadata


class _MessageWithPod(Struct):
    Pod: _Pod


class _NodeMetadata(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1)]


class _Node(Struct, gc=False):
    metadata: _NodeMetadata


class _Nodes(Struct):
    items: Annotated[list[_Node], Meta(max_length=MESSAGE_NAMES)] | None = None


class _WholeNodes(Struct):
    items: list[Raw] | None = None


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Arguments of filter and prioritize. ``nodes`` are the objects as sent, parallel to ``names``; None if
    kube-scheduler sent only names (``nodeCacheCapable: true``). ``head``: the message up to its names, empty
    if they are not at its end."""

    pod: Pod
    names: NodeNames
    nodes: list[Raw] | None = None
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes that fit, in the order of the request, and all others by reason.

    ``failed``: evicting pods may help; ``unresolvable``: it cannot. ``error`` fails the scheduling attempt.
    ``which``: (count,) whether each name in the request fits, None if they were not evaluated.
    """

    names: NodeNames = NO_NAMES
    failed: Mapping[str, NodeNames] = field(default_factory=dict)
    unresolvable: Mapping[str, NodeNames] = field(default_factory=dict)
    error: str = ""
    which: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class ProposedVictims:
    """A node on which pods may be preempted: UIDs of the victims, highest priority first."""

    victims: list[str]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The pod that may preempt others, and the candidates by node name."""

    pod: Pod
    candidates: dict[str, ProposedVictims]


Watched: TypeAlias = Callable[[str], Pod | None]
"""Maps a UID to the pod as observed by the watch, None if it has not been observed."""


def parse_filter(body: bytes, watched: Watched = lambda uid: None) -> FilterArgs:
    """Arguments of filter and prioritize. Raises ``BadMessage``."""
    names, head, rest = _split_names(body)
    if names is not None and (known := watched_pod(rest, watched)) is not None:
        return FilterArgs(known, names, head=head)
    message = decode_message(rest, ExtenderArgs)
    pod = _pod(message.Pod)
    if names is not None:
        return FilterArgs(pod, names, head=head)
    if message.NodeNames != _NULL:
        array = bytes(message.NodeNames)
        if array.count(b",") >= MESSAGE_NAMES:  # before they are parsed
            raise BadMessage(f"NodeNames: more than {MESSAGE_NAMES}")
        return FilterArgs(pod, NodeNames.of(decode_message(array, list[str])))
    if message.Nodes == _NULL:
        raise BadMessage("expected NodeNames or Nodes")
    nodes = decode_message(message.Nodes, _Nodes).items or []  # first: smaller than whole nodes
    whole = decode_message(message.Nodes, _WholeNodes).items or []
    return FilterArgs(pod, NodeNames.of(node.metadata.name for node in nodes), whole)


def watched_pod(message: bytes, watched: Watched) -> Pod | None:
    """The pod of a message if the watch has observed the same version of it: parsing it takes longer than all
    other parts of an answer. The observed pod is used instead of the message's."""
    try:
        metadata = decode_message(message, _MessageWithPod).Pod.metadata
    except BadMessage:  # the parser of the whole message reports the error
        return None
    pod, version = watched(metadata.uid), metadata.resourceVersion
    return pod if pod is not None and version and pod.version == version else None


def _pod(text: Raw) -> Pod:
    if text == _NULL:
        raise BadMessage("Pod is missing")
    if memoryview(text).nbytes > MESSAGE_POD:
        raise BadMessage(f"Pod: more than {MESSAGE_POD} bytes")
    return decode_pod(text)


_NAMES = b',"NodeNames":["'


def _split_names(body: bytes) -> tuple[NodeNames | None, bytes, bytes]:
    """The names at the end of a message, where kube-scheduler writes them; the message up to them; and the
    message without them.

    This is safe: no JSON string contains an unescaped quote, and the message without the names is valid JSON
    only if they were in the outermost object. For a pod that the watch has observed the rest is not parsed; a
    caller that writes anything other than JSON there still gets the answer for the given pod and names.
    """
    start = body.find(_NAMES)
    names = NodeNames.at_the_end(body, start + len(_NAMES)) if start >= 0 else None
    if names is None:
        return None, b"", body
    head = body[: start + len(_NAMES) - len(b'["')]
    return names, head, head + b"null}"


def has_names(body: bytes, head: bytes, names: NodeNames) -> bool:
    """Whether a message consists of this head followed by exactly these names."""
    array = names.json()
    return (
        len(body) == len(head) + len(array) + 1
        and body.startswith(head)
        and body.startswith(array, len(head))
        and body.endswith(b"}")
    )


def parse_preempt(body: bytes) -> PreemptArgs:
    """Arguments of preempt, with victims in either form. Raises ``BadMessage``."""
    message = decode_message(body, ExtenderPreemptionArgs)
    found = _candidates(
        message.NodeNameToMetaVictims or {},
        lambda pods: [pod.UID for pod in _victims(pods, b'"UID"', list[MetaPod])],
    )
    found |= _candidates(
        message.NodeNameToVictims or {},
        lambda pods: [pod.metadata.uid for pod in _victims(pods, b'"metadata"', list[_Pod])],
    )
    if len(found) > MESSAGE_NAMES or any(len(node) > KEY for node in found):
        raise BadMessage(f"more than {MESSAGE_NAMES} nodes, or a name with more than {KEY} characters")
    if sum(len(candidate.victims) for candidate in found.values()) > MESSAGE_VICTIMS:
        raise BadMessage(f"more than {MESSAGE_VICTIMS} victims")
    return PreemptArgs(_pod(message.Pod), found)


def _candidates(
    by_node: Mapping[str, Victims | None], uids_of: Callable[[bytes], list[str]]
) -> dict[str, ProposedVictims]:
    return {
        node: ProposedVictims(uids_of(bytes(victims.Pods)), victims.NumPDBViolations)
        if victims
        else ProposedVictims([])
        for node, victims in by_node.items()
    }


def _victims(pods: bytes, key: bytes, kind: type[list[_T]]) -> list[_T]:
    """The victims on one node. Each has this key, so they are counted before they are parsed."""
    if pods.count(key) > NODE_VICTIMS:
        raise BadMessage(f"more than {NODE_VICTIMS} victims on a node")
    return decode_message(pods, kind) if pods != b"null" else []


def parse_bind(body: bytes) -> ExtenderBindingArgs:
    """Arguments of bind, none of them empty. Raises ``BadMessage``."""
    return decode_message(body, ExtenderBindingArgs)


def encode_filter(result: FilterResult, nodes: Sequence[Raw] | None = None) -> bytes:
    """A filter reply. ``nodes`` are those of the request; the fitting ones are returned unchanged."""
    if result.error:
        return filter_error(result.error)
    if nodes is None:
        fitting = b'"Nodes":null,"NodeNames":%b' % result.names.json()
    else:
        items = b",".join(nodes if result.which is None else compress(nodes, result.which.tolist()))
        fitting = b'"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null' % items
    failed = b'"FailedNodes":%b' % _reasons(result.failed)
    unresolvable = b'"FailedAndUnresolvableNodes":%b' % _reasons(result.unresolvable)
    return b'{%b,%b,%b,"Error":""}' % (fitting, failed, unresolvable)


_BETWEEN_HOSTS = tuple(b'","Score":%d},{"Host":"' % score for score in range(11))


def encode_priorities(names: NodeNames, scores: Bytes) -> bytes:
    """A prioritize reply. ``scores``: (len(names),) from 0 to 10."""
    if not names:
        return b"[]"
    hosts = names.interleave(_BETWEEN_HOSTS, scores, head=b'[{"Host":"', cut=len(b',{"Host":"'))
    return hosts + b"]"


def encode_preempt(candidates: Mapping[str, ProposedVictims]) -> bytes:
    """A preempt reply with the remaining candidates by node, and victims in the short form. Without any,
    there is no preemption."""
    victims = {
        name: MetaVictims([*map(MetaPod, kept.victims)], kept.pdb_violations)
        for name, kept in candidates.items()
    }
    return encode(ExtenderPreemptionResult(victims))


def _reasons(refused: Mapping[str, NodeNames]) -> bytes:
    """A JSON object from node name to reason."""
    members = [names.interleave((b'":%b,"' % encode(reason),)) for reason, names in refused.items() if names]
    return b'{"' + b"".join(members)[:-2] + b"}" if members else b"null"
