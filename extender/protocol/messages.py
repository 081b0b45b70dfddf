"""The verbs of ``extender/v1`` and their messages, and the replies that refuse a request with a reason.

The messages are those of kube-scheduler's ``extender/v1/types.go``. The Go types have no JSON tags, so keys
are the capitalized Go names. The arguments are decoded into these types; of the results, ``codec.py`` writes
the bytes itself, because that is faster. ``/openapi.json`` describes both.

Importing this module loads no kernels, so a service can reply that it is not ready before they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from msgspec import Meta, Raw, Struct, field
from msgspec.json import encode

from extender.k8s.manifest import MALFORMED, Unreadable, decoder_of, decoding_problem
from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import KEY
from extender.untrusted.visible import visible

Verb: TypeAlias = Literal["filter", "prioritize", "preempt", "bind"]
VERBS: tuple[Verb, ...] = get_args(Verb)
TEXT = "text/plain; charset=utf-8"


_Object: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
_MaybeObject: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
_Names: TypeAlias = Annotated[
    Raw, Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "string"}})
]
_Pods: TypeAlias = Annotated[
    Raw, Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "object"}})
]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY)]
_null = partial(Raw, b"null")


class ExtenderArgs(Struct):
    """``Nodes`` are whole objects (``nodeCacheCapable: false``), ``NodeNames`` only their names."""

    Pod: _Object = field(default_factory=_null)
    Nodes: _MaybeObject = field(default_factory=_null)
    NodeNames: _Names = field(default_factory=_null)


class ExtenderFilterResult(Struct, forbid_unknown_fields=True):
    """Nodes that fit, in the form of the request, and reasons of others by name."""

    Nodes: dict[str, Any] | None
    NodeNames: list[str] | None
    FailedNodes: dict[str, str] | None
    FailedAndUnresolvableNodes: dict[str, str] | None
    Error: str


class HostPriority(Struct, forbid_unknown_fields=True):
    Host: str
    Score: Annotated[int, Meta(ge=0, le=10)]


class Victims(Struct):
    """Pods of one node, whole or as ``MetaPod``."""

    Pods: _Pods = field(default_factory=_null)
    NumPDBViolations: int = 0


class ExtenderPreemptionArgs(Struct):
    """Victims by node, as whole pods or as their UIDs."""

    Pod: _Object = field(default_factory=_null)
    NodeNameToVictims: dict[str, Victims | None] | None = None
    NodeNameToMetaVictims: dict[str, Victims | None] | None = None


class MetaPod(Struct, gc=False):
    UID: str


class MetaVictims(Struct, forbid_unknown_fields=True):
    Pods: list[MetaPod]
    NumPDBViolations: int


class ExtenderPreemptionResult(Struct, forbid_unknown_fields=True):
    NodeNameToMetaVictims: dict[str, MetaVictims]


_BIND = {"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"}


class ExtenderBindingArgs(Struct, frozen=True, rename=_BIND):
    """The pod and its node."""

    name: _Name
    namespace: _Name
    uid: _Name
    node: _Name


class ExtenderBindingResult(Struct, forbid_unknown_fields=True):
    """An empty ``Error`` means success."""

    Error: str


MESSAGES: dict[Verb, tuple[type[Struct], Any]] = {
    "filter": (ExtenderArgs, ExtenderFilterResult),
    "prioritize": (ExtenderArgs, list[HostPriority]),
    "preempt": (ExtenderPreemptionArgs, ExtenderPreemptionResult),
    "bind": (ExtenderBindingArgs, ExtenderBindingResult),
}
"""The argument and result of each verb."""


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
    return encode(ExtenderBindingResult(visible(text)))
