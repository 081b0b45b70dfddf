"""``stowage`` comes onto the PATH as README says, from a clone, with everything that it needs."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .tools import ROOT, program

NO_UV = "NO UV: `uv tool install .` is not tested (`make setup` brings uv)"
UV = shutil.which("uv") or shutil.which(ROOT / ".uv" / "bin" / "uv")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, and nothing else: no virtual environment, no compiled kernels."""
    directory = tmp_path_factory.mktemp("clone")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in files.stdout.split("\0")[:-1]:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def path(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the command of README puts the program."""
    if UV is None:
        pytest.skip(NO_UV)
    home = tmp_path_factory.mktemp("tools")
    environment = os.environ | {"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin")}
    command = [UV, "tool", "install", "--python", sys.executable, "."]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "bin"


def run(path: Path, directory: Path, *command: str) -> str:
    environment = os.environ | {
        "PATH": f"{path}{os.pathsep}/usr/bin:/bin",
        "NUMBA_CACHE_DIR": str(path.parent / "kernels"),
    }
    done = subprocess.run(
        ["sh", "-c", " ".join(command)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_installed_from_the_clone(path: Path, tmp_path: Path) -> None:
    assert run(path, tmp_path, "stowage version") == f"stowage {VERSION}\n"
    assert run(path, tmp_path, "kubectl-stowage version") == f"stowage {VERSION}\n"


def test_kubectl_completes_it(path: Path, tmp_path: Path) -> None:
    """The real kubectl finds the program on the PATH, and reads what it prints."""
    words = run(path, tmp_path, f"{program('kubectl')} __complete stowage top --so").splitlines()
    assert words == ["--sort", "--sort-by", ":4"]


def test_it_has_its_data(path: Path, clone: Path) -> None:
    """The example cluster, the catalog of GPUs and the kernels' sources are in the wheel."""
    said = run(path, clone, "stowage explain deploy/examples/first-pod.yaml --example")
    assert "It fits on " in said
    assert "nvidia.com/gpu" in said


def test_it_has_no_tools_of_the_developers(path: Path) -> None:
    (python,) = (path.parent / "tools").glob("*/bin/python")
    done = subprocess.run([python, "-c", "import pytest"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr
