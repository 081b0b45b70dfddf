"""How much memory the process may have, by its cgroup and those around it."""

from __future__ import annotations

from pathlib import Path

_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of cgroups v2 and v1 (Documentation/admin-guide of the kernel: cgroup-v2.rst, cgroup-v1/memory.rst)."""
_NO_LIMIT = 1 << 60
"""cgroups v1 says a number above this for "none"."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes, None without a limit. ``root``: of the file system."""
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
