"""Pods of messages, without parsing a pod twice: that took longer than all other parts of an answer.

kube-scheduler sends a pod once for each verb, in the same bytes. And both have the pod from a watch: if it is
the same version of it, what the watch has shown counts.
"""

from __future__ import annotations

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
        try:
            metadata = _identity.validate_json(message)["Pod"]["metadata"]
        except ValidationError:  # the parser of the whole message says what is wrong
            return None
        version = metadata.get("resourceVersion")
        pod = self._watched(metadata.get("uid", ""))
        return pod if pod is not None and version and pod.version == version else None
