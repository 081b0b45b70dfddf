"""OCI image layouts (image-spec 1.1) as tar archives: written, and unpacked, without a container engine.

`podman load`, `ctr images import`, `kind load image-archive` and `skopeo copy oci-archive:FILE` read them.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Blob(NamedTuple):
    """Content with its media type: bytes, or a file that is too large for memory."""

    media_type: str
    content: bytes | Path

    def descriptor(self) -> dict[str, Any]:
        """What refers to the blob: media type, digest and size."""
        return {
            "mediaType": self.media_type,
            "digest": f"sha256:{digest(self.content)}",
            "size": self._size(),
        }

    def _size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def add_to(self, archive: tarfile.TarFile) -> None:
        path = f"blobs/sha256/{digest(self.content)}"
        if isinstance(self.content, Path):
            with self.content.open("rb") as file:
                _add(archive, path, file, self._size())
        else:
            _add(archive, path, io.BytesIO(self.content), self._size())


class Unpacked(NamedTuple):
    """The file system of an image and what its config says: the user as UID:GID."""

    root: Path
    environment: Mapping[str, str]
    user: str
    command: Sequence[str]


def digest(content: bytes | Path) -> str:
    """SHA-256 in hex."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def write(archive: Path, reference: str, config: Blob, layers: Sequence[Blob], **platform: str) -> None:
    """One image, or one artefact without ``platform``. ``reference`` is its name with a tag."""
    parts = {"config": config.descriptor(), "layers": [layer.descriptor() for layer in layers]}
    manifest = Blob(MANIFEST, encode({"schemaVersion": 2, "mediaType": MANIFEST, **parts}))
    tag = reference.rpartition(":")[2]
    names = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": reference}
    entry = manifest.descriptor() | {"annotations": names} | ({"platform": platform} if platform else {})
    with tarfile.open(archive, "w") as tar:
        for name, text in (
            ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
            ("index.json", {"schemaVersion": 2, "manifests": [entry]}),
        ):
            _add(tar, name, io.BytesIO(encode(text)), len(encode(text)))
        for blob in (manifest, config, *layers):
            blob.add_to(tar)


def _add(tar: tarfile.TarFile, name: str, file: Any, size: int) -> None:  # noqa: ANN401 - any binary file
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, file)


def unpack(archive: Path, into: Path) -> Unpacked:
    """Unpack the image as root. Raises ValueError if a blob has another digest than its name."""
    blobs, root = into / "blobs" / "sha256", into / "root"
    root.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    for blob in blobs.iterdir():
        if digest(blob) != blob.name:
            raise ValueError(f"{blob.name} has another digest")
    (entry,) = json.loads((into / "index.json").read_bytes())["manifests"]
    manifest = _blob(blobs, entry)
    for layer in manifest["layers"]:
        file = blobs / layer["digest"].partition(":")[2]
        extract = ["tar", "--extract", "--gzip", "--numeric-owner", "--preserve-permissions"]
        subprocess.run([*extract, f"--file={file}", f"--directory={root}"], check=True)
    config = _blob(blobs, manifest["config"])["config"]
    environment = dict(variable.split("=", 1) for variable in config["Env"])
    return Unpacked(root, environment, config["User"], [*config["Entrypoint"], *config["Cmd"]])


def _blob(blobs: Path, descriptor: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    return json.loads((blobs / descriptor["digest"].partition(":")[2]).read_bytes())
