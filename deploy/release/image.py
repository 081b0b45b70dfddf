"""The image as an OCI archive, from a root file system that the steps of the Containerfile have made."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.image.containerfile import Stage

from . import oci

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OURS = "opt/stowage"
_EMPTIED = ("dev", "proc", "run", "sys", "tmp", "root", "mnt", "var/cache", "var/log", "etc/apt")
_LEFT_OUT = ("etc/hostname", "etc/hosts", "etc/resolv.conf", _OURS)
"""Of the machine that builds, and of no use in a root that nobody can write."""


def architecture() -> str:
    """Of this machine, in OCI's words."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def write(archive: Path, reference: str, root: Path, stage: Stage, workspace: Path) -> None:
    """Two layers: Debian with Python, and Stowage with its packages, which changes more often."""
    excluded = [*(f"{path}/*" for path in _EMPTIED), *_LEFT_OUT]
    system = _layer(root, workspace / "system", *(f"--exclude=./{one}" for one in excluded), ".")
    ours = _layer(root, workspace / "stowage", f"./{_OURS}")
    told = {step.instruction: step.text for step in stage.steps}
    config = {
        "architecture": architecture(),
        "os": "linux",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": {
            "User": stage.user,
            "Env": [f"{name}={value}" for name, value in stage.environment.items()],
            "Entrypoint": json.loads(told["ENTRYPOINT"]),
            "Cmd": json.loads(told["CMD"]),
            "ExposedPorts": {f"{port}/tcp": {} for port in told["EXPOSE"].split()},
        },
        "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in (system, ours)]},
    }
    blob = oci.Blob(oci.IMAGE_CONFIG, oci.encode(config))
    layers = [layer for layer, _ in (system, ours)]
    oci.write(archive, reference, blob, layers, architecture=architecture(), os="linux")


def _layer(root: Path, file: Path, *arguments: str) -> tuple[oci.Blob, str]:
    """A compressed layer, and the digest of its content. Its times are whole seconds, as in all layers."""
    form = ["--format=gnu", "--sort=name", "--numeric-owner"]
    subprocess.run(
        ["tar", "--create", *form, f"--file={file}", f"--directory={root}", *arguments], check=True
    )
    diff = f"sha256:{oci.digest(file)}"
    subprocess.run(["gzip", "--no-name", "--force", file], check=True)
    return oci.Blob(oci.IMAGE_LAYER, file.with_name(f"{file.name}.gz")), diff
