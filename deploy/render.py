"""Writes what is generated in deploy/: `python deploy/render.py` (`make manifests`).

- the MIG profiles in `../scheduler-config`, from the catalog of GPU models;
- `chart/files`: copies of the manifests and scheduler configurations that the chart reads;
- the settings in `chart/values.schema.json`;
- the annotations and labels in `keep-assignments.yaml`, from the dialects;
- the version, from `pyproject.toml`, in the chart, the manifests and the pages;
- `../docs/answers.schema.json`: the JSON of `stowage explain`, `top` and `audit`, from their types;
- `kustomize/*`: the chart, rendered with the `values.yaml` beside it. In a directory that builds on
  another one, `added.yaml` has the objects that are new, and `changed.yaml` patches for those that differ.

tests/e2e/test_chart.py fails if one of them is out of date.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter
from typing_extensions import TypeAliasType

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from extender.cli.top import Group  # noqa: E402
from extender.dialects import pod_request  # noqa: E402
from extender.explain import answers  # noqa: E402
from extender.plan.audit import Audit  # noqa: E402
from extender.settings import json_schema  # noqa: E402
from packing.model.gpu_catalog import models, profile_names  # noqa: E402
from tests.e2e.controlplane.build import COMPONENTS, binary, kubernetes_version, releases  # noqa: E402

CHART = ROOT / "deploy" / "chart"
SCHEMA = CHART / "values.schema.json"
POLICY = ROOT / "deploy" / "keep-assignments.yaml"
ANSWERS_SCHEMA = ROOT / "docs" / "answers.schema.json"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
BUILDS_ON = {"beside": None, "separate": None, "bind": "beside", "evictor": "beside", "metrics": "beside"}
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart", "app.kubernetes.io/instance")
NAMESPACE = "stowage-system"
SOURCES = ("deploy", "deploy/monitoring", "scheduler-config")
VERSIONED = (
    *("deploy/*.yaml", "deploy/volcano/*.yaml", "deploy/chart/Chart.yaml", "deploy/image/Containerfile"),
    *("README.md", "docs/*.md", "tests/docs/classes.py"),
)
UNCHECKED = {"title", "default", "description"}  # of the schema that pydantic makes


def helm(*arguments: str) -> str:
    """What helm prints. Raises CalledProcessError, with its message in `stderr`."""
    program = next(binary(component) for component in COMPONENTS if component.name == "helm")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def template(*arguments: str) -> list[dict[str, Any]]:
    """The objects of the chart with these arguments of `helm template`."""
    version = f"--kube-version={kubernetes_version(releases()[-1])}"
    image = "--set=image.repository=registry.example.com/stowage"
    text = helm("template", "stowage", str(CHART), f"--namespace={NAMESPACE}", version, image, *arguments)
    return [one for one in yaml.safe_load_all(text) if one]


def versioned() -> dict[Path, str]:
    """The files that name the version of a release, with that of `pyproject.toml`."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    before = (
        r"example\.com/stowage:|kube_stowage-|stowage-(?:chart-|image-|krew-)?|newTag: |^(?:v|appV)ersion: "
    )
    return {
        file: re.sub(rf"({before})\d+\.\d+\.\d+", rf"\g<1>{version}", file.read_text(), flags=re.MULTILINE)
        for pattern in VERSIONED
        for file in sorted(ROOT.glob(pattern))
    }


