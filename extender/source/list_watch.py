"""The list-then-watch protocol for one kind, without I/O, threads or a clock: the next request, and the
events in an answer.

A full list (in pages) ends in ``Listed``; from its resource version on, a watch streams every change. The
version is updated by every event and bookmark, so a new watch continues where a broken one stopped. If the
server no longer has that version (410), a new list follows. See "Efficient detection of changes" in
https://kubernetes.io/docs/reference/using-api/api-concepts/.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from msgspec import Meta, Raw, Struct, ValidationError, field

from extender.k8s.manifest import MALFORMED, Unreadable, decode, decoding_problem
from extender.k8s.objects import Deleted, Event, Listed, Upserted
from extender.source.watched_kinds import WatchedKind
from extender.untrusted.limits import quoted, shorten

PAGE = 500  # objects; a list of 30,000 pods at once would cost 130 MB here and stall the API server
WATCH_SECONDS = 290  # many proxies cut a connection after five minutes

_log = logging.getLogger(__name__)


class ProtocolError(ValueError):
    """The answer is not a list in the format of the Kubernetes API."""


class _ListMetadata(Struct):
    """``more`` is the token for the next page, "" or None after the last one."""

    version: Annotated[str, Meta(min_length=1)] = field(name="resourceVersion")
    more: str | None = field(name="continue", default=None)


class _Bookmark(Struct):
    metadata: _ListMetadata


class _Page(_Bookmark):
    items: list[Raw] | None = None


class _Status(Struct):
    code: int | None = None
    message: str | None = None


class _Line(Struct):
    """A line of a watch: an object that has changed, a bookmark, or an error."""

    type: str
    object: Raw


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. If ``watch``, the answer is a stream, otherwise one page."""

    path: str
    query: Mapping[str, str]
    watch: bool


class ListWatch:
    """The protocol state of one kind.

    Call ``next_request``, then pass the answer to ``page`` or ``chunk``, or any status other than 200 to
    ``rejected``. A broken connection needs no call. Events must be applied in the order they are returned.
    """

    def __init__(self, watched: WatchedKind) -> None:
        self._watched, self._rest = watched, bytearray()  # the bytes of a line that has not ended
        self.relist()

    @property
    def in_line(self) -> bool:
        """Whether the bytes of the watch so far end in the middle of an event."""
        return bool(self._rest)

    @property
    def watching(self) -> bool:
        """Whether the list is complete and the next request is a watch."""
        return self._watching

    def relist(self) -> None:
        """Start over: the next request is the first page of a new list."""
        self._watching, self._version, self._continue, self._paged = False, "", "", True
        self._keys: set[str] = set()

    def next_request(self) -> Request:
        """The request to send now. Call it for every attempt: it drops a partial line of a broken stream."""
        self._rest.clear()
        if self._watching:
            query = {"watch": "true", "allowWatchBookmarks": "true"}
            query |= {"resourceVersion": self._version, "timeoutSeconds": str(WATCH_SECONDS)}
        else:
            query = {"limit": str(PAGE)} if self._paged else {}
            query |= {"continue": self._continue} if self._continue else {}
        return Request(self._watched.path, query | dict(self._watched.selector), self._watching)

    def page(self, body: bytes, began: float = -math.inf) -> list[Event]:
        """The events of a page of the list; ``Listed`` after the last page. ``began``: see ``Listed``.

        Raises ``ProtocolError``; then the next request is for the same page again.
        """
        try:
            page = decode(body, _Page)
        except MALFORMED as error:
            raise ProtocolError(
                shorten(f"not a list of {self._watched.path}: {decoding_problem(error)}")
            ) from None
        events: list[Event] = []
        for item in page.items or ():
            try:
                obj, _ = self._watched.read(item)
            except Unreadable as error:
                self._warn("", error)
                continue
            self._keys.add(obj.key)
            events.append(Upserted(obj))
        self._continue = page.metadata.more or ""
        if not self._continue:
            events.append(Listed(self._watched.kind, frozenset(self._keys), began=began))
            self.relist()
            self._watching, self._version = True, page.metadata.version
        return events

    def chunk(self, data: bytes) -> list[Event]:
        """The events in the next bytes of a watch, split at any position.

        After an error from the server, ``watching`` is false.
        """
        events: list[Event] = []
        self._rest += data
        if b"\n" in data:  # else all of a long line would be searched for each part of it
            *lines, self._rest = self._rest.split(b"\n")
            for line in filter(None, lines):
                if not self._watching:
                    break
                events += self._parse_line(bytes(line))
        return events

    def rejected(self, status: int) -> bool:
        """Handle a status other than 200. Returns whether a new list is needed."""
        if status not in (HTTPStatus.GONE, HTTPStatus.BAD_REQUEST):
            return False  # retry the same request
        # If listing outlasts the validity of a continue token, paging would never end: list without pages.
        whole = bool(self._continue)
        self.relist()
        self._paged = not whole
        return True

    def _parse_line(self, text: bytes) -> list[Event]:
        try:
            line = decode(text, _Line)
            if line.type == "ERROR":
                status = decode(line.object, _Status)
                return self._restart(f"{status.code} {status.message}")
            if line.type == "BOOKMARK":
                self._version = decode(line.object, _Bookmark).metadata.version
                return []
        except ValidationError as error:
            self._warn("change of a ", decoding_problem(error))
            return []
        except MALFORMED:
            return self._restart("the watch sent invalid JSON")
        if line.type not in ("ADDED", "MODIFIED", "DELETED"):
            self._warn("change of a ", f"its type is {quoted(line.type)}")
            return []
        try:
            obj, version = self._watched.read(line.object)
        except Unreadable as error:  # a new list has the current objects
            return self._restart(f"change of an object without a name: {error}")
        self._version = version or self._version
        return [Deleted(obj.kind, obj.key) if line.type == "DELETED" else Upserted(obj)]

    def _warn(self, which: str, problem: object) -> None:
        what = f"{which}{self._watched.kind}"
        _log.warning("ignored a %s that cannot be parsed: %s", what, shorten(str(problem)))

    def _restart(self, problem: str) -> list[Event]:
        # Mostly 410. client-go relists after other errors, too.
        _log.info("%s: listing again: %s", self._watched.resource, shorten(problem))
        self.relist()
        return []
