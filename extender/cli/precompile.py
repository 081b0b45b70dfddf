"""Compiles kernels into a directory from which later runs load them, and chooses that directory.

Child processes compile, because the compiler's memory (100 MiB) is freed when they end: one for the service,
which lists the cluster in the meantime, and two for a command that places many pods. A command that evaluates
nodes only once does not wait for them.

numba reads the variable ``NUMBA_CACHE_DIR`` when it is imported, so a command calls ``choose_cache`` before
it imports kernels. numba runs the machine code in this directory, so a default directory that belongs to
another user is not used.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import packing
from extender.untrusted.terminal import show_line, show_progress

VARIABLE = "NUMBA_CACHE_DIR"
SHIPPED = Path(sys.prefix) / "kernels"
"""Compiled kernels that are part of an image. numba needs a writable directory even to read kernels, so they
are copied into one."""
KEPT = 8
"""Directories in the user's cache, one for each installation and each state of the sources: 2 MB each."""
_SIZE = 4 << 20
"""Free disk space in bytes that they require."""

_ROOTS = (Path(packing.__path__[0]), Path(__file__).parents[1])
_POLL = 0.2  # seconds
_LONGEST = "packing.cost.inventory_kernels"
"""Takes as long to compile as all others."""
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
    if (directory := _cache()) and (missing := not_compiled(directory, kernel_modules())):
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
        missing = not_compiled(directory, kernel_modules()) if directory else []
        if directory is None or missing:
            os.environ[_INTERPRET] = "1"
        lock = directory / "compiling" if directory and missing else None
        if lock and not (lock.exists() and time.time() - lock.stat().st_mtime <= _LONG):
            lock.touch()
            show_line("")
            print("compiling kernels in the background, so that later commands are faster", file=sys.stderr)
            _child(missing, start_new_session=True)
    with _saying_so():
        yield


@contextmanager
def _saying_so() -> Iterator[None]:
    show_line("Loading ...")
    try:
        yield
    finally:
        show_line("")


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
    """Compile in two children, and show the fraction of compiled functions: a bar on a terminal, otherwise a
    line for each fifth."""
    parts = ([name for name in modules if (name == _LONGEST) is longest] for longest in (True, False))
    children = [_child(part) for part in parts if part]
    origins = [spec.origin for spec in map(find_spec, modules) if spec and spec.origin]
    expected = sum(len(_FUNCTION.findall(Path(origin).read_text())) for origin in origins)
    there, said = _compiled_functions(directory), -1
    while any(child.poll() is None for child in children):
        part = min((_compiled_functions(directory) - there) / expected, 0.99)
        show_progress(_WHAT, part)
        if int(part * 5) > said and not sys.stderr.isatty():
            said = int(part * 5)
            print(f"{_WHAT}: {part:.0%}", file=sys.stderr, flush=True)
        time.sleep(_POLL)
    show_line("")
    all(map(_succeeds, children))


def _compiled_functions(directory: Path) -> int:
    return sum(1 for _ in directory.glob("*/*.nbi"))


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


def choose_cache(*, lasting: bool = False) -> Path | None:
    """Set ``NUMBA_CACHE_DIR`` to a directory that is writable for this process, and return it.

    Tries the value set by the user, the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``), and,
    unless ``lasting``, a temporary directory that is deleted at exit. If all fail, removes the variable and
    returns None. Copies ``SHIPPED`` kernels into the directory.
    """
    given = os.environ.pop(VARIABLE, "")
    if given and not _is_usable(Path(given)):
        _log.warning("%s=%s is not writable, so it is not used", VARIABLE, given)
        given = ""
    directory = Path(given) if given else _in_user_cache() or (None if lasting else _temporary())
    if directory is not None:
        os.environ[VARIABLE] = str(directory)
        _copy_shipped(directory)
    return directory


def kernel_modules() -> list[str]:
    """Modules that are compiled on import: by convention their names end in ``kernels``."""
    names = (
        ".".join(file.relative_to(root.parent).with_suffix("").parts)
        for root in _ROOTS
        for file in root.rglob("*kernels.py")
    )
    return sorted(names)


def not_compiled(directory: Path, modules: Iterable[str]) -> list[str]:
    """Those of the modules that are missing in a cache."""
    key = sources_key()
    return [module for module in modules if not _marker(directory, key, module).exists()]


def compiled(directory: Path, module: str, key: str) -> None:
    """Record that a cache has a module. ``key``: ``sources_key`` before the module was compiled."""
    _marker(directory, key, module).touch()


def _marker(directory: Path, key: str, module: str) -> Path:
    return directory / f"{key}.{module}"


def sources_key() -> str:
    """Key of compiled kernels. It changes with the sources, their path, numba, Python and the processor in
    ``NUMBA_CPU_NAME``.

    numba itself compares the processor, and the path and content of a kernel's own file, but not of its
    imports.
    """
    machine = (platform.machine(), os.environ.get("NUMBA_CPU_NAME", ""))
    digest = hashlib.sha256(repr((version("numba"), platform.python_version(), machine)).encode())
    for file in sorted([*_ROOTS[0].rglob("*.py"), *_ROOTS[1].rglob("*kernels.py")]):
        digest.update(repr((str(file), file.read_bytes())).encode())
    return digest.hexdigest()[:16]


def _copy_shipped(directory: Path) -> None:
    if not SHIPPED.is_dir():  # the code below reads all sources
        return
    modules, key = kernel_modules(), sources_key()
    if not not_compiled(directory, modules) or not_compiled(SHIPPED, modules):
        return
    try:
        for source in filter(Path.is_dir, SHIPPED.iterdir()):  # the directory itself may belong to root
            shutil.copytree(source, directory / source.name, dirs_exist_ok=True)
        for module in modules:
            compiled(directory, module, key)
    except OSError as error:  # kernels are compiled instead
        _log.warning("the compiled kernels in %s cannot be copied to %s: %s", SHIPPED, directory, error)
        for source in SHIPPED.iterdir():  # partial files would be unreadable
            shutil.rmtree(directory / source.name, ignore_errors=True)


def _in_user_cache() -> Path | None:
    try:
        configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = configured if configured.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # there is no home directory
        return None
    directory = base / "stowage" / "kernels" / sources_key()
    if not _is_usable(directory) or directory.stat().st_uid != os.geteuid():
        return None
    os.utime(directory)  # to sort by the time of the last use
    with suppress(OSError):  # another process removes the same ones
        by_use = sorted(directory.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_use[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    return directory


def _temporary() -> Path | None:
    try:
        directory = Path(tempfile.mkdtemp(prefix="stowage-kernels-"))
    except OSError:
        return None
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory if _is_usable(directory) else None


def _is_usable(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_SIZE))
            return True
    except OSError:
        return False


def main(modules: Sequence[str]) -> None:
    """Compile these modules by importing them."""
    directory, key = Path(os.environ[VARIABLE]), sources_key()  # before the sources are read
    gc.disable()  # collection would take a quarter of the time
    for name in modules:
        import_module(name)
        compiled(directory, name, key)


if __name__ == "__main__":
    main(sys.argv[1:] or kernel_modules())
