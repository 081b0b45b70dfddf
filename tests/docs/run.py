"""Runs commands in a directory with the files that they name, and with ``stowage`` on the PATH."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from extender.cli import main as cli
from tests.certificates import Authority, Secret

from .collect import ROOT

TRAIN = ROOT / "deploy" / "examples" / "checkpointing"
_EXAMPLES = {
    "cluster.json": "docs/examples/cluster.json",
    "job.yaml": "deploy/examples/job.yaml",
    "pod.yaml": "deploy/examples/first-pod.yaml",
}


def prepare(directory: Path) -> None:
    """Puts in what a reader has: the clone (as links), and files of their own (the examples)."""
    for name in ("deploy", "docs", "scheduler-config"):
        (directory / name).symlink_to(ROOT / name)
    for name, example in _EXAMPLES.items():
        shutil.copy(ROOT / example, directory / name)
    shutil.copy(TRAIN / "train.py", directory)
    ca = Authority()
    Secret(directory).certify(ca.server(), ca.pem)


def environment(directory: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "KUBECONFIG": str(directory / "kubeconfig")}


def to_the_end(command: str, directory: Path) -> str:
    """What it prints. It must succeed. Commands of Stowage run in this process, which has the kernels."""
    program, *arguments = shlex.split(command)
    if program == "stowage":
        with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()) as out:
            assert cli.main(arguments) == 0
        return out.getvalue()
    shell = ["bash", "-c", command]
    done = subprocess.run(
        shell, cwd=directory, env=environment(directory), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(command: str, said: str, directory: Path) -> int:
    """The exit code after SIGTERM, once it has said this. Raises ``AssertionError`` if it ends before."""
    command = re.sub(r"port \d+", lambda found: found[0].split()[0] + f" {_free_port()}", command)
    if command.startswith(
        "stowage serve"
    ):  # a free port, and a cluster where the command takes that of kubectl
        command += " --port 0" + " --example" * ("--snapshot" not in command)
    started = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=directory,
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    printed = []
    for line in started.stdout:
        printed.append(line)
        if said in line:
            started.send_signal(signal.SIGTERM)
            break
    with started.stdout:
        printed += started.stdout.readlines()
    started.wait()
    if any(said in line for line in printed):
        return started.returncode
    raise AssertionError(f"{command} ended with {started.returncode}: {''.join(printed)}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
