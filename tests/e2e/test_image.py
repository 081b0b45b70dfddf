"""The steps of deploy/image/Containerfile, executed in a clean Debian, give an image that needs no rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.service import free_port

from .image.container import command_in, running
from .image.containerfile import Stage
from .image.root import CONTAINERFILE, REPOSITORY, build, missing, size_mib

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"THE IMAGE IS NOT TESTED: {missing()}")
_USER = 65532
Image = tuple[Path, Stage]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(tmp_path_factory.mktemp("image"))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """An emptyDir with ``fsGroup``."""
    directory = tmp_path / "volume"
    directory.mkdir()
    os.chown(directory, 0, _USER)
    directory.chmod(0o2770)
    for parent in directory.parents[:3]:
        parent.chmod(0o755)
    return directory


def run(image: Image, volume: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_in(*image, volume, *command), capture_output=True, text=True, check=False)


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
        return reply.read()


@pytest.fixture
def port(image: Image, volume: Path, tmp_path: Path) -> Iterator[int]:
    """A service on the bundled cluster, ready."""
    port = free_port()
    log = tmp_path / "log"
    with running(*image, volume, log, "stowage", "serve", "--example", f"--port={port}") as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                assert get(port, "/readyz") == b"ready\n"
                break
            except OSError:
                time.sleep(0.1)
        yield port
    assert process.returncode == 0, log.read_text()
    assert "compil" not in log.read_text()  # the image has all kernels
    assert "WARN" not in log.read_text()


def test_the_service_runs_read_only_without_rights(port: int) -> None:
    assert json.loads(get(port, "/version"))["version"]
    assert json.loads(get(port, "/debug/nodes"))["nodes"]


def test_the_root_cannot_be_written(image: Image, volume: Path) -> None:
    script = "import os; print(os.geteuid()); open('/opt/stowage/x', 'w')"
    answer = run(image, volume, "python", "-c", script)
    assert answer.stdout == f"{_USER}\n"
    assert "Read-only file system" in answer.stderr or "Permission denied" in answer.stderr


def test_only_packages_of_the_runtime_are_installed(image: Image, volume: Path) -> None:
    script = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = set(run(image, volume, "python", "-c", script).stdout.split())
    assert {"kube-stowage", "numba", "fastapi"} <= installed
    assert not installed & {"pytest", "hypothesis", "matplotlib", "mypy", "ruff", "pip", "hatchling"}


def test_it_is_not_larger_than_it_was(image: Image) -> None:
    """docs/image.md has the parts; this is a fifth more."""
    assert size_mib(image[0]) < 800


def test_every_package_has_a_wheel_for_arm64(tmp_path: Path) -> None:
    platform = ["--python-platform=aarch64-manylinux_2_28", "--python-version=3.13", "--only-binary=:all:"]
    lock = ["--require-hashes", "--requirement", str(CONTAINERFILE.with_name("requirements.txt"))]
    uv = shutil.which("uv") or ".uv/bin/uv"
    command = [uv, "pip", "install", "--dry-run", *platform, *lock, "--target", str(tmp_path)]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
