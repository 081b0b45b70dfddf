"""Runs a command in the file system of the image as the manifests in deploy/ run it: as its user, without any
capability, on a read-only root, with one volume that can be written.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.release.oci import Unpacked

_SCRIPT = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mkdir -p "$1$2"
mount --bind "$3" "$1$2"
mount -o remount,ro,bind "$1"
root=$1; shift 3
cd /
exec chroot "$root" "$@"
"""
_NO_RIGHTS = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")


def command_in(image: Unpacked, volume: Path, *command: str) -> list[str]:
    """The command line. ``volume`` is mounted at the directory of NUMBA_CACHE_DIR."""
    environment = [f"{name}={value}" for name, value in image.environment.items()]
    user, _, group = image.user.partition(":")
    limits = ["setpriv", f"--reuid={user}", f"--regid={group}", *_NO_RIGHTS]
    script = ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(image.root)]
    volumes = [image.environment["NUMBA_CACHE_DIR"], str(volume)]
    return [*script, *volumes, *limits, "env", "-i", *environment, *command]


@contextmanager
def running(image: Unpacked, volume: Path, log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process that is terminated at the end; its output goes to ``log``."""
    with log.open("wb") as output:
        process = subprocess.Popen(command_in(image, volume, *command), stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)
