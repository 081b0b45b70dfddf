"""The files of a release: the image, unpacked, needs no rights; the others are what they say.

STOWAGE_RELEASE names a directory that `make release` has made; without it everything is built.
"""

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
from deploy.release import oci
from deploy.release.__main__ import build, version

from .image.container import command_in, running
from .image.root import CONTAINERFILE, REPOSITORY, missing, size_mib
from .tools import program

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"THE IMAGE IS NOT TESTED: {missing()}")
_USER = 65532


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if made := os.environ.get("STOWAGE_RELEASE"):
        return Path(made)
    directory = tmp_path_factory.mktemp("release")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def image(release: Path, tmp_path_factory: pytest.TempPathFactory) -> oci.Unpacked:
    (archive,) = release.glob("stowage-image-*.oci.tar")
    return oci.unpack(archive, tmp_path_factory.mktemp("image"))


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


def run(image: oci.Unpacked, volume: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_in(image, volume, *command), capture_output=True, text=True, check=False)


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
        return reply.read()


@pytest.fixture
def port(image: oci.Unpacked, volume: Path, tmp_path: Path) -> Iterator[int]:
    """A service on the bundled cluster, ready."""
    port = free_port()
    log = tmp_path / "log"
    with running(image, volume, log, *image.command[:2], "--example", f"--port={port}") as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                assert get(port, "/readyz") == b"ok"
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


def test_the_root_cannot_be_written(image: oci.Unpacked, volume: Path) -> None:
    script = "import os; print(os.geteuid()); open('/opt/stowage/x', 'w')"
    answer = run(image, volume, "python", "-c", script)
    assert answer.stdout == f"{_USER}\n"
    assert "Read-only file system" in answer.stderr or "Permission denied" in answer.stderr


def test_only_packages_of_the_runtime_are_installed(image: oci.Unpacked, volume: Path) -> None:
    script = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = set(run(image, volume, "python", "-c", script).stdout.split())
    assert {"kube-stowage", "numba", "fastapi"} <= installed
    assert not installed & {"pytest", "hypothesis", "matplotlib", "mypy", "ruff", "pip", "hatchling"}


def test_it_is_not_larger_than_it_was(image: oci.Unpacked) -> None:
    """deploy/image/README.md has the parts; this is a fifth more."""
    assert size_mib(image.root) < 800


def test_the_bill_of_materials_lists_what_is_installed(
    release: Path, image: oci.Unpacked, volume: Path
) -> None:
    script = (
        "import importlib.metadata as m; print(*(f'{d.name.lower()}@{d.version}' for d in m.distributions()))"
    )
    installed = set(run(image, volume, "python", "-c", script).stdout.replace("_", "-").split())
    (document,) = release.glob("*.cdx.json")
    components = json.loads(document.read_text())["components"]
    listed = {
        one["purl"].removeprefix("pkg:pypi/") for one in components if one["purl"].startswith("pkg:pypi/")
    }
    assert listed == installed
    assert all(
        one.get("hashes") for one in components if "pypi" in one["purl"] and one["name"] != "kube-stowage"
    )
    assert {"libc6", "python3"} <= {one["name"] for one in components}


def test_the_image_says_nothing_about_the_machine_that_built_it(image: oci.Unpacked) -> None:
    hosts = [image.root / path for path in ("etc/hostname", "etc/resolv.conf", "etc/apt/sources.list")]
    assert not [path for path in hosts if path.exists()]
    assert not list((image.root / "var/log").iterdir())


def test_the_checksums_are_of_all_files(release: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    assert len((release / "SHA256SUMS").read_text().splitlines()) == len(list(release.iterdir())) - 1 == 8


def test_the_chart_has_the_version_of_the_release(release: Path) -> None:
    shown = subprocess.check_output(
        [program("helm"), "show", "chart", release / f"stowage-{version()}.tgz"], text=True
    )
    assert f"version: {version()}\n" in shown
    assert f"appVersion: {version()}\n" in shown


def test_what_a_page_needs_is_in_the_source_archive(release: Path) -> None:
    listed = subprocess.check_output(
        ["tar", "--list", "--file", release / f"kube_stowage-{version()}.tar.gz"], text=True
    )
    needed = (
        "deploy/chart/values.yaml",
        "deploy/examples/first-pod.yaml",
        "scheduler-config/second-scheduler.yaml",
    )
    assert {f"kube_stowage-{version()}/{file}" for file in needed} <= set(listed.splitlines())


def test_every_package_has_a_wheel_for_arm64(tmp_path: Path) -> None:
    platform = ["--python-platform=aarch64-manylinux_2_28", "--python-version=3.13", "--only-binary=:all:"]
    lock = ["--require-hashes", "--requirement", str(CONTAINERFILE.with_name("requirements.txt"))]
    uv = shutil.which("uv") or ".uv/bin/uv"
    command = [uv, "pip", "install", "--dry-run", *platform, *lock, "--target", str(tmp_path)]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
