"""What an API server keeps of one resource: objects, a log of changes, and what it has forgotten.

A version for every change; watches and continue tokens expire when the past is compacted.
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
    """The event with which a watch ends before its time."""
    return line(
        "ERROR", {"kind": "Status", "code": code, "metadata": {}, "message": "no", "status": "Failure"}
    )


def bookmark(version: int) -> bytes:
    """The event that only carries a version."""
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
    """The objects of one resource, and its log as far as it is remembered."""

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
        """Forget the past: older watches and continue tokens are gone."""
        self._oldest = self.version
        self._snapshots.clear()

    def list(self, query: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of a list."""
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
        """The events after a version; None where it is forgotten."""
        return None if version < self._oldest else b"".join(data for at, data in self._log if at > version)

    def create(self, manifest: Manifest) -> tuple[int, Manifest]:
        """Status and body of a POST."""
        if key_of(manifest) in self.objects:
            return 409, {"message": "already exists"}
        self.put(manifest)
        return 201, self.objects[key_of(manifest)]

    def replace(self, manifest: Manifest) -> tuple[int, Manifest]:
        """Status and body of a PUT: it must have the version that is there."""
        there = self.objects.get(key_of(manifest))
        if there is None:
            return 404, {"message": "not found"}
        if manifest["metadata"].get("resourceVersion") != there["metadata"]["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        self.put(manifest)
        return 200, self.objects[key_of(manifest)]

    def _write(self, kind: str, manifest: Manifest) -> None:
        self.version += 1
        self._log.append((self.version, line(kind, self._with_version(manifest))))

    def _with_version(self, manifest: Manifest) -> Manifest:
        return manifest | {"metadata": manifest["metadata"] | {"resourceVersion": str(self.version)}}
