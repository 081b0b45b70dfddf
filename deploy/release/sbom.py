"""A CycloneDX 1.6 document of what an image contains: Debian's packages, Python's with the lock's hashes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

Component = dict[str, Any]


def document(root: Path, lock: Path, name: str, version: str) -> Component:
    """Of the image's root directory. Raises ValueError for a package that the lock does not pin."""
    described = {"type": "container", "name": name, "version": version, "bom-ref": f"{name}@{version}"}
    components = [*_debian(root), *_python(root, _hashes(lock), but=f"kube-{name}")]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described},
        "components": sorted(components, key=lambda one: str(one["purl"])),
    }


def _debian(root: Path) -> Iterator[Component]:
    for stanza in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^(\w+): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}"
            yield _component(name, version, f"{purl}?arch={fields['Architecture']}")


def _python(root: Path, hashes: dict[tuple[str, str], list[str]], but: str) -> Iterator[Component]:
    (packages,) = root.glob("opt/stowage/lib/python3*/site-packages")
    for one in distributions(path=[str(packages)]):
        name, version = re.sub(r"[-_.]+", "-", one.name).lower(), one.version
        component = _component(name, version, f"pkg:pypi/{name}@{version.replace('+', '%2B')}")
        if name != but:
            if (name, version) not in hashes:
                raise ValueError(f"{name} {version} is in the image, and not in the lock")
            accepted = hashes[name, version]
            component["hashes"] = [{"alg": "SHA-256", "content": one} for one in accepted]
        yield component


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _hashes(lock: Path) -> dict[tuple[str, str], list[str]]:
    """The hashes that the lock accepts for a package: of its wheels and its source."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    pinned = ("", "")
    for line in lock.read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([\w.+!]+)", line):
            pinned = match[1], match[2]
        if match := re.search(r"--hash=sha256:(\w+)", line):
            found[pinned].append(match[1])
    return found
