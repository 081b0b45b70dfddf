"""The list-then-watch protocol for one kind, without I/O, threads or a clock: which request comes next, and
which events an answer contains.

A full list (in pages) ends in ``Listed``; from its resource version on, a watch streams every change. The
version is updated by every event and bookmark, so a new watch continues where a broken one stopped. If the
server no longer has that version (410), a new list follows. See "Efficient detection of changes" in
https://kubernetes.io/docs/reference/using-api/api-concepts/.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from extender.k8s.objects import Deleted, Event, Listed, Upserted
from extender.source import narrow
from extender.source.watched_kinds import Manifest, WatchedKind
from extender.untrusted.limits import shorten, validation_problem

PAGE = 500  # objects; a list of 30,000 pods at once would cost 130 MB here and stall the API server
WATCH_SECONDS = 290  # many proxies cut a connection after five minutes

_log = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Manifest)


class ProtocolError(ValueError):
    """The answer is not a list of the Kubernetes API."""


class _ListMetadata(BaseModel):
    version: str = Field(alias="resourceVersion", min_length=1)
    more: str | None = Field(default=None, alias="continue")


class _Versioned(BaseModel):
    metadata: _ListMetadata


class _Page(_Versioned, Generic[_M]):
    items: list[_M] | None = None


class _Change(BaseModel, Generic[_M]):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: _M


class _Bookmark(BaseModel):
    type: Literal["BOOKMARK"]
    object: _Versioned


class _Status(BaseModel):
    code: int | None = None
    message: str | None = None


class _Error(BaseModel):
    type: Literal["ERROR"]
    object: _Status


_Line: TypeAlias = _Change[Any] | narrow.Change[Any] | _Bookmark | _Error
_AnyListMetadata: TypeAlias = _ListMetadata | narrow.ListMetadata


@lru_cache
def _page_of(manifest: type[Manifest]) -> TypeAdapter[_Page[Any]]:
    return TypeAdapter(_Page[manifest])  # type: ignore[valid-type]


@lru_cache
def _line_of(manifest: type[Manifest]) -> TypeAdapter[_Line]:
    line = Annotated[_Change[manifest] | _Bookmark | _Error, Field(discriminator="type")]  # type: ignore[valid-type]
    adapter: TypeAdapter[_Line] = TypeAdapter(line)
    return adapter


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. If ``watch``, the answer is a stream, otherwise one page."""

    path: str
    query: Mapping[str, str]
    watch: bool


