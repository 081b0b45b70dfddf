"""Chooses the directory in which compiled kernels persist between runs.

numba reads the variable ``NUMBA_CACHE_DIR`` when it is imported, so a command calls ``choose_cache`` before
it imports kernels. numba runs the machine code in this directory, so a default directory that belongs to
another user is not used.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import packing

VARIABLE = "NUMBA_CACHE_DIR"
SHIPPED = Path(sys.prefix) / "kernels"
"""Compiled kernels that are part of an image. numba needs a writable directory even to read kernels, so they
are copied into one."""
KEPT = 8
"""Directories in the user's cache, one for each installation and each state of the sources: 2 MB each."""
_SIZE = 4 << 20
"""Free disk space in bytes that they require."""

_ROOTS = (Path(packing.__path__[0]), Path(__file__).parents[1])
_log = logging.getLogger(__name__)


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
    os.utime(directory)  # _remove_oldest sorts by this time
    _remove_oldest(directory.parent)
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


def _remove_oldest(parent: Path) -> None:
    try:
        by_use = sorted(parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # another process removes the same ones
        return
    for old in by_use[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
