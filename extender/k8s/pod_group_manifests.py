"""Reads the PodGroups of all APIs that have such an object. Each declares how many pods run together.

Sources: Kubernetes' own: k8s.io/api v0.36.3, ``scheduling/v1alpha2/types.go``; v1beta1 (1.37) writes
``disruptionMode`` as a union, ``{all: {}}``. kubernetes-sigs/scheduler-plugins,
``apis/scheduling/v1alpha1/types.go``, and its older group that Koordinator uses. volcano-sh/apis,
``pkg/apis/scheduling/v1beta1/types.go``. NVIDIA/KAI-Scheduler, ``pkg/apis/scheduling/v2alpha2``.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.metadata import Metadata
from extender.k8s.pod_groups import PodGroup, PodGroupKind

_MOST = (1 << 31) - 1  # all these fields are int32


class _Gang(TypedDict, total=False):
    minCount: int | None


class _Policy(TypedDict, total=False):
    basic: Any
    gang: _Gang | None


class _Spec(TypedDict, total=False):
    schedulingPolicy: _Policy | None
    disruptionMode: Any
    minMember: int | None
    minTaskMember: dict[str, int] | None
    subGroups: list[Any] | None


class PodGroupManifest(BaseModel):
    """A PodGroup of the API that ``apiVersion`` names, as in a file. Items of a list have none: there is a
    class for each kind."""

    kind_in_lists: ClassVar[PodGroupKind] = "PodGroup"
    apiVersion: str | None = None
    metadata: Metadata | None = None
    spec: _Spec | None = None

    def record(self) -> PodGroup:
        """The group. Its namespace is ``default`` if the manifest has none."""
        metadata, spec = self.metadata or {}, self.spec or {}
        kind = _KINDS.get(self.apiVersion or "", self.kind_in_lists)
        minimum, whole = _native(spec) if kind in ("PodGroup", "AlphaPodGroup") else _of_custom_resource(spec)
        if minimum is not None and not 0 <= minimum <= _MOST:
            minimum = None
        namespace = sys.intern(metadata.get("namespace") or "default")
        return PodGroup(kind, namespace, metadata.get("name") or "", minimum, whole)


class AlphaPodGroupManifest(PodGroupManifest):
    kind_in_lists = "AlphaPodGroup"


class CoschedulingPodGroupManifest(PodGroupManifest):
    kind_in_lists = "CoschedulingPodGroup"


class KoordinatorPodGroupManifest(PodGroupManifest):
    kind_in_lists = "KoordinatorPodGroup"


class VolcanoPodGroupManifest(PodGroupManifest):
    kind_in_lists = "VolcanoPodGroup"


class KaiPodGroupManifest(PodGroupManifest):
    kind_in_lists = "KaiPodGroup"


_KINDS: dict[str, PodGroupKind] = {
    "scheduling.k8s.io/v1beta1": "PodGroup",
    "scheduling.k8s.io/v1alpha2": "AlphaPodGroup",
    "scheduling.x-k8s.io/v1alpha1": "CoschedulingPodGroup",
    "scheduling.sigs.k8s.io/v1alpha1": "KoordinatorPodGroup",
    "scheduling.volcano.sh/v1beta1": "VolcanoPodGroup",
    "scheduling.run.ai/v2alpha2": "KaiPodGroup",
}


def _native(spec: _Spec) -> tuple[int | None, bool]:
    policy, mode = spec.get("schedulingPolicy") or {}, spec.get("disruptionMode")
    whole = mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)
    gang = policy.get("gang")
    if gang is None:
        return (0 if "basic" in policy else None), whole
    return gang.get("minCount"), whole


def _of_custom_resource(spec: _Spec) -> tuple[int | None, bool]:
    """KAI's subgroups and Volcano's tasks have minimums of their own, so that it matters which member leaves.
    Volcano ignores those of tasks if the group's minimum is below their sum (``CheckTaskValid`` of its
    ``pkg/scheduler/api/job_info.go``)."""
    minimum, tasks = spec.get("minMember"), spec.get("minTaskMember") or {}
    if minimum is None:
        minimum = None if spec.get("subGroups") else 0  # absent in JSON where it is 0
    whole = len(tasks) > 1 and minimum is not None and minimum >= sum(tasks.values())
    return minimum, whole or bool(spec.get("subGroups"))
