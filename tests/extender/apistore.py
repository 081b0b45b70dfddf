"""One resource of an API server: its objects, a log of changes, and the oldest version in the log.

Every change gets a version. Watches and continue tokens expire when the log is compacted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Manifest = dict[str, Any]


def line(kind: str, obj: object) -> bytes:
    """An event of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def error(code: int) -> bytes:
    """The event that ends a watch early."""
    return line(
        "ERROR", {"kind": "Status", "code": code, "metadata": {}, "message": "no", "status": "Failure"}
    )


def bookmark(version: int) -> bytes:
    """The event that carries only a version."""
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def page(items: Iterable[object], version: int = 7, more: str = "") -> bytes:
    """A page of a list."""
    return json.dumps(
        {"metadata": {"resourceVersion": str(version), "continue": more}, "items": [*items]}
    ).encode()


def key_of(manifest: Manifest) -> str:
    """``namespace/name`` of a pod, the name of a node."""
    metadata = manifest["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


class Store:
    """The objects of one resource, and its log since the last compaction."""

    def __init__(self, page_size: int = 2) -> None:
        self.version = 1
        self.objects: dict[str, Manifest] = {}
        self._page_size = page_size
        self._log: list[tuple[int, bytes]] = []
        self._oldest = 0
        self._snapshots: dict[str, tuple[int, list[Manifest]]] = {}

    def put(self, manifest: Manifest) -> None:
        """Create or change an object."""
        self._write("MODIFIED" if key_of(manifest) in self.objects else "ADDED", manifest)
        self.objects[key_of(manifest)] = self._with_version(manifest)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._write("DELETED", self.objects.pop(key))

    def compact(self) -> None:
        """Drop the log: older watches and continue tokens get 410."""
        self._oldest = self.version
        self._snapshots.clear()

    def list(self, query: dict[str, str]) -> tuple[int, bytes]:
        """Handle a list request: status and body."""
        if token := query.get("continue"):
            if token not in self._snapshots:
                return 410, b"{}"
            version, rest = self._snapshots[token]
        else:
            node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
            every = self.objects.values()
            version, rest = self.version, [o for o in every if not node or o["spec"]["nodeName"] == node]
        if "limit" not in query or len(rest) <= self._page_size:
            return 200, page(rest, version)
        token = f"{version}.{len(rest)}"
        self._snapshots[token] = (version, rest[self._page_size :])
        return 200, page(rest[: self._page_size], version, token)

    def since(self, version: int) -> bytes | None:
        """The events after a version; None if the log no longer has them."""
        return None if version < self._oldest else b"".join(data for at, data in self._log if at > version)

    def create(self, manifest: Manifest) -> tuple[int, Manifest]:
        """Handle a POST: status and body."""
        if key_of(manifest) in self.objects:
            return 409, {"message": "already exists"}
        self.put(manifest)
        return 201, self.objects[key_of(manifest)]

    def replace(self, manifest: Manifest) -> tuple[int, Manifest]:
        """Handle a PUT: status and body. The object must have the current resource version."""
        current = self.objects.get(key_of(manifest))
        if current is None:
            return 404, {"message": "not found"}
        if manifest["metadata"].get("resourceVersion") != current["metadata"]["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        self.put(manifest)
        return 200, self.objects[key_of(manifest)]

    def _write(self, kind: str, manifest: Manifest) -> None:
        self.version += 1
        self._log.append((self.version, line(kind, self._with_version(manifest))))

    def _with_version(self, manifest: Manifest) -> Manifest:
        return manifest | {"metadata": manifest["metadata"] | {"resourceVersion": str(self.version)}}
