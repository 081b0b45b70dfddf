"""The ``extender/v1`` messages of kube-scheduler, in and out: bytes to values, values to bytes.

Replies carry the capitalised Go names, always all of them, with ``null`` for what is not used. This file
knows no verb, no state and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.messages import (
    BadMessage,
    BindMessage,
    FilterMessage,
    MetaVictims,
    PreemptMessage,
    Victims,
    filter_error,
    read,
)
from extender.protocol.node_names import NO_NAMES, Bytes, NodeNames

__all__ = [
    "BadMessage",
    "BindArgs",
    "Candidate",
    "FilterArgs",
    "FilterResult",
    "PreemptArgs",
    "PreemptResult",
    "encode_filter",
    "encode_preempt",
    "encode_priorities",
    "parse_bind",
    "parse_filter",
    "parse_preempt",
]


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Arguments of filter and prioritize. ``nodes`` are the objects as they came, parallel to ``names``;
    ``None`` where kube-scheduler sent names only (``nodeCacheCapable: true``)."""

    pod: Pod
    names: NodeNames
    nodes: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Names that fit, in the order asked, and every other node under its reason.

    ``failed``: evicting pods could help; ``unresolvable``: it could not. ``error`` fails the attempt.
    """

    names: NodeNames = NO_NAMES
    failed: Mapping[str, NodeNames] = field(default_factory=dict)
    unresolvable: Mapping[str, NodeNames] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node where preemption may happen: UIDs of the victims, highest priority first."""

    victims: list[str]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The pod that needs room, and the candidates by node name."""

    pod: Pod
    candidates: dict[str, Candidate]


@dataclass(frozen=True, slots=True)
class PreemptResult:
    """The candidates that remain, by node name; none: no preemption."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindArgs:
    """Which pod goes to which node."""

    name: str
    namespace: str
    uid: str
    node: str


def parse_filter(body: bytes) -> FilterArgs:
    """Arguments of filter and prioritize. Raises ``BadMessage``."""
    names, rest = _apart(body)
    message = read(FilterMessage, rest)
    pod = _pod(message.Pod)
    if names is not None:
        return FilterArgs(pod, names)
    if message.NodeNames is not None:
        return FilterArgs(pod, NodeNames.of(message.NodeNames))
    if message.Nodes is None:
        raise BadMessage("neither NodeNames nor Nodes is given")
    nodes = message.Nodes.items or []
    return FilterArgs(pod, NodeNames.of(map(_node_name, nodes)), nodes)


_NAMES = b',"NodeNames":["'


def _apart(body: bytes) -> tuple[NodeNames | None, bytes]:
    """The names at the end of a message, where kube-scheduler has them, and the message without them.

    No text in JSON can hold an unescaped quote; and only if the names stood in the outermost object can a
    message come out without them.
    """
    start = body.find(_NAMES)
    names = NodeNames.at_the_end(body, start + len(_NAMES)) if start >= 0 else None
    return names, body if names is None else body[:start] + b',"NodeNames":null}'


def parse_preempt(body: bytes) -> PreemptArgs:
    """Arguments of preempt, from whichever form of victims was sent. Raises ``BadMessage``."""
    message = read(PreemptMessage, body)
    given = {**(message.NodeNameToMetaVictims or {}), **(message.NodeNameToVictims or {})}
    return PreemptArgs(_pod(message.Pod), {name: _candidate(victims) for name, victims in given.items()})


def parse_bind(body: bytes) -> BindArgs:
    """Arguments of bind, all of them present. Raises ``BadMessage``."""
    message = read(BindMessage, body)
    for name, value in message:
        if not value:
            raise BadMessage(f"{name} is missing")
    return BindArgs(
        name=message.PodName or "",
        namespace=message.PodNamespace or "",
        uid=message.PodUID or "",
        node=message.Node or "",
    )


def encode_filter(result: FilterResult, nodes: Sequence[dict[str, Any]] | None = None) -> bytes:
    """A filter reply; ``nodes`` are those of the request and come back unchanged where they fit."""
    if result.error:
        return filter_error(result.error)
    whole, names = b"null", b"null"
    if nodes is None:
        names = result.names.json()
    else:
        fits = set(result.names)
        whole = _dump({"metadata": {}, "items": [node for node in nodes if _node_name(node) in fits]})
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}' % (
        whole,
        names,
        _reasons(result.failed),
        _reasons(result.unresolvable),
    )


_BETWEEN_HOSTS = tuple(b'","Score":%d},{"Host":"' % score for score in range(11))


def encode_priorities(names: NodeNames, scores: Bytes) -> bytes:
    """A prioritize reply: ``scores`` (len(names),) from 0 to 10, in the order of the names."""
    if not names:
        return b"[]"
    return b'[{"Host":"' + names.woven(_BETWEEN_HOSTS, scores)[: -len(b',{"Host":"')] + b"]"


def encode_preempt(result: PreemptResult) -> bytes:
    """A preempt reply: always the short form of victims, whichever form was asked."""
    victims = {
        name: {"Pods": [{"UID": uid} for uid in one.victims], "NumPDBViolations": one.pdb_violations}
        for name, one in result.candidates.items()
    }
    return _dump({"NodeNameToMetaVictims": victims})


def _reasons(refused: Mapping[str, NodeNames]) -> bytes:
    """Nodes by reason as an object of reasons by node."""
    members = [names.woven((b'":%b,"' % _dump(reason),)) for reason, names in refused.items() if names]
    return b'{"' + b"".join(members)[:-2] + b"}" if members else b"null"


def _pod(pod: PodManifest | None) -> Pod:
    if pod is None:
        raise BadMessage("Pod is missing")
    return pod.record()


def _candidate(victims: Victims | MetaVictims | None) -> Candidate:
    if victims is None:
        return Candidate([])
    return Candidate([pod.uid() for pod in victims.Pods or ()], victims.NumPDBViolations or 0)


def _node_name(node: dict[str, Any]) -> str:
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not (isinstance(name, str) and name):
        raise BadMessage("Nodes.items: a node without metadata.name")
    return name


def _dump(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")
