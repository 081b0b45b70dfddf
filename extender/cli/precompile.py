"""Compiles kernels in a child process, into the cache from which this process then loads them.

The child frees the compiler's memory (100 MiB) when it ends. Meanwhile the service can list the cluster. The
kernels of the victim search are not compiled at the start: ``explain`` and ``replay`` compile them when they
need them, and the service has a child compile them when it is ready (``victim_kernels_command``).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import get_args

from extender.cli.kernel_cache import VARIABLE, KernelGroup, choose_cache, filled_marker, kernel_modules
from extender.untrusted.terminal import show_line

_POLL = 0.2  # seconds
_BAR = 30  # characters
_NICE = 10
"""Of a child beside a service that answers requests."""
_log = logging.getLogger(__name__)


def prepare_kernels() -> None:
    """Choose a cache for compiled kernels, and fill it with those of the start unless it has them, so that
    their import is fast.

    Call it before numba is imported; later it does nothing. A terminal shows the progress. If it fails,
    kernels are compiled when they are imported.
    """
    if "numba" in sys.modules:
        return
    directory = choose_cache()
    if directory is None:
        _log.warning("no directory for compiled kernels can be written: each start compiles them")
        return
    _fill(directory, "start")


def prepare_victim_kernels() -> bool:
    """Fill the cache with the kernels of the victim search unless it has them. True: victims can be searched,
    because kernels that could not be compiled ahead are compiled when they are imported."""
    if directory := os.environ.get(VARIABLE):
        _fill(Path(directory), "victims")
    return True


def victim_kernels_command() -> Sequence[str]:
    """The command of a process that fills the cache with the kernels of the victim search. Empty if the cache
    has them, or if there is none."""
    directory = os.environ.get(VARIABLE)
    if not directory or filled_marker(Path(directory), "victims").exists():
        return ()
    return (*_command("victims"), str(_NICE))


@contextmanager
def loading_kernels() -> Iterator[None]:
    """Prepare the kernels. A terminal shows ``Loading ...`` until the block ends."""
    prepare_kernels()
    show_line("Loading ...")
    try:
        yield
    finally:
        show_line("")


def _fill(directory: Path, group: KernelGroup) -> None:
    if filled_marker(directory, group).exists():
        return
    started = time.monotonic()
    _log.info("compiling kernels into %s; later starts load them from there", directory)
    try:
        _compile(directory, group)
    except (OSError, subprocess.CalledProcessError) as error:
        _log.warning("compiling kernels ahead failed, they are compiled when they are needed: %s", error)
    else:
        _log.info("compiled kernels in %.1f s", time.monotonic() - started)


def _compile(directory: Path, group: KernelGroup) -> None:
    nothing = subprocess.DEVNULL  # or who reads our output would wait for the child when we are killed
    process = subprocess.Popen(_command(group), stdin=nothing, stdout=nothing, stderr=nothing)
    modules = [name.rpartition(".")[2] for name in kernel_modules(group)]
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


def _command(group: KernelGroup) -> Sequence[str]:
    return sys.executable, "-m", __name__, group


def main(arguments: Sequence[str]) -> None:
    """The child process: arguments are the group, and how much nicer it shall be."""
    group: KernelGroup = "victims" if arguments[0] == get_args(KernelGroup)[1] else "start"
    if len(arguments) > 1:
        os.nice(int(arguments[1]))
    marker = filled_marker(Path(os.environ[VARIABLE]), group)  # before they are read
    for name in kernel_modules(group):
        import_module(name)
    marker.touch()


if __name__ == "__main__":
    main(sys.argv[1:])
