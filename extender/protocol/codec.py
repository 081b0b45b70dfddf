"""Parses requests of kube-scheduler (``extender/v1``) and encodes replies.

Replies contain all fields under their capitalised Go names, with ``null`` for unused ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.json import encode

from extender.k8s.objects import Pod
from extender.protocol.message_parser import Message, PodReader, Value, node_name
from extender.protocol.messages import BadMessage, filter_error
from extender.protocol.node_names import NO_NAMES, Bytes, NodeNames


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Arguments of filter and prioritize. ``nodes`` are the objects as they were sent, parallel to ``names``;
    None if kube-scheduler sent names only (``nodeCacheCapable: true``). ``head``: the message up to its
    names, empty where they are not at its end."""

    pod: Pod
    names: NodeNames
    nodes: list[Value] | None = None
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes that fit, in the order of the request, and all others by reason.

    ``failed``: evicting pods may help; ``unresolvable``: it cannot. ``error`` fails the scheduling attempt.
    ``which`` of the names in the request fit: (count,), None where they were not evaluated.
    """

    names: NodeNames = NO_NAMES
    failed: Mapping[str, NodeNames] = field(default_factory=dict)
    unresolvable: Mapping[str, NodeNames] = field(default_factory=dict)
    error: str = ""
    which: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which pods may be preempted: UIDs of the victims, highest priority first."""

    victims: list[str]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The pod that may preempt others, and the candidates by node name."""

    pod: Pod
    candidates: dict[str, Candidate]


@dataclass(frozen=True, slots=True)
class PreemptResult:
    """The remaining candidates by node name. Without any, there is no preemption."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindArgs:
    """The pod and its node."""

    name: str
    namespace: str
    uid: str
    node: str


def parse_filter(body: bytes, pods: PodReader | None = None) -> FilterArgs:
    """Arguments of filter and prioritize. Raises ``BadMessage``. ``pods``: those that are known."""
    names, head, rest = _split_names(body)
    if names is not None and pods is not None and (known := pods.known(rest)) is not None:
        return FilterArgs(known, names, head=head)
    message = Message(rest)
    pod = message.pod()
    if names is not None:
        if pods is not None:
            pods.keep_parsed(rest, pod)
        return FilterArgs(pod, names, head=head)
    if (listed := message.names()) is not None:
        return FilterArgs(pod, NodeNames.of(listed))
    if (nodes := message.nodes()) is None:
        raise BadMessage("expected NodeNames or Nodes")
    return FilterArgs(pod, NodeNames.of(map(node_name, nodes)), nodes)


_NAMES = b',"NodeNames":["'


def _split_names(body: bytes) -> tuple[NodeNames | None, bytes, bytes]:
    """The names at the end of a message, where kube-scheduler writes them, the message up to them, and
    without them.

    This is safe: no JSON string contains an unescaped quote, and the message without the names is valid JSON
    only if they were in the outermost object. Of a pod that the watch knows the rest is not parsed; a caller
    that writes anything else than JSON there gets the answer about the pod and the names that it has written.
    """
    start = body.find(_NAMES)
    names = NodeNames.at_the_end(body, start + len(_NAMES)) if start >= 0 else None
    if names is None:
        return None, b"", body
    head = body[: start + len(_NAMES) - len(b'["')]
    return names, head, head + b"null}"


def has_names(body: bytes, head: bytes, names: NodeNames) -> bool:
    """Whether a message has this head, and then exactly these names."""
    array = names.json()
    return (
        len(body) == len(head) + len(array) + 1
        and body.startswith(head)
        and body.startswith(array, len(head))
        and body.endswith(b"}")
    )


def parse_preempt(body: bytes) -> PreemptArgs:
    """Arguments of preempt, with victims in either form. Raises ``BadMessage``."""
    message = Message(body)
    victims = {name: Candidate(*given) for name, given in message.victims().items()}
    return PreemptArgs(message.pod(), victims)


def parse_bind(body: bytes) -> BindArgs:
    """Arguments of bind, none of them empty. Raises ``BadMessage``."""
    message = Message(body)
    fields = {name: message.text(name) for name in ("PodName", "PodNamespace", "PodUID", "Node")}
    for name, value in fields.items():
        if not value:
            raise BadMessage(f"{name} is missing")
    return BindArgs(*fields.values())


def encode_filter(result: FilterResult, nodes: Sequence[Value] | None = None) -> bytes:
    """A filter reply. ``nodes`` are those of the request; those that fit are returned unchanged."""
    if result.error:
        return filter_error(result.error)
    if nodes is None:
        fitting = b'"Nodes":null,"NodeNames":%b' % result.names.json()
    else:
        names = set(result.names)
        items = b",".join(node.json for node in nodes if node_name(node) in names)
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


def encode_preempt(result: PreemptResult) -> bytes:
    """A preempt reply, with victims in the short form."""
    victims = {
        name: {"Pods": [{"UID": uid} for uid in kept.victims], "NumPDBViolations": kept.pdb_violations}
        for name, kept in result.candidates.items()
    }
    return _dump({"NodeNameToMetaVictims": victims})


def _reasons(refused: Mapping[str, NodeNames]) -> bytes:
    """A JSON object from node name to reason."""
    members = [names.interleave((b'":%b,"' % _dump(reason),)) for reason, names in refused.items() if names]
    return b'{"' + b"".join(members)[:-2] + b"}" if members else b"null"


def _dump(value: object) -> bytes:
    return encode(value)
