"""The ``extender/v1`` messages of kube-scheduler, in and out: bytes to values, values to bytes.

Replies carry the capitalised Go names, always all of them, with ``null`` for what is not used. This file
knows no verb, no state and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic_core import to_json

from extender.envelope import (
    BadMessage,
    BindMessage,
    FilterMessage,
    MetaVictims,
    PreemptMessage,
    Victims,
    read,
)
from extender.manifests import WirePod
from extender.objects import Pod

__all__ = [
    "BadMessage",
    "BindArgs",
    "Candidate",
    "FilterArgs",
    "FilterResult",
    "PreemptArgs",
    "PreemptResult",
    "encode_bind",
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
    names: list[str]
    nodes: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Names that fit, in the order asked, and every other node under its reason.

    ``failed``: evicting pods could help; ``unresolvable``: it could not. ``error`` fails the attempt.
    """

    names: Sequence[str] = ()
    failed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unresolvable: Mapping[str, Sequence[str]] = field(default_factory=dict)
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
    message = read(FilterMessage, body)
    pod = _pod(message.Pod)
    if message.NodeNames is not None:
        return FilterArgs(pod, message.NodeNames)
    if message.Nodes is None:
        raise BadMessage("neither NodeNames nor Nodes is given")
    nodes = message.Nodes.items or []
    return FilterArgs(pod, [_node_name(node) for node in nodes], nodes)


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
    names: list[str] | None = list(result.names)
    items: list[dict[str, Any]] | None = None
    if result.error:
        names = None  # an attempt that failed has no nodes
    elif nodes is not None:
        fits = set(result.names)
        names, items = None, [node for node in nodes if _node_name(node) in fits]
    return (b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":%b}') % (
        _dump(None if items is None else {"metadata": {}, "items": items}),
        b"null" if names is None else _strings(names),
        _reasons(result.failed),
        _reasons(result.unresolvable),
        _dump(result.error),
    )


def encode_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """A prioritize reply: one whole number from 0 to 10 per name, in the same order."""
    if not (names and _plain(names)):
        return _dump([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])
    parts = [""] * (2 * len(names))
    parts[0::2] = names
    parts[1::2] = map(_BETWEEN_HOSTS.__getitem__, scores)
    return ('[{"Host":"' + "".join(parts).removesuffix(',{"Host":"') + "]").encode()


def encode_preempt(result: PreemptResult) -> bytes:
    """A preempt reply: always the short form of victims, whichever form was asked."""
    victims = {
        name: {"Pods": [{"UID": uid} for uid in one.victims], "NumPDBViolations": one.pdb_violations}
        for name, one in result.candidates.items()
    }
    return _dump({"NodeNameToMetaVictims": victims})


def encode_bind(error: str) -> bytes:
    """A bind reply; the empty text means bound."""
    return _dump({"Error": error})


# Replies of thousands of names are woven from the names as they are: writing each as JSON would cost twice to
# four times as much.
_BETWEEN_HOSTS = [f'","Score":{score}}},{{"Host":"' for score in range(11)]


def _plain(names: Sequence[str]) -> bool:
    """Whether JSON writes these names as they are: so it does with every name that Kubernetes allows."""
    text = "".join(names).encode()
    codes = np.frombuffer(text, np.uint8)
    return b'"' not in text and b"\\" not in text and bool(codes.min(initial=0x20) >= 0x20)


def _strings(names: Sequence[str]) -> bytes:
    if not (names and _plain(names)):
        return _dump(names)
    return ('["' + '","'.join(names) + '"]').encode()


def _reasons(refused: Mapping[str, Sequence[str]]) -> bytes:
    """Nodes by reason as an object of reasons by node."""
    members = b",".join(_members(names, reason) for reason, names in refused.items() if names)
    return b"{" + members + b"}" if members else b"null"


def _members(names: Sequence[str], value: str) -> bytes:
    if not _plain(names):
        return _dump(dict.fromkeys(names, value))[1:-1]
    text = _dump(value).decode()
    return ('"' + f'":{text},"'.join(names) + f'":{text}').encode()


def _pod(pod: WirePod | None) -> Pod:
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
