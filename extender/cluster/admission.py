"""Pods with the fields that the API server adds on creation, as far as the objects that define these are
known, and the volumes of pods.

Sources: plugin/pkg/admission of k8s.io/kubernetes: ``limitranger``, ``priority``, ``runtimeclass`` and
``extendedresourcetoleration``. The last of these runs on GKE, EKS (docs.aws.amazon.com/eks, platform
versions), AKS (Azure/AKS#1449, and "Frequently asked questions" of learn.microsoft.com/azure/aks) and OKE
(docs.oracle.com, "Supported Admission Controllers").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from extender.cluster.pod_table import PodTable
from extender.k8s.admission_objects import AdmissionKind, AdmissionRecord, PersistentVolume, RuntimeClass
from extender.k8s.affinity import Toleration
from extender.k8s.manifest import Pairs, is_extended
from extender.k8s.objects import Container, Event, Node, Pod, take_in
from extender.queues.queue import PriorityClasses
from extender.untrusted.limits import KEY, shorten

ADDS_TOLERATIONS = "ExtendedResourceToleration"
_CLOUDS = {
    "cloud.google.com/gke-nodepool": "GKE",
    "eks.amazonaws.com/nodegroup": "EKS",
    "eks.amazonaws.com/compute-type": "EKS",
    "alpha.eksctl.io/cluster-name": "EKS",
    "karpenter.k8s.aws/instance-family": "EKS",
    "kubernetes.azure.com/cluster": "AKS",
    "kubernetes.azure.com/agentpool": "AKS",
    "oke.oraclecloud.com/node.info.private_subnet": "OKE",
    "oke.oraclecloud.com/pool.name": "OKE",
    "kops.k8s.io/instancegroup": "",  # on machines of these clouds, with its own API server
}
_PROVIDERS = {"gce": "GKE", "aws": "EKS"}


class Admission:
    """RuntimeClasses, LimitRanges, PersistentVolumes and PersistentVolumeClaims."""

    def __init__(self, pods: PodTable, nodes: Mapping[str, Node], priorities: PriorityClasses) -> None:
        self._pods, self._nodes, self._priorities = pods, nodes, priorities
        self._by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in get_args(AdmissionKind)}
        self.runtime_classes: Mapping[str, RuntimeClass] = self._by_kind["RuntimeClass"]

    def apply(self, event: Event) -> None:
        """Apply an event of one of these kinds."""
        take_in(event, self._by_kind[event.kind])

    def records(self) -> list[AdmissionRecord]:
        return [record for by_key in self._by_kind.values() for record in by_key.values()]

    def volumes_of(self, pod: Pod) -> list[PersistentVolume | None]:
        """The volume of each of the pod's claims, None where it is unknown."""
        claims, volumes = self._by_kind["PersistentVolumeClaim"], self._by_kind["PersistentVolume"]
        bound = (claims.get(f"{pod.namespace}/{name}") for name in pod.volume_claims)
        found = (volumes.get(claim.volume) if claim else None for claim in bound)
        return [None if record is None or record.problem else record for record in found]

    def as_created(self, pod: Pod) -> tuple[Pod, str]:
        """The pod as created, and one line on what is added. A pod that exists in the cluster is returned
        unchanged."""
        known = self._pods.get(pod.key) or self._pods.misaligned.get(pod.key)
        if known and known.uid == pod.uid:
            return pod, ""
        added = list[str]()
        for step in (self._with_requests, self._with_priority, self._of_runtime_class, self._tolerating):
            pod, what = step(pod)
            added += [what] if what else []
        return pod, f"On creation, the API server adds {'; '.join(added)}." if added else ""

    def _with_requests(self, pod: Pod) -> tuple[Pod, str]:
        ranges = (r for _, r in sorted(self._by_kind["LimitRange"].items(), reverse=True))
        defaults = {k: v for r in ranges if r.namespace == pod.namespace for k, v in r.requests}
        spec = pod.spec
        missing = defaults.keys() - {name for c in spec.containers for name, _ in c.requests}

        def completed(container: Container) -> Container:
            return replace(container, requests=_pairs(defaults | dict(container.requests)))

        containers, inits = (tuple(map(completed, some)) for some in (spec.containers, spec.init_containers))
        text = f"requests of {_listed({name: defaults[name] for name in missing})} (LimitRange)"
        created = replace(spec, containers=containers, init_containers=inits) if defaults else spec
        return replace(pod, spec=created), text if missing else ""

    def _with_priority(self, pod: Pod) -> tuple[Pod, str]:
        classes = self._priorities.by_name
        default = next((c.name for c in classes.values() if c.is_default), "")
        known = classes.get(pod.priority_class or default)
        if known is None or pod.priority:
            return pod, ""
        never = pod.never_preempts or known.never_preempts
        text = "" if pod.priority_class else f"the default PriorityClass {shorten(default, KEY)}"
        return replace(pod, priority=known.value, priority_class=known.name, never_preempts=never), text

    def _of_runtime_class(self, pod: Pod) -> tuple[Pod, str]:
        found, spec, rules = self.runtime_classes.get(pod.runtime_class), pod.spec, pod.scheduling_constraints
        if found is None:
            return pod, ""
        selector = _pairs(dict(spec.node_selector + found.node_selector))
        tolerations = tuple(dict.fromkeys(rules.tolerations + found.tolerations))
        spec = replace(spec, overhead=spec.overhead or found.overhead, node_selector=selector)
        created = replace(pod, spec=spec, scheduling_constraints=replace(rules, tolerations=tolerations))
        parts = {"overhead": dict(found.overhead), "nodeSelector": dict(found.node_selector)}
        texts = [f"{name} {_listed(pairs)}" for name, pairs in parts.items() if pairs]
        texts += ["tolerations"] if found.tolerations else []
        return created, f"{' and '.join(texts)} (RuntimeClass {shorten(found.name, KEY)})" if texts else ""

    def _tolerating(self, pod: Pod) -> tuple[Pod, str]:
        rules = pod.scheduling_constraints
        names = extended_resources(pod) - {toleration.key for toleration in rules.tolerations}
        cloud = next(filter(None, map(_cloud, self._nodes.values())), "") if names else ""
        if not cloud:
            return pod, ""
        added = tuple(Toleration(name, "Exists") for name in sorted(names))
        text = f"a toleration for {_listed(dict.fromkeys(names, ''))} ({cloud} runs {ADDS_TOLERATIONS})"
        return replace(
            pod, scheduling_constraints=replace(rules, tolerations=rules.tolerations + added)
        ), text


def extended_resources(pod: Pod) -> set[str]:
    """Extended resources that the pod's containers request."""
    return {name for c in pod.spec.all_containers for name, _ in c.requests if is_extended(name)}


def _cloud(node: Node) -> str:
    """The provider of the node's API server, "" if unknown."""
    known = (cloud for label, cloud in _CLOUDS.items() if label in node.labels)
    return next(known, _PROVIDERS.get(node.provider, ""))


def _pairs(entries: Mapping[str, str]) -> Pairs:
    return tuple(sorted(entries.items()))


def _listed(entries: Mapping[str, str]) -> str:
    return shorten(", ".join("=".join(filter(None, pair)) for pair in sorted(entries.items())))
