"""Kinds that other projects add to Kubernetes, by the CRDs that they publish as Go modules."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from .controlplane.api import Api, Object
from .controlplane.process import eventually

_MODULES = {  # and the hashes of their content, as in go.sum
    "sigs.k8s.io/karpenter@v1.14.0": "h1:+SXlqYNb9FIKRpDgPPRnphVmWbrWLw4tgzKezr372Mc=",
    "sigs.k8s.io/node-feature-discovery@v0.18.3": "h1:q5/qpyxrasI/F6838lflFNGAUszpMNRuFwornPLYdxQ=",
}
_FOLDERS = "pkg/apis/crds", "deployment/base/nfd-crds", "deployment/base/noderesourcetopologies-crd"


def _published() -> Iterator[Object]:
    """All CRDs of the modules. Go loads each module once."""
    for module, content in _MODULES.items():
        command = ["go", "mod", "download", "-json", module]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert found["Sum"] == content
        for file in (file for folder in _FOLDERS for file in Path(found["Dir"], folder).glob("*.yaml")):
            documents = yaml.load_all(file.read_text(), yaml.CSafeLoader)
            yield from (one for one in documents if one.get("kind") == "CustomResourceDefinition")


@contextmanager
def served(api: Api, *kinds: str) -> Iterator[None]:
    """These kinds are served, until the end of the block."""
    made = [one for one in _published() if one["spec"]["names"]["kind"] in kinds]
    assert len(made) == len(kinds)
    with serving(api, made):
        yield


@contextmanager
def serving(api: Api, definitions: Sequence[Object]) -> Iterator[None]:
    """The kinds of these CustomResourceDefinitions are served, until the end of the block."""
    names = [api.create(one)["metadata"]["name"] for one in definitions]
    are_served = lambda: all(is_served(api.get("CustomResourceDefinition", name)) for name in names)  # noqa: E731
    eventually(are_served, within_s=60, what="the kinds are served")
    yield
    for name in names:
        api.delete("CustomResourceDefinition", name)


def is_served(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()  # null at first
    return {("Established", "True")} <= {(one["type"], one["status"]) for one in conditions}
