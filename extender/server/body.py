"""Receives request bodies within limits of size and total memory; ``port.py`` limits their time.

Anyone who can reach the port can send bodies, slowly and many at once. If all bodies together are too large,
we drop the largest that is still arriving: requests from kube-scheduler are small, so they get through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from starlette.requests import Request

from extender.untrusted.limits import BODIES_IN_FLIGHT, BODY_SECONDS, LARGE_BODY, PART_OF_MEMORY

_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of cgroups v2 and v1 (Documentation/admin-guide of the kernel: cgroup-v2.rst, cgroup-v1/memory.rst)."""
_NO_LIMIT = 1 << 60
"""cgroups v1 reports a number above this for "no limit"."""


class Reducer(Protocol):
    """Reduces a body while it arrives."""

    def feed(self, chunk: bytes) -> bytes:
        """The retained bytes so far that were not returned before."""

    def end(self) -> bytes:
        """The remainder of the retained part."""


class Nothing:
    """A ``Reducer`` that keeps nothing."""

    def feed(self, chunk: bytes) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


class BodyRefused(Exception):
    """A body that was not received, with the reason. ``result`` is the label for the metric."""

    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


@dataclass(slots=True, eq=False)
class _Body:
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    is_dropped: bool = False


class BodyBudget:
    """At most ``BODIES_IN_FLIGHT`` times ``limit`` bytes for the bodies of all running requests of one port.

    ``limit``: maximum bytes of one body: ``most``, or less if the process has little memory.
    """

    def __init__(self, most: int) -> None:
        memory = memory_limit()
        self.limit = most if memory is None else min(most, max(memory // PART_OF_MEMORY, LARGE_BODY))
        self.held = 0  # bytes
        self._arriving: set[_Body] = set()

    async def take(
        self, request: Request, declared: str, limit: int, reducer: Reducer | None = None
    ) -> bytes:
        """A body, reduced by ``reducer``. It counts until ``release``. Raises ``BodyRefused``.

        ``declared``: the Content-Length, "" if missing. ``limit``: maximum bytes after reduction.
        """
        if declared.isdecimal() and (len(declared) > 20 or int(declared) > limit):
            raise _too_large(limit)
        body = _Body()
        self._arriving.add(body)
        try:
            await self._receive(body, request, limit, reducer)
        except BaseException:
            self._drop(body)
            raise
        self._arriving.discard(body)
        return b"".join(body.chunks)

    def release(self, body: bytes) -> None:
        """Stop counting a body that ``take`` returned."""
        self.held -= len(body)

    async def _receive(self, body: _Body, request: Request, limit: int, reducer: Reducer | None) -> None:
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise BodyRefused(499, "hung_up", "the caller has hung up")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            if more and request.scope.get("state", {}).get("is_late"):
                raise BodyRefused(408, "too_slow", f"the body took longer than {BODY_SECONDS} s")
            if reducer is not None:
                chunk = reducer.feed(chunk) + (b"" if more else reducer.end())
            if body.size + len(chunk) > limit:
                raise _too_large(limit)
            self._hold(body, chunk)

    def _hold(self, body: _Body, chunk: bytes) -> None:
        if not body.is_dropped:
            body.chunks.append(chunk)
            body.size += len(chunk)
            self.held += len(chunk)
            while self.held > BODIES_IN_FLIGHT * self.limit and self._arriving:
                self._drop(max(self._arriving, key=lambda arriving: arriving.size))
        if body.is_dropped:
            raise BodyRefused(503, "overloaded", "too many large requests at once")

    def _drop(self, body: _Body) -> None:
        """Free the memory of a body immediately. Its task notices on the next chunk."""
        self._arriving.discard(body)
        self.held -= body.size
        body.chunks.clear()
        body.size, body.is_dropped = 0, True


def _too_large(limit: int) -> BodyRefused:
    return BodyRefused(413, "too_large", f"the body is larger than {limit >> 20} MiB")


def memory_limit(root: Path = Path("/")) -> int | None:
    """Memory limit of the process in bytes, the lowest of its cgroup and the ancestors; None without a limit.
    ``root``: of the file system."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        is_memory = "memory" in controllers.split(",")
        mounted = root / "sys/fs/cgroup" / ("memory" if is_memory else "")
        if number == "0" or is_memory:
            own = mounted / path.lstrip("/")
            found += [
                _limit_of(directory) for directory in (own, *own.parents) if directory.is_relative_to(mounted)
            ]
    return min((limit for limit in found if limit), default=None)


def _limit_of(cgroup: Path) -> int | None:
    for name in _FILES:
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < _NO_LIMIT:
            return int(text)
    return None