class ListWatch:
    """The protocol state of one kind.

    Call ``next_request``, then pass the answer to ``page`` or ``chunk``, or any status but 200 to
    ``rejected``. A broken connection needs no call. Events apply in the order in which they are returned.
    """

    def __init__(self, watched: WatchedKind) -> None:
        self._watched = watched
        self._pages, self._change_lines = _page_of(watched.manifest), _line_of(watched.manifest)
        self._narrow = narrow.decoder_of(watched.narrow) if watched.narrow else None
        self.relist()

    @property
    def in_line(self) -> bool:
        """Whether the bytes of the watch so far end within an event."""
        return self._lines.in_line

    @property
    def watching(self) -> bool:
        """Whether the list is complete and the next request is a watch."""
        return self._watching

    def relist(self) -> None:
        """Start over: the next request is the first page of a new list."""
        self._watching, self._version, self._continue, self._paged = False, "", "", True
        self._keys: set[str] = set()

    def next_request(self) -> Request:
        """The request to send now. Call it for every attempt: it drops half a line of a broken stream."""
        self._lines = LineSplitter()
        if self._watching:
            query = {"watch": "true", "allowWatchBookmarks": "true"}
            query |= {"resourceVersion": self._version, "timeoutSeconds": str(WATCH_SECONDS)}
        else:
            query = {"limit": str(PAGE)} if self._paged else {}
            query |= {"continue": self._continue} if self._continue else {}
        return Request(self._watched.path, query | dict(self._watched.selector), self._watching)

    def page(self, body: bytes, began: float = -math.inf) -> list[Event]:
        """The events of a page of the list; ``Listed`` after the last page. ``began``: see there.

        Raises ``ProtocolError``; then the next request asks for the same page again.
        """
        metadata, manifests = self._parse_page(body)
        objects = [manifest.record() for manifest in manifests]
        self._keys.update(obj.key for obj in objects)
        events: list[Event] = [Upserted(obj) for obj in objects]
        self._continue = metadata.more or ""
        if not self._continue:
            events.append(Listed(self._watched.kind, frozenset(self._keys), began=began))
            self.relist()
            self._watching, self._version = True, metadata.version
        return events

    def chunk(self, data: bytes) -> list[Event]:
        """The events of the next bytes of a watch, cut anywhere.

        After an error of the server, ``watching`` is false.
        """
        events: list[Event] = []
        for line in self._lines.feed(data):
            if not self._watching:
                break
            events += self._parse_line(line)
        return events

    def rejected(self, status: int) -> bool:
        """Handle a status other than 200. Returns whether a new list is needed."""
        if status not in (HTTPStatus.GONE, HTTPStatus.BAD_REQUEST):
            return False  # retry the same request
        # Paging would never end if listing takes longer than a continue token is valid: list without pages.
        whole = bool(self._continue)
        self.relist()
        self._paged = not whole
        return True

    def _parse_page(self, body: bytes) -> tuple[_AnyListMetadata, Sequence[Any]]:
        if self._narrow and (found := self._narrow.page(body)):
            return found.metadata, found.items or ()
        try:
            page = self._pages.validate_json(body)
            return page.metadata, page.items or []
        except ValidationError as error:
            if not all(len(e["loc"]) > 1 and e["loc"][0] == "items" for e in error.errors()):
                problem = validation_problem(error)
                raise ProtocolError(f"not a list of {self._watched.path}: {problem}") from None
        raw = from_json(body)  # again, item by item: one broken item must not hide the others
        items = [manifest for item in raw["items"] if (manifest := self._parse_item(item))]
        return _Versioned.model_validate(raw).metadata, items

    def _parse_item(self, item: object) -> Manifest | None:
        try:
            return self._watched.manifest.model_validate(item)
        except ValidationError as error:
            problem = validation_problem(error)
            _log.warning("ignored a %s that cannot be parsed: %s", self._watched.kind, problem)
            return None

    def _parse_line(self, line: bytes) -> list[Event]:
        try:
            narrowed = self._narrow.change(line) if self._narrow else None
            event = narrowed or self._change_lines.validate_json(line)
        except ValidationError as error:
            if error.error_count() == 1 and error.errors()[0]["type"] == "json_invalid":
                return self._restart("the watch sent invalid JSON")
            problem = validation_problem(error)
            _log.warning("ignored a change of a %s that cannot be parsed: %s", self._watched.kind, problem)
            return []
        if isinstance(event, _Error):
            return self._restart(f"{event.object.code} {event.object.message}")
        if isinstance(event, _Bookmark):
            self._version = event.object.metadata.version
            return []
        self._version = (event.object.metadata or {}).get("resourceVersion") or self._version
        obj = event.object.record()
        return [Deleted(obj.kind, obj.key) if event.type == "DELETED" else Upserted(obj)]

    def _restart(self, problem: str) -> list[Event]:
        # Mostly 410. client-go relists after other errors, too.
        _log.info("%s: listing again: %s", self._watched.resource, shorten(problem))
        self.relist()
        return []


class LineSplitter:
    """Splits bytes that come in any portions into lines, in linear time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line whose end is still missing

    @property
    def in_line(self) -> bool:
        """Whether the end of a line is missing."""
        return any(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are now complete, without their ends and without empty ones."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts = [rest[-1]]
        return [line for line in lines if line]
