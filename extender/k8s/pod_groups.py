"""PodGroups of all APIs that have one. Each declares how many pods run together.

Sources: Kubernetes' own: k8s.io/api v0.36.3, ``scheduling/v1alpha2/types.go``; v1beta1 and v1alpha3 (v0.37.2)
write ``disruptionMode`` as a union, ``{all: {}}``; their ``schedulingConstraints.topology`` has one item
(``pkg/scheduler/framework/plugins/topologyaware/topology_placement.go``). kubernetes-sigs/scheduler-plugins,
``apis/scheduling/v1alpha1/types.go``, and its older group that Koordinator uses. volcano-sh/apis,
``pkg/apis/scheduling/v1beta1/types.go``. kai-scheduler/KAI-Scheduler, ``pkg/apis/scheduling/v2alpha2``, and
docs/topology/multilevel.md: a level is a label of nodes, or an alias in a Topology, which is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from msgspec import Struct

from extender.k8s.manifest import Int, Manifest
from extender.k8s.objects import PodGroup, PodGroupKind, RequiredDomain, required_domain
from extender.k8s.pod_templates import as_list, as_map, as_text, count_of
from extender.untrusted.limits import GANG_LEVELS, GANG_MEMBERS

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
    minSubGroup: Any = None
    schedulingConstraints: Any = None
    topologyConstraint: Any = None
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
        group = PodGroup(kind, namespace, name, minimum, whole, in_composite, priority=priority)
        levels = as_list(as_map(self.spec.schedulingConstraints).get("topology"))[: GANG_LEVELS + 1]
        native = [domain for level in levels for domain in required_domain(as_map(level).get("key"))]
        domains = tuple(native) if is_native else required_domain(_level(self.spec.topologyConstraint))
        parts = _parts(self.spec.subGroups)
        return replace(group, never_preempts=never, domains=domains, domains_of=parts)


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
    if minimum is None:  # absent in JSON if it is 0
        groups = [{"minSubGroup": spec.minSubGroup}, *map(as_map, spec.subGroups)]
        fewer = any(group.get("minSubGroup") is not None for group in groups)
        minimum = None if fewer else sum(count_of(group.get("minMember")) for group in groups)
    whole = len(tasks) > 1 and minimum is not None and minimum >= sum(tasks.values())
    return minimum, whole or bool(spec.subGroups)


def _parts(groups: tuple[Any, ...]) -> Mapping[str, tuple[RequiredDomain, ...]]:
    """By the name of each subgroup of KAI, the domains that its pods must share: those of the subgroups above
    it, then its own."""
    named = {as_text(group.get("name")): group for group in map(as_map, islice(groups, GANG_MEMBERS))}
    found = {}
    for name in named:
        domains, above = tuple[RequiredDomain, ...](), name
        for _ in range(GANG_LEVELS):
            if (group := named.get(above)) is None:
                break
            domains = required_domain(_level(group.get("topologyConstraint")), above) + domains
            above = as_text(group.get("parent"))
        else:
            domains = (RequiredDomain(""),)  # a circle, or more levels than any topology has
        if domains:
            found[name] = domains
    return found


def _level(constraint: object) -> object:
    return as_map(constraint).get("requiredTopologyLevel")
