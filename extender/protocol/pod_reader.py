"""Pods of messages, without parsing a pod twice: that took longer than all other parts of an answer.

kube-scheduler sends a pod once for each verb, in the same bytes. And both have the pod from a watch: if it is
the same version of it, what the watch has shown counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from extender.k8s.objects import Pod
from extender.untrusted.bounded_cache import BoundedMap

_KEPT = 64
"""Pods that are kept as they were parsed: from filter to prioritize, and for filter again."""


class _Metadata(TypedDict, total=False):
    uid: str
    resourceVersion: str


class _Pod(TypedDict):
    metadata: _Metadata


class _Message(TypedDict):
    Pod: _Pod


_identity = TypeAdapter(_Message)
_BEGINNING = re.compile(
    rb'\{"Pod":\{(?:"kind":"Pod",)?(?:"apiVersion":"v1",)?"metadata":\{"name":"[a-z0-9.-]*",'
    rb'(?:"generateName":"[a-z0-9.-]*",)?(?:"namespace":"[a-z0-9-]*",)?'
    rb'"uid":"([a-z0-9-]+)","resourceVersion":"([0-9]+)"'
)
"""How Go writes a pod (the order of the fields of ``ObjectMeta``). To match it takes a fifth of the time of
parsing the whole message, which needs no parsing where the watch has shown this version of the pod."""


class PodReader:
    """The pods of the last messages."""

    def __init__(self, watched: Callable[[str], Pod | None] = lambda uid: None) -> None:
        """``watched``: the pod of a UID, as the watch shows it."""
        self._watched = watched
        self._parsed: BoundedMap[bytes, Pod] = BoundedMap(_KEPT)

    def known(self, message: bytes) -> Pod | None:
        """The pod of a message that is the same but for its names; None if it must be parsed."""
        return self._from_watch(message) or self._parsed.get(message)

    def keep(self, message: bytes, pod: Pod) -> None:
        """The pod of this message has been parsed."""
        self._parsed.put(message, pod, len(message))

    def _from_watch(self, message: bytes) -> Pod | None:
        if begins := _BEGINNING.match(message):
            return self._watched_version(begins[1].decode(), begins[2].decode())
        try:
            metadata = _identity.validate_json(message)["Pod"]["metadata"]
        except ValidationError:  # the parser of the whole message says what is wrong
            return None
        return self._watched_version(metadata.get("uid", ""), metadata.get("resourceVersion", ""))

    def _watched_version(self, uid: str, version: str) -> Pod | None:
        pod = self._watched(uid)
        return pod if pod is not None and version and pod.version == version else None
