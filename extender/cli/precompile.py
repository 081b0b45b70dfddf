"""The kernels, compiled by a process of its own into the cache from which this one then loads them.

What the compiler needs, 100 MiB, goes with that process, and meanwhile this one is free to list the cluster.
A cache that is not empty is taken as it is: what it lacks is compiled as it is loaded.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_CACHE = "NUMBA_CACHE_DIR"
_log = logging.getLogger(__name__)


def compile_apart(policy: str) -> None:
    """Compile what the service with this policy needs. Where that fails, they are compiled at their import.

    To be called before numba is loaded, which reads the variable ``NUMBA_CACHE_DIR`` then; where it is not
    set, a directory for the life of this process takes its place.
    """
    try:
        if not os.environ.get(_CACHE):
            os.environ[_CACHE] = _temporary()
        if not any(Path(os.environ[_CACHE]).rglob("*.nbi")):
            subprocess.run([sys.executable, "-m", __name__, policy], check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        _log.warning("the kernels are compiled here, not apart: %s", error)


def _temporary() -> str:
    directory = tempfile.mkdtemp(prefix="stowage-kernels-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def load(policy: str) -> None:
    """Load the kernels, from the cache or by compiling them."""
    from extender.server import engine  # noqa: F401
    from packing.policies.registry import POLICIES

    if policy in POLICIES:
        POLICIES[policy]()


if __name__ == "__main__":
    load(sys.argv[1])
