"""PodGroups of all APIs that have one. Each declares how many pods run together.

Sources: Kubernetes' own: k8s.io/api v0.36.3, ``scheduling/v1alpha2/types.go``; v1beta1 and v1alpha3 (v0.37.2)
write ``disruptionMode`` as a union, ``{all: {}}``. kubernetes-sigs/scheduler-plugins,
``apis/scheduling/v1alpha1/types.go``, and its older group that Koordinator uses. volcano-sh/apis,
``pkg/apis/scheduling/v1beta1/types.go``. NVIDIA/KAI-Scheduler, ``pkg/apis/scheduling/v2alpha2``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from extender.k8s.manifest import Int, Manifest
from extender.k8s.objects import PodGroup, PodGroupKind

APIS: dict[str, PodGroupKind] = {
    "scheduling.k8s.io/v1beta1": "PodGroup",
    "scheduling.k8s.io/v1alpha3": "AlphaPodGroup",
    "scheduling.k8s.io/v1alpha2": "OldAlphaPodGroup",
    "scheduling.x-k8s.io/v1alpha1": "CoschedulingPodGroup",
    "scheduling.sigs.k8s.io/v1alpha1": "KoordinatorPodGroup",
    "scheduling.volcano.sh/v1beta1": "VolcanoPodGroup",
    "scheduling.run.ai/v2alpha2": "KaiPodGroup",
}
NATIVE: tuple[PodGroupKind, ...] = ("PodGroup", "AlphaPodGroup", "OldAlphaPodGroup")
"""The kinds of Kubernetes itself: those of 1.37, the newest first, and that of 1.36."""
_MOST = (1 << 31) - 1  # all these fields are int32


class _Gang(Struct, frozen=True, gc=False):
    minCount: Int | None = None


class _Policy(Struct, frozen=True, gc=False):
    basic: dict[str, Any] | None = None
    gang: _Gang | None = None


class _Spec(Struct, frozen=True, gc=False):
    parentCompositePodGroupName: str | None = None
    schedulingPolicy: _Policy = _Policy()
    disruptionMode: Any = None
    minMember: Int | None = None
    minTaskMember: dict[str, Int] = {}
    subGroups: tuple[Any, ...] = ()
    priority: Int | None = None
    preemptionPolicy: Any = None


class PodGroupManifest(Manifest, frozen=True, gc=False):
    """A PodGroup of the API in ``apiVersion``, which items of a list do not have."""

    apiVersion: str = ""
    spec: _Spec = _Spec()

    def record(self, kind: PodGroupKind = "PodGroup") -> PodGroup:
        """The group, of this kind if it does not name its API. Its namespace is ``default`` if the manifest
        has none."""
        kind = APIS.get(self.apiVersion, kind)
        is_native = kind in NATIVE
        minimum, whole = _native(self.spec) if is_native else _of_custom_resource(self.spec)
        if minimum is not None and not 0 <= minimum <= _MOST:
            minimum = None
        in_composite = is_native and bool(self.spec.parentCompositePodGroupName)
        namespace, name = self.metadata.namespace_or_default, self.metadata.name
        priority = self.spec.priority if kind in NATIVE[:2] and not in_composite else None
        never = is_native and self.spec.preemptionPolicy == "Never"
        more = minimum, whole, in_composite
        return PodGroup(kind, namespace, name, *more, priority=priority, never_preempts=never)


def _native(spec: _Spec) -> tuple[int | None, bool]:
    policy, mode = spec.schedulingPolicy, spec.disruptionMode
    whole = mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)
    if policy.gang is None:
        return (None if policy.basic is None else 0), whole
    return policy.gang.minCount, whole


def _of_custom_resource(spec: _Spec) -> tuple[int | None, bool]:
    """KAI's subgroups and Volcano's tasks have their own minimums, so it matters which member is removed.
    Volcano ignores those of tasks if the group's minimum is below their sum (``CheckTaskValid`` of its
    ``pkg/scheduler/api/job_info.go``)."""
    minimum, tasks = spec.minMember, spec.minTaskMember
    if minimum is None:
        minimum = None if spec.subGroups else 0  # absent in JSON if it is 0
    whole = len(tasks) > 1 and minimum is not None and minimum >= sum(tasks.values())
    return minimum, whole or bool(spec.subGroups)
