"""Executes the steps of a Containerfile in directories made by debootstrap, instead of in containers.

    python -m tests.e2e.image.root DIRECTORY        # as root; DIRECTORY/root is the image's file system

It needs debootstrap, and takes two to three minutes. The base, Debian's minimal system as in
``debian:trixie-slim``, is kept below ``$XDG_CACHE_HOME/stowage``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .containerfile import Stage, read

REPOSITORY = Path(__file__).parents[3]
CONTAINERFILE = REPOSITORY / "deploy" / "image" / "Containerfile"
_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
"""What the images of Debian do not have (slim: no documentation and no translations)."""
_HOST_VARIABLES = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")
_AUTHORITIES = "/mnt/authorities.pem"
_IN_ROOT = f"""
set -e
mount --make-rprivate /
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
bind() {{ [ ! -e "$2" ] || {{ touch "$1$3"; mount --bind "$2" "$1$3"; }}; }}
bind "$1" /etc/resolv.conf /etc/resolv.conf
bind "$1" /etc/hosts /etc/hosts
bind "$1" "$PIP_CERT" {_AUTHORITIES}
cd /
exec chroot "$@"
"""
"""An engine, too, shows a build the network of the machine."""


def _mirror() -> list[str]:
    """The package mirror that this machine uses; debootstrap has one of its own where apt is not there."""
    if not shutil.which("apt-get"):
        return []
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[:1]


def missing() -> str:
    """Why the steps cannot be executed here; empty if they can."""
    if os.geteuid() != 0:
        return "only root can change the root directory"
    return "" if shutil.which("debootstrap") else "debootstrap is not installed"


def build(directory: Path) -> tuple[Path, Stage]:
    """Execute all stages. Returns the last one and its root directory. Raises CalledProcessError."""
    roots: dict[str, Path] = {}
    for number, stage in enumerate(read(CONTAINERFILE)):
        root = directory / (stage.name or "root")
        shutil.rmtree(root, ignore_errors=True)
        release = stage.base.partition("@")[0].rpartition(":")[2].removesuffix("-slim")
        _copy(_base(release), root)
        roots[stage.name or str(number)] = root
        _execute(stage, root, roots)
    return root, stage


def _base(release: str) -> Path:
    """Debian's minimal system of a release."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stowage" / f"debian-{release}"
    if not base.exists():
        unfinished = base.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _run("debootstrap", "--variant=minbase", release, str(unfinished), *_mirror())
        for left_out in _LEFT_OUT:
            shutil.rmtree(unfinished / left_out)
            (unfinished / left_out).mkdir()
        unfinished.rename(base)
    return base


def _execute(stage: Stage, root: Path, roots: dict[str, Path]) -> None:
    environment, workdir = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
    for instruction, text in stage.steps:
        print(f"{instruction} {text}", file=sys.stderr, flush=True)
        if instruction == "RUN":
            in_root(root, ["sh", "-c", f"cd {workdir} && {text}"], environment)
        elif instruction == "COPY":
            _copy_step(shlex.split(text), root, workdir, roots)
        elif instruction == "ENV":
            environment |= dict(pair.split("=", 1) for pair in shlex.split(text))
        elif instruction == "WORKDIR":
            workdir = text
            (root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)


def in_root(root: Path, command: Sequence[str], environment: dict[str, str]) -> None:
    """Run a command as root in this root directory. Raises CalledProcessError."""
    passed = {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}
    if "PIP_CERT" in os.environ:
        passed["PIP_CERT"] = _AUTHORITIES
    variables = [f"{name}={value}" for name, value in (passed | environment | {"HOME": "/root"}).items()]
    _run("unshare", "--mount", "sh", "-c", _IN_ROOT, "sh", str(root), "env", "-i", *variables, *command)


def _copy_step(arguments: list[str], root: Path, workdir: str, roots: dict[str, Path]) -> None:
    context = REPOSITORY
    if arguments[0].startswith("--from="):
        context = roots[arguments.pop(0).partition("=")[2]]
    *sources, target = arguments
    into = root / os.path.join(workdir, target).lstrip("/")
    for source in sources:
        path = context / source.lstrip("/")
        _copy(path, into / path.name if target.endswith("/") else into)


def _copy(source: Path, target: Path) -> None:
    """Copy with owners, links and times, but times in whole seconds, as in the layers of an image."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _run("cp", "--archive", "--no-target-directory", str(source), str(target))
    for path in [target, *target.rglob("*")] if target.is_dir() else [target]:
        if not path.is_symlink():
            os.utime(path, (int(path.stat().st_mtime),) * 2)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def size_mib(root: Path) -> int:
    """Disk space of all files, in MiB."""
    return int(subprocess.check_output(["du", "-sm", str(root)], text=True).split()[0])


if __name__ == "__main__":
    began = time.monotonic()
    image, _ = build(Path(sys.argv[1]))
    print(f"{image}: {size_mib(image)} MiB, built in {time.monotonic() - began:.0f} s")
