"""Parses a message of kube-scheduler (``extender/v1``): only what the verbs read of it becomes values.

The Go types have no JSON tags (kube-scheduler, ``extender/v1/types.go``), so keys are the capitalised Go
names, and Go accepts them in any case. Pods and nodes in a message are ordinary camelCase objects. A missing
field is null.

A parser builds a tree of all values first: 60 MiB of JSON become gigabytes. Here a message costs nothing but
the positions of its members, of which there are at most as many as ``limits.py`` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from extender.k8s.objects import Pod
from extender.protocol.json_kernels import MALFORMED, TOO_MANY, split
from extender.protocol.messages import BadMessage, decode_message, decode_pod
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import (
    KEY,
    MESSAGE_NAMES,
    MESSAGE_POD,
    MESSAGE_VICTIMS,
    NODE_VICTIMS,
    shorten,
)

_T = TypeVar("_T")
_BLANK = b" \t\n\r"
_KEYS = 64  # members of an envelope: the messages have three or four fields
_KEPT = 64  # pods that are kept as they were parsed: from filter to prioritize, and for filter again


class Value(NamedTuple):
    """A part of a JSON text. ``path`` names it in errors; all methods raise ``BadMessage``."""

    text: bytes
    start: int
    end: int
    path: str = ""

    @property
    def json(self) -> bytes:
        """A copy."""
        return self.text[self.start : self.end]

    @property
    def is_null(self) -> bool:
        return self.text.startswith(b"null", self.start) and self.end == self.start + 4

    def members(self, most: int) -> list[tuple[str, Value]]:
        """The members of an object, at most so many."""
        spans = self._split(b"{", most)
        keys = [self._key(self.text[start:end]) for start, end, *_ in spans.tolist()]
        prefix = f"{self.path}." if self.path else ""
        return [
            (key, Value(self.text, start, end, f"{prefix}{shorten(key, KEY)}"))
            for key, (*_, start, end) in zip(keys, spans.tolist(), strict=True)
        ]

    def elements(self, most: int) -> list[Value]:
        """The elements of a list, at most so many."""
        return [
            Value(self.text, start, end, self.path) for *_, start, end in self._split(b"[", most).tolist()
        ]

    def count(self, most: int) -> int:
        """How many elements the list has, at most so many."""
        return len(self._split(b"[", most))

    def fields(self) -> Mapping[str, Value]:
        """The members of an envelope by their keys in lower case: Go takes them in any case. Without those
        that are null."""
        return {key.casefold(): value for key, value in self.members(_KEYS) if not value.is_null}

    def decoded(self, kind: type[_T]) -> _T:
        """The value as this type."""
        try:
            return decode_message(self.json, kind)
        except BadMessage as error:
            raise self._bad(str(error)) from None

    def name(self) -> str:
        """A text that names something."""
        text = self.decoded(str) if self.end - self.start <= 8 * KEY else None
        if text is None or len(text) > KEY:
            raise self._bad(f"Expected a string of at most {KEY} characters")
        return text

    def _split(self, begins: bytes, most: int) -> npt.NDArray[np.int64]:
        if not self.text.startswith(begins, self.start):
            raise self._bad(f"expected {'an object' if begins == b'{' else 'a list'}")
        limit = min(most, (self.end - self.start) // 2 + 1)  # each member has a comma and a letter
        spans, end = np.empty((limit, 4), np.int64), np.empty(1, np.int64)
        count = split(np.frombuffer(self.text, np.uint8), self.start, spans, end)
        if count == TOO_MANY:
            raise self._bad(f"more than {most} members")
        if count == MALFORMED or end[0] != self.end:
            raise self._bad("not valid JSON")
        return spans[:count]

    def _key(self, text: bytes) -> str:
        return text.decode() if b"\\" not in text and text.isascii() else decode_message(b'"%b"' % text, str)

    def _bad(self, problem: str) -> BadMessage:
        return BadMessage(shorten(f"{self.path}: {problem}" if self.path else problem))


def whole(text: bytes) -> Value:
    """All of a text but the blanks around it."""
    start = len(text) - len(text.lstrip(_BLANK))
    return Value(text, start, max(len(text.rstrip(_BLANK)), start))


class _NodeMetadata(Struct):
    name: str


class _Node(Struct):
    metadata: _NodeMetadata


class _PodMetadata(Struct):
    uid: str
    resourceVersion: str = ""


class _Pod(Struct):
    metadata: _PodMetadata


class _MessageWithPod(Struct):
    Pod: _Pod


class _MetaPod(Struct):
    UID: str


class Message:
    """One message. All methods raise ``BadMessage``."""

    def __init__(self, body: bytes) -> None:
        self._fields = whole(body).fields()

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
        value.count(MESSAGE_NAMES)  # before they are parsed
        return value.decoded(list[str])

    def nodes(self) -> list[Value] | None:
        """``Nodes.items``, whole and not parsed, None where they are null."""
        value = self._fields.get("nodes")
        if value is None:
            return None
        items = value.fields().get("items")
        return [] if items is None else items.elements(MESSAGE_NAMES)

    def victims(self) -> dict[str, tuple[list[str], int]]:
        """The UIDs of the victims, and the violations of budgets, by node, from victims in either form."""
        found: dict[str, tuple[list[str], int]] = {}
        total = 0
        for key, uids_of in (("nodenametometavictims", _uids), ("nodenametovictims", _uids_of_whole_pods)):
            if (value := self._fields.get(key)) is None:
                continue
            for name, victims in value.members(MESSAGE_NAMES):
                if len(name) > KEY:
                    raise BadMessage(f"{value.path}: a name has more than {KEY} characters")
                found[name] = _victims(victims, uids_of)
                total += len(found[name][0])
                if total > MESSAGE_VICTIMS:
                    raise BadMessage(f"{value.path}: more than {MESSAGE_VICTIMS} victims")
        return found

    def text(self, key: str) -> str:
        """A field of ``bind``, "" where it is null."""
        value = self._fields.get(key.casefold())
        return value.name() if value else ""


def node_name(node: Value) -> str:
    """The name of a node. Raises ``BadMessage``."""
    try:
        if name := decode_message(node.json, _Node).metadata.name:
            return name
    except BadMessage:
        pass
    raise BadMessage("Nodes.items: a node has no metadata.name")


def _victims(value: Value, uids_of: Callable[[Value], list[str]]) -> tuple[list[str], int]:
    fields = {} if value.is_null else value.fields()
    violations, pods = fields.get("numpdbviolations"), fields.get("pods")
    if pods:
        pods.count(NODE_VICTIMS)  # before they are parsed
    return uids_of(pods) if pods else [], violations.decoded(int) if violations else 0


def _uids_of_whole_pods(pods: Value) -> list[str]:
    return [one.metadata.uid for one in pods.decoded(list[_Pod])]


def _uids(pods: Value) -> list[str]:
    try:
        return [one.UID for one in pods.decoded(list[_MetaPod])]
    except BadMessage:  # callers that write other keys than kube-scheduler does
        uids = [pod.fields().get("uid") for pod in pods.elements(NODE_VICTIMS)]
        if None in uids:
            raise BadMessage(f"{pods.path}: a victim has no UID") from None
        return [uid.name() for uid in uids if uid]


class PodReader:
    """The pods of the last messages, without parsing one twice: that took longer than all other parts of an
    answer.

    kube-scheduler sends a pod once for each verb, in the same bytes. And both have the pod from a watch: if
    it is the same version of it, what the watch has shown counts.
    """

    def __init__(self, watched: Callable[[str], Pod | None] = lambda uid: None) -> None:
        """``watched``: the pod of a UID, as the watch shows it."""
        self._watched = watched
        self._parsed: BoundedMap[bytes, Pod] = BoundedMap(_KEPT)

    def known(self, message: bytes) -> Pod | None:
        """The pod of a message that is the same but for its names; None if it must be parsed."""
        try:
            metadata = decode_message(message, _MessageWithPod).Pod.metadata
        except BadMessage:  # the parser of the whole message says what is wrong
            return None
        pod, version = self._watched(metadata.uid), metadata.resourceVersion
        return pod if pod is not None and version and pod.version == version else self._parsed.get(message)

    def keep_parsed(self, message: bytes, pod: Pod) -> None:
        """The pod of this message has been parsed."""
        self._parsed.put(message, pod, len(message))
