"""Pods with the fields that the API server adds on creation, as far as the objects that define these are
known, and the volumes of pods.

Sources: plugin/pkg/admission of k8s.io/kubernetes v1.37.2: ``limitranger``, ``priority``, ``runtimeclass``,
``defaulttolerationseconds`` and ``extendedresourcetoleration``. The last of these runs on GKE, EKS
(docs.aws.amazon.com/eks, platform versions), AKS (Azure/AKS#1449, and "Frequently asked questions" of
learn.microsoft.com/azure/aks) and OKE (docs.oracle.com, "Supported Admission Controllers").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

from extender.cluster.pod_table import PodTable
from extender.dialects.pod_resources import effective_requests
from extender.k8s.admission_objects import (
    AdmissionKind,
    AdmissionRecord,
    PersistentVolume,
    ResourceQuota,
    RuntimeClass,
)
from extender.k8s.affinity import Taint, Toleration, tolerated
from extender.k8s.manifest import is_extended, pairs_of
from extender.k8s.node_filter import Rule, UnusableClaim
from extender.k8s.objects import Container, Event, Node, Pod, take_in
from extender.k8s.quantity import QuantityError, exact
from extender.queues.queue import SYSTEM_CLASSES, PriorityClasses
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
    "oci.oraclecloud.com/rdma.local_block_id": "OKE",
    "kops.k8s.io/instancegroup": "",  # on machines of these clouds, with its own API server
}
_PROVIDERS = {"gce": "GKE", "aws": "EKS"}
_FAILURES = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
"""Taints that pods tolerate for five minutes unless they say for how long."""


class Admission:
    """RuntimeClasses, LimitRanges, PersistentVolumes, PersistentVolumeClaims and StorageClasses."""

    def __init__(self, pods: PodTable, nodes: Mapping[str, Node], priorities: PriorityClasses) -> None:
        self._pods, self._nodes, self._priorities = pods, nodes, priorities
        self._by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in get_args(AdmissionKind)}
        self.runtime_classes: Mapping[str, RuntimeClass] = self._by_kind["RuntimeClass"]

    def apply(self, event: Event) -> None:
        """Apply an event of one of these kinds."""
        take_in(event, self._by_kind[event.kind])

    def records(self) -> list[AdmissionRecord]:
        return [record for by_key in self._by_kind.values() for record in by_key.values()]

    def volumes_of(self, pod: Pod) -> list[PersistentVolume | UnusableClaim | None]:
        """The volume of each of the pod's claims, None where it is unknown."""
        return [self._volume_of(pod, name) for name in pod.volume_claims]

    def _volume_of(self, pod: Pod, name: str) -> PersistentVolume | UnusableClaim | None:
        claims, volumes = self._by_kind["PersistentVolumeClaim"], self._by_kind["PersistentVolume"]
        classes, claim = self._by_kind["StorageClass"], claims.get(f"{pod.namespace}/{name}")
        if claim is None:  # that of an ephemeral volume is made with the pod
            is_known = claims and name not in pod.ephemeral_claims
            return UnusableClaim(Rule.NO_CLAIM, name) if is_known else None
        volume, storage = volumes.get(claim.volume), classes.get(claim.storage_class)
        if claim.problem or (volume and volume.problem):
            return None
        if claim.is_lost or claim.is_deleted:
            return UnusableClaim(Rule.CLAIM_LOST if claim.is_lost else Rule.CLAIM_DELETED, name)
        if self.users_of_one(pod, name):
            return UnusableClaim(Rule.CLAIM_IN_USE, name)
        if claim.is_pending:
            waits = storage.waits if storage else claim.storage_class and not classes
            return None if waits else UnusableClaim(Rule.CLAIM_NOT_BOUND, name)
        is_lost = volume is None and volumes and claim.volume
        return UnusableClaim(Rule.CLAIM_LOST, name) if is_lost else volume

    def claim_keys(self) -> Collection[str]:
        """The known PersistentVolumeClaims, as ``namespace/name``."""
        return self._by_kind["PersistentVolumeClaim"].keys()

    def users_of_one(self, pod: Pod, name: str) -> list[Pod]:
        """The other bound pods that use this claim of the pod if only one pod may."""
        claim = self._by_kind["PersistentVolumeClaim"].get(f"{pod.namespace}/{name}")
        keys = self._pods.claiming.get(claim.key, ()) if claim and claim.of_one_pod else ()
        users = (self._pods.get(key) for key in keys if key != pod.key)
        return [user for user in users if user and user.node_name]

    def exceeded(self, pod: Pod) -> tuple[ResourceQuota, str, str] | None:
        """The ResourceQuota that a new pod would exceed, the resource, and how much the pod requests. Raises
        ``RequestError``."""
        requests = effective_requests(pod.spec).items()
        asked = {name: Fraction(amount, 1000 if name == "cpu" else 1) for name, amount in requests}
        own = (q for q in self._by_kind["ResourceQuota"].values() if q.namespace == pod.namespace)
        for quota, name, hard in ((q, name, hard) for q in own for name, hard in q.hard):
            more = 1 if name in ("pods", "count/pods") else asked.get(name.removeprefix("requests."), 0)
            with suppress(QuantityError):
                if more and exact(dict(quota.used).get(name, "0")) + more > exact(hard):
                    return quota, name, f"{float(more):g}"
        return None

    def as_created(self, pod: Pod) -> tuple[Pod, str]:
        """The pod as created, and what is added, in words. A pod that exists in the cluster, or is complete,
        is returned unchanged."""
        known = self._pods.get(pod.key) or self._pods.misaligned.get(pod.key)
        if pod.complete or (known and known.uid == pod.uid):
            return pod, ""
        added = list[str]()
        for step in (self._with_requests, self._with_priority, self._of_runtime_class, self._tolerating):
            pod, what = step(pod)
            added += [what] if what else []
        return _tolerating_failures(pod), "; ".join(added)

    def _with_requests(self, pod: Pod) -> tuple[Pod, str]:
        ranges = sorted(self._by_kind["LimitRange"].items(), reverse=True)
        own = [r for _, r in ranges if r.namespace == pod.namespace]
        defaults = {k: v for r in own for k, v in r.requests}
        limits, spec = {k: v for r in own for k, v in r.limits}, pod.spec
        missing = defaults.keys() - {name for c in spec.containers for name, _ in c.requests}

        def completed(container: Container) -> Container:
            requests = pairs_of(defaults | dict(container.requests))
            return replace(container, requests=requests, limits=pairs_of(limits | dict(container.limits)))

        text = f"requests of {_listed({name: defaults[name] for name in missing})} (LimitRange)"
        created = spec.with_containers(completed) if defaults else spec
        return replace(pod, spec=created), text if missing else ""

    def _with_priority(self, pod: Pod) -> tuple[Pod, str]:
        classes = SYSTEM_CLASSES | self._priorities.by_name
        _, default = min(((c.value, c.name) for c in classes.values() if c.is_default), default=(0, ""))
        known = classes.get(pod.priority_class or default)
        if known is None or pod.priority:
            return pod, ""
        never = pod.never_preempts or known.never_preempts
        text = "" if pod.priority_class else f"the default PriorityClass {shorten(default, KEY)}"
        return replace(pod, priority=known.value, priority_class=known.name, never_preempts=never), text

    def _of_runtime_class(self, pod: Pod) -> tuple[Pod, str]:
        found, spec = self.runtime_classes.get(pod.runtime_class), pod.spec
        if found is None:
            return pod, ""
        selector = pairs_of(dict(spec.node_selector + found.node_selector))
        spec = replace(spec, overhead=spec.overhead or found.overhead, node_selector=selector)
        created = _with_tolerations(replace(pod, spec=spec), found.tolerations)
        parts = {"overhead": dict(found.overhead), "nodeSelector": dict(found.node_selector)}
        texts = [f"{name} {_listed(pairs)}" for name, pairs in parts.items() if pairs]
        texts += ["tolerations"] if found.tolerations else []
        return created, f"{' and '.join(texts)} (RuntimeClass {shorten(found.name, KEY)})" if texts else ""

    def _tolerating(self, pod: Pod) -> tuple[Pod, str]:
        rules = pod.scheduling_constraints
        wanted = (Toleration(name, "Exists", "", "NoSchedule") for name in sorted(extended_resources(pod)))
        added = tuple(toleration for toleration in wanted if toleration not in rules.tolerations)
        cloud = next(filter(None, map(_cloud, self._nodes.values())), "") if added else ""
        if not cloud:
            return pod, ""
        taints = (Taint(toleration.key, "", toleration.effect) for toleration in added)
        new = {taint.key: "" for taint in taints if not tolerated([taint], rules.tolerations)}
        text = f"a toleration for {_listed(new)} ({cloud} runs {ADDS_TOLERATIONS})" if new else ""
        return _with_tolerations(pod, added), text


def _tolerating_failures(pod: Pod) -> Pod:
    own = {t.key for t in pod.scheduling_constraints.tolerations if t.effect in ("", "NoExecute")}
    missing = (key for key in _FAILURES if own.isdisjoint(("", key)))
    return _with_tolerations(pod, tuple(Toleration(key, "Exists", "", "NoExecute") for key in missing))


def _with_tolerations(pod: Pod, added: tuple[Toleration, ...]) -> Pod:
    rules = pod.scheduling_constraints
    return replace(pod, scheduling_constraints=replace(rules, tolerations=rules.tolerations + added))


def extended_resources(pod: Pod) -> set[str]:
    """Extended resources that the pod's containers request."""
    return {name for name, _ in pod.spec.container_requests if is_extended(name)}


def _cloud(node: Node) -> str:
    """The provider of the node's API server, "" if unknown."""
    known = (cloud for label, cloud in _CLOUDS.items() if label in node.labels)
    return next(known, _PROVIDERS.get(node.provider, ""))


def _listed(entries: Mapping[str, str]) -> str:
    return shorten(", ".join("=".join(filter(None, pair)) for pair in sorted(entries.items())))
