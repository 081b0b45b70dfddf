"""The manifest of the kubectl plugin for krew, and the archive that it installs.

The archive has a script: it runs the wheel of the same release with uv, which brings Python and the packages.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import yaml

from deploy.release import oci

_SCRIPT = """#!/bin/sh
command -v uvx >/dev/null || {{ echo "kubectl stowage needs uv: https://docs.astral.sh/uv/" >&2; exit 2; }}
exec uvx --quiet --from "${{KUBECTL_STOWAGE_WHEEL:-{wheel}}}" {program} "$@"
"""
_PROGRAMS = "kubectl-stowage", "kubectl_complete-stowage"
_CAVEATS = """Needs uv (https://docs.astral.sh/uv/).
krew links one program. For completion, link the other one:
  ln -s "$(dirname "$(readlink -f "$(command -v kubectl-stowage)")")/kubectl_complete-stowage" ~/.krew/bin/
"""
_ABOUT = "Explain where GPU pods fit, and why not elsewhere"
_DESCRIPTION = """Shows where a GPU pod fits and why it is pending, the free GPUs of each node, and plans
for fewer, more or other nodes. It reads the cluster, or asks a running Stowage, and changes nothing.
"""


def write(directory: Path, version: str, source: str, files: str) -> None:
    """Write both. ``source``: where the sources are, ``files``: where the files of this release are."""
    archive = directory / f"stowage-krew-{version}.tar.gz"
    wheel = f"{files}/kube_stowage-{version}-py3-none-any.whl"
    scripts = {program: _SCRIPT.format(wheel=wheel, program=program) for program in _PROGRAMS}
    archive.write_bytes(_packed(scripts | {"LICENSE": Path("LICENSE").read_text()}))
    os = {"key": "os", "operator": "In", "values": ["darwin", "linux"]}
    platform = {
        "selector": {"matchExpressions": [os]},
        "uri": f"{files}/{archive.name}",
        "sha256": oci.digest(archive),
        "bin": "kubectl-stowage",
    }
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "stowage"},
        "spec": {
            "version": f"v{version}",
            "homepage": source,
            "shortDescription": _ABOUT,
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [platform],
        },
    }
    (directory / "krew.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def _packed(files: dict[str, str]) -> bytes:
    """A tar.gz of executable files; the same bytes each time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)
