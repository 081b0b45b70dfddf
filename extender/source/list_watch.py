"""List-then-watch of one resource, without I/O: what to ask the API server next, what its answers mean.

A full list (in pages) ends in ``Listed``; from its resource version on, a watch streams every change. The
version is kept from every event and bookmark, so a broken watch goes on where it stopped. Once the server has
forgotten that version (410), only a new list tells what was missed. See "Efficient detection of changes" in
https://kubernetes.io/docs/reference/using-api/api-concepts/. No HTTP, no threads, no clock here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from extender.k8s.device_manifests import (
    DeviceClassManifest,
    KoordinatorDeviceManifest,
    MigLayoutsManifest,
    ResourceClaimManifest,
    ResourceSliceManifest,
)
from extender.k8s.manifests import Manifest
from extender.k8s.mig_config import PER_NODE_SELECTOR
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Deleted, Event, Kind, Listed, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import shorten
from extender.untrusted.validation import validation_problem

PAGE = 500  # objects; a list of 30,000 pods at once would cost 130 MB here and stall the API server
WATCH_SECONDS = 290  # a watch ends by itself before the five minutes after which many proxies cut it

_log = logging.getLogger(__name__)
_M = TypeVar("_M", bound=Manifest)


class ProtocolError(ValueError):
    """The answer is no list of the Kubernetes API."""


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


class Resource:
    """What is followed: its kind, the path it is served under, how its objects are read, and which of them
    (a label or field selector, {} for all)."""

    def __init__(
        self, kind: Kind, path: str, manifest: type[Manifest], selector: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.path, self.manifest, self.selector = kind, path, manifest, selector or {}
        line = Annotated[_Change[manifest] | _Bookmark | _Error, Field(discriminator="type")]  # type: ignore[valid-type]
        self.page: TypeAdapter[_Page[Any]] = TypeAdapter(_Page[manifest])  # type: ignore[valid-type]
        self.line: TypeAdapter[_Change[Any] | _Bookmark | _Error] = TypeAdapter(line)


NODES = Resource("Node", "/api/v1/nodes", NodeManifest)
PODS = Resource("Pod", "/api/v1/pods", PodManifest)
DEVICES = (
    Resource("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses", DeviceClassManifest),
    Resource("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices", ResourceSliceManifest),
    Resource("ResourceClaim", "/apis/resource.k8s.io/v1/resourceclaims", ResourceClaimManifest),
)
"""Of Dynamic Resource Allocation, which not every cluster has."""
CARDS = Resource("Device", "/apis/scheduling.koordinator.sh/v1alpha1/devices", KoordinatorDeviceManifest)
"""Of Koordinator, which few clusters have."""


def mig_layouts(namespace: str, name: str) -> Resource:
    """The ConfigMap of NVIDIA's MIG manager of this name; "" for those that it writes, one for each node."""
    selector = {"fieldSelector": f"metadata.name={name}"} if name else {"labelSelector": PER_NODE_SELECTOR}
    return Resource("ConfigMap", f"/api/v1/namespaces/{namespace}/configmaps", MigLayoutsManifest, selector)


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. ``watch``: the answer is a stream, otherwise one page."""

    path: str
    query: Mapping[str, str]
    watch: bool


class ListWatch:
    """Where the following of one resource stands.

    Ask ``next_request``, then feed what came: ``page`` or ``chunk`` for an answer, ``rejected`` for a status
    other than 200, nothing for a connection that broke. Events apply in the order they are returned.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.relist()

    @property
    def watching(self) -> bool:
        """Whether the list is complete and the next request is a watch."""
        return self._watching

    def relist(self) -> None:
        """Forget where we are: the next request is the first page of a new list."""
        self._watching, self._version, self._more, self._paged = False, "", "", True
        self._keys: set[str] = set()

    def next_request(self) -> Request:
        """What to ask now. Call it for every try: what a broken stream left half-sent is dropped here."""
        self._lines = LineSplitter()
        if self._watching:
            query = {"watch": "true", "allowWatchBookmarks": "true"}
            query |= {"resourceVersion": self._version, "timeoutSeconds": str(WATCH_SECONDS)}
        else:
            query = {"limit": str(PAGE)} if self._paged else {}
            query |= {"continue": self._more} if self._more else {}
        return Request(self.resource.path, query | dict(self.resource.selector), self._watching)

    def page(self, body: bytes) -> list[Event]:
        """A page of the list; ``Listed`` after the last. After a ``ProtocolError`` it is asked for again."""
        metadata, manifests = self._read_page(body)
        objects = [manifest.record() for manifest in manifests]
        self._keys.update(obj.key for obj in objects)
        events: list[Event] = [Upserted(obj) for obj in objects]
        self._more = metadata.more or ""
        if not self._more:
            events.append(Listed(self.resource.kind, frozenset(self._keys)))
            self.relist()
            self._watching, self._version = True, metadata.version
        return events

    def chunk(self, data: bytes) -> list[Event]:
        """The next bytes of a watch, cut anywhere. After an error of the server, ``watching`` is false."""
        events: list[Event] = []
        for line in self._lines.feed(data):
            if not self._watching:
                break
            events += self._read_line(line)
        return events

    def rejected(self, status: int) -> bool:
        """The server refused the request with this status; whether that means to list anew."""
        if status not in (HTTPStatus.GONE, HTTPStatus.BAD_REQUEST):
            return False  # it is away, overloaded or has us wrong: the same request again
        # A list that lives longer than its continue tokens would never end in pages: take it whole.
        whole = bool(self._more)
        self.relist()
        self._paged = not whole
        return True

    def _read_page(self, body: bytes) -> tuple[_ListMetadata, list[Any]]:
        try:
            page = self.resource.page.validate_json(body)
            return page.metadata, page.items or []
        except ValidationError as error:
            if not all(len(e["loc"]) > 1 and e["loc"][0] == "items" for e in error.errors()):
                raise ProtocolError(f"no list of {self.resource.path}: {validation_problem(error)}") from None
        raw = from_json(body)  # once more, item by item: one that is broken must not hide the others
        items = [manifest for item in raw["items"] if (manifest := self._read_item(item))]
        return _Versioned.model_validate(raw).metadata, items

    def _read_item(self, item: object) -> Manifest | None:
        try:
            return self.resource.manifest.model_validate(item)
        except ValidationError as error:
            _log.warning("Ignored a %s: %s", self.resource.kind, validation_problem(error))
            return None

    def _read_line(self, line: bytes) -> list[Event]:
        try:
            event = self.resource.line.validate_json(line)
        except ValidationError as error:
            if error.error_count() == 1 and error.errors()[0]["type"] == "json_invalid":
                return self._broken("no JSON in the watch")
            _log.warning("Ignored a change of a %s: %s", self.resource.kind, validation_problem(error))
            return []
        if isinstance(event, _Error):
            return self._broken(f"{event.object.code} {event.object.message}")
        if isinstance(event, _Bookmark):
            self._version = event.object.metadata.version
            return []
        return [self._changed(event)]

    def _changed(self, event: _Change[Any]) -> Event:
        self._version = (event.object.metadata or {}).get("resourceVersion") or self._version
        obj = event.object.record()
        return Deleted(obj.kind, obj.key) if event.type == "DELETED" else Upserted(obj)

    def _broken(self, why: str) -> list[Event]:
        # Mostly 410; the others are rare, and client-go lists again, too.
        _log.info("Listing %s again: %s", self.resource.path, shorten(why))
        self.relist()
        return []


class LineSplitter:
    """Bytes in any portions to whole lines, in linear time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line whose end has not come yet

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are now complete, without their ends and without empty ones."""
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts = [rest[-1]]
        return [line for line in lines if line]
