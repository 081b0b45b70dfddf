"""Decodes pages of lists and lines of watches without building what nobody reads.

Nine tenths of a pod or node are fields that Stowage has no use for (managed fields, environments, images).
msgspec skips the text of fields that the types do not name; pydantic builds every value first. The types of
the fields are the same for both, and so is what makes a record of them.

msgspec decodes only what is exactly as the types say. Anything else is None here, and pydantic judges it: a
number that stands for a text, a name that is too long, a bookmark, an error, text that is no JSON. What is
skipped is not checked beyond the structure of its JSON.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, MsgspecError, Struct, field
from msgspec.json import Decoder

from extender.k8s.node_manifest import NarrowNode
from extender.k8s.pod_manifest import NarrowPod

_M = TypeVar("_M", bound=NarrowPod | NarrowNode)
_NOT_NARROW = (MsgspecError, ValueError, RecursionError)


class ListMetadata(Struct, gc=False):
    """``more`` is the token for the next page, "" or None after the last one."""

    version: Annotated[str, Meta(min_length=1)] = field(name="resourceVersion")
    more: str | None = field(name="continue", default=None)


class Page(Struct, Generic[_M], gc=False):
    """A page of a list."""

    metadata: ListMetadata
    items: list[_M] | None = None


class Change(Struct, Generic[_M], gc=False):
    """A line of a watch about one object."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: _M


class NarrowDecoder(Generic[_M]):
    """Decodes the objects of one kind. Each method returns None for what pydantic must judge."""

    def __init__(self, manifest: type[_M]) -> None:
        self._pages: Decoder[Page[_M]] = Decoder(Page[manifest])  # type: ignore[valid-type]
        self._lines: Decoder[Change[_M]] = Decoder(Change[manifest])  # type: ignore[valid-type]

    def page(self, body: bytes) -> Page[_M] | None:
        """A whole page: one object that is not as the types say leaves all of them to pydantic."""
        try:
            return self._pages.decode(body)
        except _NOT_NARROW:
            return None

    def change(self, line: bytes) -> Change[_M] | None:
        """One change of an object."""
        try:
            return self._lines.decode(line)
        except _NOT_NARROW:
            return None


@lru_cache
def decoder_of(manifest: type[_M]) -> NarrowDecoder[_M]:
    """The decoder of a kind, made once."""
    return NarrowDecoder(manifest)
