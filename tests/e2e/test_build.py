"""What `python -m tests.e2e.controlplane.build` prints and needs, without a build."""

import os
import subprocess
import sys
from pathlib import Path

from .controlplane.build import COMPONENTS, binary, kubernetes_version

ROOT = Path(__file__).parents[2]


def run_build(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.e2e.controlplane.build"]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_without_go_there_is_one_line(tmp_path: Path) -> None:
    run = run_build(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert "needs Go 1.26" in run.stderr


def test_the_binaries_know_their_version() -> None:
    for component in COMPONENTS:
        if component.module == "kubernetes":
            asks = ["version", "--client"] if component.name == "kubectl" else ["--version"]
            said = subprocess.run([binary(component), *asks], capture_output=True, text=True, check=True)
            assert said.stdout.splitlines()[0].split()[-1] == kubernetes_version()
