"""Compiles kernels into the cache from which later runs load them.

The service compiles in a child process, which frees the compiler's memory (100 MiB) when it ends; in the
meantime the service can list the cluster. A command that places many pods compiles one half itself and the
other in a child. A command that evaluates nodes only once does not wait for the compiler.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from extender.cli.kernel_cache import (
    VARIABLE,
    choose_cache,
    compiled,
    kernel_modules,
    not_compiled,
    sources_key,
)
from extender.untrusted.terminal import show_line, show_progress

_POLL = 0.2  # seconds
_LONGEST = "packing.cost.inventory_kernels"
"""Takes as long to compile as all others that commands need."""
_OF_SERVICE = "extender.protocol.node_name_kernels"
"""Not needed by commands."""
_WHAT = "Compiling kernels, only once"
_FUNCTION = re.compile(r"^@(?:inlined|kernel|record_kernel)\b", re.MULTILINE)
_INTERPRET = "NUMBA_DISABLE_JIT"
_FEW = 100
"""Nodes and pods up to which plain Python answers a question sooner than numba can be imported."""
_LONG = 300.0
"""Seconds within which a child that compiles for later commands ends."""
_log = logging.getLogger(__name__)


def prepare_kernels() -> None:
    """Choose a cache for compiled kernels and add the missing kernels, so that their import is fast.

    Call this before numba is imported; later it has no effect. If it fails, kernels are compiled on import.
    """
    if (directory := _cache()) is None or not (missing := not_compiled(directory, kernel_modules())):
        return
    started = time.monotonic()
    _log.info("compiling kernels into %s; later starts load them from there", directory)
    if _succeeds(_child(missing)):
        _log.info("compiled kernels in %.1f s", time.monotonic() - started)


@contextmanager
def loading_kernels() -> Iterator[None]:
    """Load the kernels that commands need. A terminal shows ``Loading ...`` until the block ends, and the
    progress of compilation."""
    modules, directory = _of_commands(), _cache()
    if directory is not None and (missing := not_compiled(directory, modules)):
        _compile(directory, missing)
    with _saying_so():
        yield


@contextmanager
def kernels_for_question(objects: int) -> Iterator[None]:
    """Load the kernels for one question about a cluster with this number of nodes and pods: compiled, or as
    plain Python if it is small or kernels are not compiled yet. If it is large, a child compiles missing
    kernels for later commands."""
    if "numba" not in sys.modules:
        directory = choose_cache(lasting=True) if objects > _FEW else None
        missing = not_compiled(directory, _of_commands()) if directory else []
        if directory is None or missing:
            os.environ[_INTERPRET] = "1"
        if directory and missing:
            _compile_for_later(directory, missing)
    with _saying_so():
        yield


@contextmanager
def _saying_so() -> Iterator[None]:
    show_line("Loading ...")
    try:
        yield
    finally:
        show_line("")


def _of_commands() -> list[str]:
    return [name for name in kernel_modules() if name != _OF_SERVICE]


def _compile_for_later(directory: Path, modules: list[str]) -> None:
    lock = directory / "compiling"
    if not lock.exists() or time.time() - lock.stat().st_mtime > _LONG:
        lock.touch()
        show_line("")
        print("compiling kernels in the background, so that later commands are faster", file=sys.stderr)
        _child(modules, start_new_session=True)


def _cache() -> Path | None:
    """Directory for compiled kernels; None if numba has been imported or must not compile, or if no directory
    is writable."""
    if "numba" in sys.modules or os.environ.get(_INTERPRET) == "1":
        return None
    directory = choose_cache()
    if directory is None:
        _log.warning("no directory for compiled kernels is writable: they are compiled at each start")
    return directory


def _compile(directory: Path, modules: list[str]) -> None:
    """Compile the longest module in a child, the others here."""
    here = [name for name in modules if name != _LONGEST]
    with _shown(directory, modules):
        if _LONGEST not in modules:
            main(here)
            return
        child = _child([_LONGEST])
        main(here, ahead=True)
        _succeeds(child)


def _child(modules: Sequence[str], *, start_new_session: bool = False) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL  # otherwise readers of our output would wait for the child if we are killed
    command = sys.executable, "-m", __name__, *modules
    environment = {name: value for name, value in os.environ.items() if name != _INTERPRET}
    return subprocess.Popen(
        command,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        env=environment,
        start_new_session=start_new_session,
        preexec_fn=partial(os.nice, 19) if start_new_session else None,  # the command itself has priority
    )


def _succeeds(child: subprocess.Popen[bytes]) -> bool:
    if code := child.wait():
        _log.warning("compiling kernels in advance failed, so they are compiled when needed: status %s", code)
    return not code


@contextmanager
def _shown(directory: Path, modules: Sequence[str]) -> Iterator[None]:
    """Show the fraction of compiled functions: a bar on a terminal, otherwise a line for each fifth."""
    expected = {module.rpartition(".")[2]: _functions(module) for module in modules}
    ended = threading.Event()

    def watch() -> None:
        said = -1
        while not ended.wait(_POLL if said >= 0 else 0):
            found = Counter(file.name.partition(".")[0] for file in directory.glob("*/*.nbi"))
            done = sum(min(found[name], most) for name, most in expected.items())
            part = min(done / max(1, sum(expected.values())), 0.99)
            show_progress(_WHAT, part)
            if int(part * 5) > said and not sys.stderr.isatty():
                print(f"{_WHAT}: {part:.0%}", file=sys.stderr, flush=True)
            said = max(said, int(part * 5))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show_line("")


def _functions(module: str) -> int:
    """Number of functions in a module that are compiled."""
    spec = find_spec(module)
    return len(_FUNCTION.findall(Path(spec.origin).read_text())) if spec and spec.origin else 0


def main(modules: Sequence[str], *, ahead: bool = False) -> None:
    """Compile these modules by importing them; ``ahead``: first a quarter of the longest module."""
    directory, key = Path(os.environ[VARIABLE]), sources_key()  # before the sources are read
    gc.disable()  # collection would take a quarter of the time
    try:
        if ahead:
            from packing.cost.island_kernels import compile_ahead

            compile_ahead()
        for name in modules:
            import_module(name)
            compiled(directory, name, key)
    finally:
        gc.enable()


if __name__ == "__main__":
    main(sys.argv[1:] or kernel_modules())
