"""Parses a message of kube-scheduler (``extender/v1``): only what the verbs read of it becomes values.

The Go types have no JSON tags (kube-scheduler, ``extender/v1/types.go``), so keys are the capitalised Go
names, and Go accepts them in any case. Pods and nodes in a message are ordinary camelCase objects. A missing
field is null.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pydantic_core import from_json

from extender.k8s.objects import Pod
from extender.protocol.json_members import NotSplit, Value, whole
from extender.protocol.messages import BadMessage, decode_pod
from extender.untrusted.limits import (
    KEY,
    MESSAGE_NAMES,
    MESSAGE_POD,
    MESSAGE_VICTIMS,
    NODE_VICTIMS,
    shorten,
)


class _NodeMetadata(msgspec.Struct):
    name: str


class _Node(msgspec.Struct):
    metadata: _NodeMetadata


class _PodMetadata(msgspec.Struct):
    uid: str


class _WholePod(msgspec.Struct):
    metadata: _PodMetadata


class _MetaPod(msgspec.Struct):
    UID: str


_node = msgspec.json.Decoder(_Node)
_whole_pods = msgspec.json.Decoder(list[_WholePod])
_meta_pods = msgspec.json.Decoder(list[_MetaPod])
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class Message:
    """One message. All methods raise ``BadMessage``."""

    def __init__(self, body: bytes) -> None:
        self._fields = _fields(whole(body), "")

    def pod(self) -> Pod:
        """The pod."""
        value = self._fields.get("pod")
        if value is None:
            raise BadMessage("Pod is missing")
        if value.end - value.start > MESSAGE_POD:
            raise BadMessage(f"Pod: more than {MESSAGE_POD} bytes")
        return decode_pod(value.json)

    def names(self) -> list[str] | None:
        """``NodeNames``, None where they are null."""
        value = self._fields.get("nodenames")
        if value is None:
            return None
        _count(value, "NodeNames", MESSAGE_NAMES)
        names = _parsed(value, "NodeNames")
        assert isinstance(names, list)
        for place, name in enumerate(names):
            if not isinstance(name, str):
                raise BadMessage(f"NodeNames.{place}: Input should be a valid string")
        return names

    def nodes(self) -> list[Value] | None:
        """``Nodes.items``, whole and not parsed, None where they are null."""
        value = self._fields.get("nodes")
        if value is None:
            return None
        items = _fields(value, "Nodes").get("items")
        return [] if items is None else _elements(items, "Nodes.items")

    def victims(self) -> dict[str, tuple[list[str], int]]:
        """The UIDs of the victims, and the violations of budgets, by node, from victims in either form."""
        found: dict[str, tuple[list[str], int]] = {}
        total = 0
        for key, decoder in (("NodeNameToMetaVictims", _meta_pods), ("NodeNameToVictims", _whole_pods)):
            if value := self._fields.get(key.casefold()):
                for name, victims in _members(value, key):
                    if len(name) > KEY:
                        raise BadMessage(f"{key}: a name has more than {KEY} characters")
                    found[name] = _victims(victims, decoder, f"{key}.{shorten(name, KEY)}")
                    total += len(found[name][0])
                    if total > MESSAGE_VICTIMS:
                        raise BadMessage(f"{key}: more than {MESSAGE_VICTIMS} victims")
        return found

    def text(self, key: str) -> str:
        """A field of ``bind``, "" where it is null."""
        value = self._fields.get(key.casefold())
        if value is None:
            return ""
        text = _parsed(value, key) if value.end - value.start <= 8 * KEY else None
        if not isinstance(text, str) or len(text) > KEY:
            raise BadMessage(f"{key}: Input should be a string of at most {KEY} characters")
        return text


def node_name(node: Value) -> str:
    """The name of a node. Raises ``BadMessage``."""
    try:
        if name := _node.decode(node.json).metadata.name:
            return name
    except _UNREADABLE:
        pass
    raise BadMessage("Nodes.items: a node has no metadata.name")


def _victims(
    value: Value,
    decoder: msgspec.json.Decoder[list[_MetaPod]] | msgspec.json.Decoder[list[_WholePod]],
    path: str,
) -> tuple[list[str], int]:
    if value.is_null:
        return [], 0
    fields = _fields(value, path)
    violations = _parsed(fields["numpdbviolations"], path) if "numpdbviolations" in fields else 0
    if not isinstance(violations, int):
        raise BadMessage(f"{path}.NumPDBViolations: Input should be a valid integer")
    if "pods" not in fields:
        return [], violations
    _count(fields["pods"], f"{path}.Pods", NODE_VICTIMS)
    try:
        uids = [
            one.UID if isinstance(one, _MetaPod) else one.metadata.uid
            for one in decoder.decode(fields["pods"].json)
        ]
    except _UNREADABLE:
        pods = _elements(fields["pods"], f"{path}.Pods")
        uids = [_uid_in_any_case(pod, f"{path}.Pods") for pod in pods]
    return uids, violations


def _uid_in_any_case(pod: Value, path: str) -> str:
    """Of a pod in the short form, for callers that write other keys than kube-scheduler does."""
    value = _fields(pod, path).get("uid")
    uid = _parsed(value, path) if value and value.end - value.start <= 8 * KEY else None
    if not isinstance(uid, str):
        raise BadMessage(f"{path}: UID: Input should be a valid string")
    return uid


def _fields(value: Value, path: str) -> Mapping[str, Value]:
    try:
        return value.fields()
    except NotSplit as error:
        raise _bad(path, error) from None


def _members(value: Value, path: str) -> list[tuple[str, Value]]:
    try:
        return value.members(MESSAGE_NAMES)
    except NotSplit as error:
        raise _bad(path, error) from None


def _elements(value: Value, path: str) -> list[Value]:
    try:
        return value.elements(MESSAGE_NAMES)
    except NotSplit as error:
        raise _bad(path, error) from None


def _count(value: Value, path: str, most: int) -> None:
    """Refuse a list with more elements, before it is parsed."""
    try:
        value.count(most)
    except NotSplit as error:
        raise _bad(path, error) from None


def _bad(path: str, error: NotSplit) -> BadMessage:
    return BadMessage(shorten(f"{path}: {error}" if path else str(error)))


def _parsed(value: Value, path: str) -> object:
    try:
        return from_json(value.json)
    except ValueError:
        raise BadMessage(f"{path}: Invalid JSON") from None
