"""Compiles kernels in a child process, into the cache from which this process then loads them.

The child frees the compiler's memory (100 MiB) when it ends. Meanwhile the service can list the cluster.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from extender.cli.kernel_cache import VARIABLE, choose_cache, filled_marker, kernel_modules
from extender.untrusted.terminal import show_line

_POLL = 0.2  # seconds
_BAR = 30  # characters
_log = logging.getLogger(__name__)


def prepare_kernels() -> None:
    """Choose a cache for compiled kernels, and fill it unless it has them, so that their import is fast.

    Call it before numba is imported; later it does nothing. A terminal shows the progress. If it fails,
    kernels are compiled when they are imported.
    """
    if "numba" in sys.modules:
        return
    directory = choose_cache()
    if directory is None:
        _log.warning("no directory for compiled kernels can be written: each start compiles them")
        return
    _fill(directory)


@contextmanager
def loading_kernels() -> Iterator[None]:
    """Prepare the kernels. A terminal shows ``Loading ...`` until the block ends."""
    prepare_kernels()
    show_line("Loading ...")
    try:
        yield
    finally:
        show_line("")


def _fill(directory: Path) -> None:
    if filled_marker(directory).exists():
        return
    started = time.monotonic()
    _log.info("compiling kernels into %s; later starts load them from there", directory)
    try:
        _compile(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        _log.warning("compiling kernels ahead failed, they are compiled when they are needed: %s", error)
    else:
        _log.info("compiled kernels in %.1f s", time.monotonic() - started)


def _compile(directory: Path) -> None:
    command = sys.executable, "-m", __name__
    nothing = subprocess.DEVNULL  # or who reads our output would wait for the child when we are killed
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    modules = [name.rpartition(".")[2] for name in kernel_modules()]
    started = time.monotonic()
    while True:
        try:
            code = process.wait(_POLL)
            break
        except subprocess.TimeoutExpired:
            done = sum(any(directory.rglob(f"{module}.*.nbi")) for module in modules)
            filled = "#" * (_BAR * done // len(modules))
            seconds = time.monotonic() - started
            show_line(f"Compiling kernels, only once: [{filled:.<{_BAR}}] {seconds:.0f} s")
    show_line("")
    if code:
        raise subprocess.CalledProcessError(code, process.args)


def main() -> None:
    """The child process."""
    marker = filled_marker(Path(os.environ[VARIABLE]))  # before they are read
    for name in kernel_modules():
        import_module(name)
    marker.touch()


if __name__ == "__main__":
    main()
