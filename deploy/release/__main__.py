"""Builds all files of a release: `make release`, or `python -m deploy.release DIRECTORY`.

It needs helm (`python -m tests.e2e.controlplane.build helm`), uv, and for the image root rights and
debootstrap.
The version is that of `pyproject.toml`; a tag of the commit must agree with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml

from deploy.release import image, krew, oci, sbom
from tests.e2e.controlplane.build import COMPONENTS, binary
from tests.e2e.image import root as image_root

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
LOCKS = ROOT / "deploy" / "image"
IMAGE, CHARTS = "registry.example.com/stowage", "registry.example.com/charts/stowage"
_HELM = "application/vnd.cncf.helm"


def version() -> str:
    """The only place where it is written; `make manifests` copies it."""
    project: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["version"]


def source() -> str:
    """Where the sources are."""
    project: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["urls"]["Source"]


def build(directory: Path) -> None:
    """Write all files into the directory. Raises CalledProcessError; stderr has what the program wrote."""
    directory.mkdir(parents=True, exist_ok=True)
    _packages(directory)
    _chart(directory)
    krew.write(directory, version(), source(), f"{source()}/releases/download/v{version()}")
    _image(directory)
    sums = [f"{oci.digest(file)}  {file.name}\n" for file in sorted(directory.iterdir())]
    (directory / "SHA256SUMS").write_text("".join(sums))


def _packages(directory: Path) -> None:
    """The wheel and the source archive, which also has the manifests, the examples and the pages."""
    uv = shutil.which("uv") or ROOT / ".uv" / "bin" / "uv"
    pinned = [f"--build-constraints={LOCKS / 'build-requirements.txt'}", "--require-hashes"]
    subprocess.run([uv, "build", "--quiet", *pinned, f"--out-dir={directory}", ROOT], check=True)
    (directory / ".gitignore").unlink(missing_ok=True)


def _chart(directory: Path) -> None:
    """The chart as helm installs it from a file, and as an OCI archive for a registry."""
    helm = next(binary(component) for component in COMPONENTS if component.name == "helm")
    subprocess.run(
        [helm, "package", CHART, "--destination", directory], check=True, stdout=subprocess.DEVNULL
    )
    package = directory / f"stowage-{version()}.tgz"
    config = oci.encode(yaml.safe_load((CHART / "Chart.yaml").read_text()))
    oci.write(
        directory / f"stowage-chart-{version()}.oci.tar",
        f"{CHARTS}:{version()}",
        oci.Blob(f"{_HELM}.config.v1+json", config),
        [oci.Blob(f"{_HELM}.chart.content.v1.tar+gzip", package)],
    )


def _image(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name)
        root, stage = image_root.build(workspace)
        stem = directory / f"stowage-image-{version()}-linux-{image.architecture()}"
        image.write(stem.with_name(f"{stem.name}.oci.tar"), f"{IMAGE}:{version()}", root, stage, workspace)
        document = sbom.document(root, LOCKS / "requirements.txt", "stowage", version())
        stem.with_name(f"{stem.name}.cdx.json").write_text(json.dumps(document, indent=1) + "\n")


def _contradiction() -> str:
    """Why this commit is not that release; empty if it is. A commit without a tag may be any."""
    asked = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    return "" if not tags or f"v{version()}" in tags else f"tag {tags[0]}, but version {version()}"


if __name__ == "__main__":
    if problem := _contradiction() or image_root.missing():
        sys.exit(f"no release: {problem}")
    os.umask(0o022)
    build(Path(sys.argv[1]).absolute())