def with_mig_profiles() -> dict[Path, str]:
    """The configurations that list resources, with the MIG profiles of all GPU models of the catalog."""
    lines: list[str] = []
    listed: set[str] = set()
    for model in models():
        sizes = (-(-model.memory_mib // 1024), *model.names_gib) if model.geometry else ()
        named = dict.fromkeys(name for gib in sizes for name in profile_names(model.geometry, gib))
        if new := [name for name in named if name not in listed]:
            beside = ", in addition to names listed above" if len(new) < len(named) else ""
            lines.append(f"  # {model.name}{beside}\n")
            lines += [f"  - {{name: nvidia.com/mig-{name}, ignoredByScheduler: false}}\n" for name in new]
            listed |= {*new}
    files = sorted((ROOT / "scheduler-config").glob("*.yaml"))
    old = re.compile(r"(  # MIG profiles under .*\n)(?:  (?:#|- \{name: nvidia\.com/mig-).*\n)+")
    return {file: old.sub(lambda found: found[1] + "".join(lines), file.read_text()) for file in files}


def with_names_of_dialects() -> dict[Path, str]:
    """The policy that freezes what pods request and were assigned, with the names of all dialects."""
    text = POLICY.read_text()
    for variable, names in (
        ("requestAnnotations", pod_request.REQUEST_ANNOTATIONS - pod_request.ASSIGNMENT_ANNOTATIONS),
        ("requestLabels", pod_request.REQUEST_LABELS),
        ("assignmentAnnotations", pod_request.ASSIGNMENT_ANNOTATIONS),
    ):
        lines = ",\n".join(f"      '{name}'" for name in sorted(names))
        old = rf"(- name: {variable}\n    expression: >-\n      \[\n).*?(?=\n      \])"
        text = re.sub(old, lambda found, lines=lines: found[1] + lines, text, flags=re.DOTALL)
    return {POLICY: text}


def copies() -> dict[Path, str]:
    """The files of the chart that are copies, with the text that they must have."""
    files = sorted((CHART / "files").iterdir())
    sources = [
        next(ROOT / folder / file.name for folder in SOURCES if (ROOT / folder / file.name).exists())
        for file in files
    ]
    return {file: source.read_text() for file, source in zip(files, sources, strict=True)}


def schema() -> str:
    """The schema of the values, with the settings as `extender.settings` has them."""
    document = json.loads(SCHEMA.read_text())
    settings = _without_prose(json_schema())
    del settings["$schema"]
    document["$defs"] = settings.pop("$defs")
    document["properties"]["settings"] = settings
    text = json.dumps(document, indent=2)
    # Short lists and objects on one line.
    return (
        re.sub(r"[\[{][^\[\]{}]{0,100}[\]}]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"
    )


@dataclass(frozen=True)
class Reported(answers.Explanation):
    """What `stowage explain` prints of a pod that a running Stowage knows: also the last decisions."""

    note: str = ""
    decisions: tuple[answers.Decision, ...] = ()
    replica: answers.Replica | None = None


@dataclass(frozen=True)
class Grouped(answers.Overview):
    """The answer of `stowage top --by`."""

    models: list[Group] = field(default_factory=list)
    zones: list[Group] = field(default_factory=list)


ANSWERS: dict[str, Any] = {
    "explain": Reported | list[answers.NodeAnswer | Reported | list[answers.NodeAnswer]],
    "explain -A": list[answers.WaitingLine],
    "top": answers.Overview | Grouped,
    "top pods": list[answers.HolderLine],
    "audit": TypeAliasType("AuditAnswer", Audit),  # a dataclass by itself takes no configuration
}
"""The types of what each command prints with `-o json`."""


def answers_schema() -> str:
    """The schema of `ANSWERS`, one definition for each command."""
    config = answers.JSON
    adapters = [(name, "serialization", TypeAdapter(kind, config=config)) for name, kind in ANSWERS.items()]
    schemas, document = TypeAdapter.json_schemas(adapters)
    named = {command: part for (command, _), part in schemas.items()}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return (
        json.dumps({"$schema": dialect, "$defs": document["$defs"] | named}, indent=1, sort_keys=True) + "\n"
    )


def _without_prose(part: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(part, dict):
        named = {
            key: {name: _without_prose(one) for name, one in part[key].items()}
            for key in part.keys() & {"properties"}
        }
        return {key: _without_prose(one) for key, one in part.items() if key not in UNCHECKED} | named
    if isinstance(part, list):
        return [_without_prose(one) for one in part]
    return part


Object = dict[str, Any]
Key = tuple[str, str, str]


def rendered(overlay: str) -> dict[Key, Object]:
    """The objects of a directory in `kustomize`, without what only helm needs."""
    found = {}
    for one in template(f"--values={KUSTOMIZE / overlay / 'values.yaml'}"):
        metadata = one["metadata"]
        for label in OF_HELM:
            metadata.get("labels", {}).pop(label, None)
        found[one["kind"], metadata.get("namespace", ""), metadata["name"]] = one
    return found


def overlays() -> dict[Path, str]:
    """The manifests of all directories in `kustomize`."""
    objects = {overlay: rendered(overlay) for overlay in BUILDS_ON}
    files: dict[Path, str] = {}
    for overlay, base in BUILDS_ON.items():
        mine, directory = objects[overlay], KUSTOMIZE / overlay
        if base is None:
            files[directory / "stowage.yaml"] = _dump(mine.values())
            continue
        theirs = objects[base]
        assert theirs.keys() <= mine.keys()
        changed = [
            _identity(mine[key]) | _changes(theirs[key], mine[key])
            for key in theirs
            if mine[key] != theirs[key]
        ]
        files[directory / "added.yaml"] = _dump(one for key, one in mine.items() if key not in theirs)
        if changed:
            files[directory / "changed.yaml"] = _dump(changed)
    return files


def _identity(one: Object) -> Object:
    names = {key: one["metadata"][key] for key in ("name", "namespace") if key in one["metadata"]}
    return {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": names}


def _changes(old: Object, new: Object) -> Object:
    """A merge patch. Nothing is removed from a map, and lists change as a whole."""
    assert old.keys() <= new.keys()
    return {
        key: _changes(old[key], value) if isinstance(value, dict) and key in old else value
        for key, value in new.items()
        if key not in old or old[key] != value
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _dump(objects: Iterable[Object]) -> str:
    header = "# Written by deploy/render.py (make manifests) from deploy/chart and values.yaml.\n"
    return header + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)


def generated() -> dict[Path, str]:
    """Every generated file, with the text that it must have."""
    return (
        versioned()
        | with_mig_profiles()
        | with_names_of_dialects()
        | copies()
        | {SCHEMA: schema(), ANSWERS_SCHEMA: answers_schema()}
        | overlays()
    )


if __name__ == "__main__":
    for written in (
        versioned,
        with_mig_profiles,
        with_names_of_dialects,
        copies,
        lambda: {SCHEMA: schema()},
    ):  # each reads what the one before wrote
        for file, text in written().items():
            file.write_text(text)
    for file, text in generated().items():
        file.write_text(text)
