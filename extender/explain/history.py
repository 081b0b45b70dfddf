"""Decisions, samples of the fleet, runs of pods and run times in files, so that a restart does not lose them.

Each process appends lines of JSON to a file of its own in one directory, and reads the files of all: also
those of other replicas, and of pods before it. Lines that cannot be read are skipped and counted. One thread
does all this: a disk that is full or does not answer delays no verb. What it does not take is lost.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter
from pydantic_core import from_json, to_json

from extender.background import FileThread
from extender.explain.answers import Decision
from extender.k8s.objects import Pod
from extender.settings import Settings
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import HISTORY_FILES, HISTORY_LINE, HISTORY_QUEUED

_WRITE_EVERY = 1.0  # seconds
_LONGEST = 5.0
"""Seconds that a read or write may take. After that it is given up."""
_AGAIN = 3600.0
"""Seconds after which an unchanged answer about a pod is written again."""
_BLOCK = 64 << 10  # bytes that are read at once
_AT = b'{"at":'
DECISION = TypeAdapter(tuple[str, Decision])
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LEARNED = TypeAdapter(tuple[str, tuple[tuple[str, ...] | str, ...], _Seconds])
"""A run time: the UID of the pod, its kinds, and the seconds."""
T = TypeVar("T")


class History:
    """The files in a directory, with at most ``size`` bytes together. ``name``: of this process."""

    def __init__(self, directory: Path, size: int, name: str) -> None:
        self._directory, self._size, self._own = directory, size, directory / f"stowage-{name}.jsonl"
        self._queued: deque[object] = deque(maxlen=HISTORY_QUEUED)
        self._said: BoundedMap[tuple[str, str], tuple[str, str, float]] = BoundedMap(HISTORY_QUEUED)
        self._thread, self._hanging = FileThread("history"), Future[Any]()
        self._hanging.cancel()
        self._failed, self._unreadable = "", 0
        self.files_begun, self.half_file = 0, size // 8  # by this process; bytes

    @property
    def problem(self) -> str:
        """Why something is missing; "" if nothing is."""
        return self._failed or (f"unreadable lines are skipped: {self._unreadable}" * bool(self._unreadable))

    def add_decision(self, pod: Pod, decision: Decision) -> None:
        """An answer about a pod. An unchanged one is written once an hour."""
        key, at = (pod.uid or pod.key, decision.verb), decision.at.timestamp()
        refusals = decision.explanation.refusals if decision.explanation else ()
        why = "; ".join(sorted(refusal.reason for refusal in refusals))
        before = self._said.get(key)
        if before and before[0] == decision.answer and why in ("", before[1]) and at - before[2] < _AGAIN:
            return
        self._said.put(key, (decision.answer, why, at), len(decision.answer) + len(why))
        self.add("decision", (pod.key, decision), at)

    def add(
        self, kind: Literal["decision", "sample", "run", "ended", "learned"], value: object, at: float
    ) -> None:
        """``at``: Unix seconds, first in every line."""
        self._queued.append({"at": at, kind: value})

    async def run(self) -> None:
        """Write what was added, until cancelled, and then the rest."""
        try:
            while True:
                await asyncio.sleep(_WRITE_EVERY)
                await self._in_thread(self._write, None)
        finally:
            await self._in_thread(self._write, None)

    async def decisions(self, key: str, before: float, most: int) -> list[tuple[str, Decision]]:
        """The last decisions ``before`` a moment with the keys of their pods, newest first; about the pod
        ``key`` (``namespace/name``), or all if it is ""."""
        return await self.last(
            DECISION, b'"decision":[' + (to_json(key) + b"," if key else b""), most, before
        )

    async def last(
        self, kind: TypeAdapter[T], words: bytes, most: int, before: float = float("inf"), after: float = 0.0
    ) -> list[T]:
        """The last values from ``after`` until ``before`` on lines with these ``words``, newest first."""
        nothing: list[T] = []

        def read() -> list[T]:
            try:
                self._write()
            except OSError as error:  # a full disk can be read
                self._note(error)
            newest = islice(self._files(), HISTORY_FILES)
            files = [self._lines_of(file, kind, words, before, after) for file in newest]
            return [value for _, value in islice(heapq.merge(*files, key=itemgetter(0), reverse=True), most)]

        return await self._in_thread(read, nothing)

    async def _in_thread(self, call: Callable[[], T], otherwise: T) -> T:
        if not self._hanging.done():
            return otherwise
        running = self._thread.submit(call)
        try:
            async with asyncio.timeout(_LONGEST):  # ``wait_for`` of 3.11 may swallow the end of ``run``
                return await asyncio.wrap_future(running)
        except TimeoutError:
            self._hanging = running
            self._failed = f"the disk did not answer within {_LONGEST:g} s"
        except OSError as error:
            self._note(error)
        return otherwise

    def _note(self, error: OSError) -> None:
        self._failed = f"{error.filename or self._directory}: {error.strerror}"

    def _write(self) -> None:
        """Append what is queued. Raises ``OSError``."""
        if self._queued:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            lines = [self._queued.popleft() for _ in range(len(self._queued))]
            with open(self._own, "ab", opener=_open) as file:
                # the first line break ends what was not written whole
                file.write(b"\n" + b"".join(to_json(line) + b"\n" for line in lines))
            self._failed = ""

    def _make_room(self) -> None:
        """Begin another file if this one has a quarter of the size, and remove the oldest ones."""
        part = self._size // 4
        if self._files().get(self._own, 0) > part:
            self._own.rename(self._own.with_suffix(f".{time.time_ns()}.jsonl"))
            self.files_begun += 1
        left = self._size - part
        for number, (file, size) in enumerate(self._files().items()):
            left -= size
            if (left < 0 or number >= HISTORY_FILES) and file != self._own:
                file.unlink(missing_ok=True)

    def _files(self) -> dict[Path, int]:
        """Their sizes, the newest first. Other replicas may remove some meanwhile."""
        found: dict[Path, os.stat_result] = {}
        for file in self._directory.glob("stowage-*.jsonl"):
            with suppress(FileNotFoundError):
                found[file] = file.lstat()
        newest = sorted(found.items(), key=lambda entry: entry[1].st_mtime_ns, reverse=True)
        return {file: status.st_size for file, status in newest if stat.S_ISREG(status.st_mode)}

    def _lines_of(
        self, file: Path, kind: TypeAdapter[T], words: bytes, before: float, after: float
    ) -> Iterator[tuple[float, T]]:
        """Values with their moments, newest first."""
        unreadable = 0
        for line in self._backwards(file):
            try:
                at = float(line.removeprefix(_AT).partition(b",")[0])
                if not line.endswith(b"}"):
                    raise ValueError
                if after <= at < before and words in line:
                    yield at, kind.validate_python(list(from_json(line).values())[1])
            except (ValueError, IndexError):
                unreadable += 1
                self._unreadable = max(self._unreadable, unreadable)

    def _backwards(self, file: Path) -> Iterator[bytes]:
        """``_backwards``; no lines of a file that cannot be read: those of the others count."""
        try:
            yield from _backwards(file)
        except FileNotFoundError:
            return  # removed by another replica
        except OSError as error:
            self._note(error)


def history_of(settings: Settings) -> History | None:
    """That of this process, None where the settings name no directory."""
    if settings.history_path is None:
        return None
    return History(Path(settings.history_path), settings.history_mib << 20, socket.gethostname())


def _open(path: str, flags: int) -> int:
    """Neither through a symbolic link, nor waiting for a reader of a FIFO; not for users of other groups."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)


def _backwards(file: Path) -> Iterator[bytes]:
    """The lines of a file that are not empty, the last one first; what is longer than a line is cut off, and
    what takes longer than ``_LONGEST`` is not read: nobody waits for it any more."""
    until = time.monotonic() + _LONGEST
    with open(file, "rb", opener=_open) as opened:
        end, rest = opened.seek(0, 2), b""
        while end and time.monotonic() < until:
            start = max(0, end - _BLOCK)
            opened.seek(start)
            rest, *lines = (opened.read(end - start) + rest).split(b"\n")
            yield from filter(None, reversed(lines))
            rest, end = rest[-HISTORY_LINE:], start
        if rest:
            yield rest
