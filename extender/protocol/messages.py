"""The verbs of ``extender/v1``, and the replies that refuse a request with a reason.

Importing this module loads no kernels, so a service can reply that it is not ready before they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec import Raw
from msgspec.json import encode

from extender.k8s.manifest import MALFORMED, Unreadable, decoder_of, decoding_problem
from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.visible import visible

Verb: TypeAlias = Literal["filter", "prioritize", "preempt", "bind"]
VERBS: tuple[Verb, ...] = get_args(Verb)
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """JSON, or a line of text for a refusal that the protocol cannot express."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class BadMessage(ValueError):
    """The request is not a valid ``extender/v1`` message; the text may be shown in a pod's event."""


_T = TypeVar("_T")


def decode_message(text: bytes | Raw, kind: type[_T]) -> _T:
    """Decode the parts that the type names. Raises ``BadMessage``."""
    try:
        return decoder_of(kind).decode(text)
    except MALFORMED as error:
        raise BadMessage(decoding_problem(error)) from None


def decode_pod(text: bytes | Raw) -> Pod:
    """Decode a pod. Raises ``BadMessage``."""
    try:
        return PodManifest.from_json(text).record()
    except Unreadable as error:
        raise BadMessage(f"Pod: {error}") from None


def filter_error(text: str) -> bytes:
    """A filter reply that fails the scheduling attempt."""
    nothing = b'"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null'
    return b'{%b,"Error":%b}' % (nothing, encode(visible(text)))


def bind_error(text: str) -> bytes:
    """A bind reply. An empty text means success."""
    return b'{"Error":%b}' % encode(visible(text))
