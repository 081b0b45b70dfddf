"""Loads the kernels of the victim search, which take longer to compile than all others together.

If they are compiled already, they are loaded at the start. Otherwise a child process compiles them once the
service is ready, because a compiler in this process would hold up requests. Until then no victims are
searched: ``preempt`` is refused, and the evictor waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from importlib import import_module

_MODULE = "packing.victims.search_kernels"
_POLL = 0.2  # seconds
_log = logging.getLogger(__name__)


class VictimKernels:
    """``loaded``: victims can be searched."""

    def __init__(self, compile_command: Callable[[], Sequence[str]]) -> None:
        """``compile_command``: of a process that compiles them for this one; empty if there is no need."""
        self._compile_command = compile_command
        self.loaded = False

    def load_compiled(self) -> None:
        """Load them at the start, unless another process shall compile them first."""
        if not self._compile_command():
            self._load()

    async def compile(self, ready: Callable[[], bool]) -> None:
        """Load them if ``load_compiled`` did not, compiled after the service is ``ready``."""
        if self.loaded:
            return
        while not ready():
            await asyncio.sleep(_POLL)
        started = time.monotonic()
        _log.info("compiling the kernels of the victim search in the background")
        if problem := await self._compile():
            _log.warning("compiling ahead failed, this process compiles them: %s", problem)
        await asyncio.to_thread(self._load)
        _log.info("the kernels of the victim search are loaded after %.1f s", time.monotonic() - started)

    async def _compile(self) -> str:
        """Run the command; it ends with this task. Returns what went wrong, "" for nothing."""
        if not (command := self._compile_command()):
            return ""  # another process with the same cache has compiled them since
        nothing = asyncio.subprocess.DEVNULL
        try:
            child = await asyncio.create_subprocess_exec(*command, stdin=nothing, stderr=nothing)
        except OSError as error:
            return str(error)
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return f"the compiler returned {code}" if code else ""

    def _load(self) -> None:
        import_module(_MODULE)
        self.loaded = True
