"""The Go types of ``extender/v1`` as pydantic models, and how a message is parsed.

The Go types have no JSON tags (kube-scheduler, ``extender/v1/types.go``), so keys are the capitalised Go
names, and Go accepts them in any case. We first parse a message with kube-scheduler's spelling, which is
fast, and only if that fails in any case. Pods and nodes in a message are ordinary camelCase objects.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import ERRORS, KEY
from extender.untrusted.validation import validation_problem

_Item = TypeVar("_Item")
_List: TypeAlias = Annotated[list[_Item], Field(fail_fast=True)]
"""Parsed up to the first invalid item: a million errors would take a gigabyte."""
_Name: TypeAlias = Annotated[str, Field(max_length=KEY)]


Verb: TypeAlias = Literal["filter", "prioritize", "preempt", "bind"]
VERBS: tuple[Verb, ...] = get_args(Verb)


class BadMessage(ValueError):
    """The request is not an ``extender/v1`` message; the text can be shown in a pod's event."""


class Envelope(BaseModel):
    """Fields may be null but not missing: kube-scheduler always sends all of them, so a missing field may be
    written in another case."""

    # Looking up thousands of node names in pydantic's string cache would take a quarter more time.
    model_config = ConfigDict(extra="ignore", cache_strings="keys")


class NodeList(BaseModel):
    """Nodes are not parsed: the reply returns them unchanged."""

    items: _List[dict[str, Any]] | None = None


class FilterMessage(Envelope):
    """``ExtenderArgs``, for filter and prioritize."""

    Pod: PodManifest | None
    Nodes: NodeList | None
    NodeNames: _List[str] | None


class MetaPod(Envelope):
    """A victim, UID only."""

    UID: str


class MetaVictims(Envelope):
    """Victims on one node, by UID."""

    Pods: _List[MetaPod] | None
    NumPDBViolations: int | None


class _Metadata(BaseModel):
    uid: str


class WholePod(BaseModel):
    """A victim as a whole pod."""

    metadata: _Metadata


class Victims(Envelope):
    """Victims on one node, as whole pods."""

    Pods: _List[WholePod] | None
    NumPDBViolations: int | None


class PreemptMessage(Envelope):
    """``ExtenderPreemptionArgs``: victims in one of two forms."""

    Pod: PodManifest | None
    NodeNameToVictims: dict[str, Victims | None] | None
    NodeNameToMetaVictims: dict[str, MetaVictims | None] | None


class BindMessage(Envelope):
    """``ExtenderBindingArgs``."""

    PodName: _Name | None
    PodNamespace: _Name | None
    PodUID: _Name | None
    Node: _Name | None


# Fields with other envelopes, in a map by node name or in a list.
_INNER: dict[type[Envelope], dict[str, type[Envelope]]] = {
    PreemptMessage: {"NodeNameToVictims": Victims, "NodeNameToMetaVictims": MetaVictims},
    MetaVictims: {"Pods": MetaPod},
}

_Message = TypeVar("_Message", bound=Envelope)


def read(model: type[_Message], body: bytes) -> _Message:
    """Parse a message. Raises ``BadMessage`` with the first problem."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() <= ERRORS and not _has_missing_field(error):
            raise BadMessage(_text(error)) from None
    try:
        return model.model_validate(_any_case(from_json(body), model))
    except ValidationError as error:
        raise BadMessage(_text(error)) from None


def _has_missing_field(error: ValidationError) -> bool:
    problems = error.errors(include_url=False, include_input=False)
    return any(problem["type"] == "missing" for problem in problems)


def _any_case(message: object, model: type[Envelope]) -> object:
    """``message`` with the keys of all its envelopes in the spelling of ``model``."""
    if not isinstance(message, dict):
        return message
    names = {name.casefold(): name for name in model.model_fields}
    fields = {names.get(key.casefold(), key): value for key, value in message.items()}
    for name, inner in _INNER.get(model, {}).items():
        fields[name] = _each(fields.get(name), inner)
    return dict.fromkeys(model.model_fields) | fields


def _each(values: object, model: type[Envelope]) -> object:
    if isinstance(values, dict):
        return {key: _any_case(value, model) for key, value in values.items()}
    return [_any_case(value, model) for value in values] if isinstance(values, list) else values


def _text(error: ValidationError) -> str:
    return validation_problem(error).removeprefix(": ")


def filter_error(text: str) -> bytes:
    """A filter reply that fails the scheduling attempt."""
    nothing = b'"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null'
    return b'{%b,"Error":%b}' % (nothing, to_json(text))


def bind_error(text: str) -> bytes:
    """A bind reply. An empty text means that the pod is bound."""
    return b'{"Error":%b}' % to_json(text)
