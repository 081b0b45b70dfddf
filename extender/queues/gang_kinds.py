"""Which gang a pod names, in the words of every common system.

The first system in ``_READERS`` whose words a pod has decides. Users write all of them, so a gang never
crosses a namespace, and a name that is no object name (too long) is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from extender.k8s.objects import Pod
from extender.k8s.pod_groups import NATIVE, PodGroupKind
from extender.untrusted.limits import OBJECT_NAME

GANG = "stowage.dev/gang"
"""Label or annotation of a pod: the name of its gang."""
GANG_MIN = "stowage.dev/gang-min"
"""Label or annotation: how many members must run. Without it: all."""

_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GangWords:
    """What a pod says of its gang. ``kind`` and ``name`` identify it within a namespace.

    ``minimum`` is what the pod itself declares, None for nothing. ``pod_groups`` are the kinds of objects of
    this name that declare it; the first that exists counts. ``together``: the minimum is to be placed all at
    once, or not at all. ``indispensable``: without this pod the others are useless. ``others_unlike``:
    members that do not exist yet may ask for something else than this pod.
    """

    kind: str
    name: str
    minimum: int | None = None
    pod_groups: tuple[PodGroupKind, ...] = ()
    together: bool = True
    indispensable: bool = False
    others_unlike: bool = False


NO_WORDS = GangWords("", "")


def words_of(pod: Pod) -> GangWords | None:
    """The gang that a pod names, None for none."""
    if not pod.pod_group and _NAMES.isdisjoint(pod.labels) and _NAMES.isdisjoint(pod.annotations):
        return None  # as for most pods
    for read in _READERS:
        words = read(pod)
        if words is not None:
            return words if 0 < len(words.name) <= OBJECT_NAME else None
    return None


def _stowage(pod: Pod) -> GangWords | None:
    name = pod.labels.get(GANG) or pod.annotations.get(GANG)
    if not name:
        return None
    minimum = _count(pod.labels, GANG_MIN)
    return GangWords("stowage", name, _count(pod.annotations, GANG_MIN) if minimum is None else minimum)


def _native(pod: Pod) -> GangWords | None:
    """``spec.schedulingGroup.podGroupName`` (Kubernetes 1.36 on, feature gate GenericWorkload): k8s.io/api
    v0.36.3, ``core/v1/types.go``."""
    if not pod.pod_group:
        return None
    return GangWords("PodGroup", pod.pod_group, pod_groups=NATIVE)


def _coscheduling(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/scheduler-plugins, ``apis/scheduling/v1alpha1/types.go`` (PodGroupLabel). Koordinator
    may read the same label: without the object, its annotation has the minimum."""
    name = pod.labels.get("scheduling.x-k8s.io/pod-group")
    if not name:
        return None
    minimum = _count(pod.annotations, _KOORDINATOR_MIN)
    return GangWords("coscheduling", name, minimum, ("CoschedulingPodGroup",))


def _volcano(pod: Pod) -> GangWords | None:
    """volcano-sh/apis, ``pkg/apis/scheduling/v1beta1/labels.go``."""
    name = pod.annotations.get("scheduling.k8s.io/group-name")
    name = name or pod.annotations.get("scheduling.volcano.sh/group-name")
    return GangWords("Volcano", name, pod_groups=("VolcanoPodGroup",)) if name else None


def _kai(pod: Pod) -> GangWords | None:
    """NVIDIA/KAI-Scheduler, ``pkg/common/constants/constants.go`` (PodGroupAnnotationForPod)."""
    name = pod.annotations.get("pod-group-name")
    return GangWords("KAI", name, pod_groups=("KaiPodGroup",)) if name else None


_KOORDINATOR_MIN = "gang.scheduling.koordinator.sh/min-available"


def _koordinator(pod: Pod) -> GangWords | None:
    """koordinator-sh/koordinator, ``apis/extension/coscheduling.go``, and ``GetGangNameByPod`` of
    ``pkg/scheduler/plugins/coscheduling/util/gang_helper.go``: two old labels, then the annotation."""
    old = "pod-group.scheduling.sigs.k8s.io"
    name = pod.labels.get(old) or pod.labels.get(f"{old}/name")
    name = name or pod.annotations.get("gang.scheduling.koordinator.sh/name")
    if not name:
        return None
    minimum = _count(pod.labels, f"{old}/min-available")
    minimum = _count(pod.annotations, _KOORDINATOR_MIN) if minimum is None else minimum
    return GangWords("Koordinator", name, minimum, ("KoordinatorPodGroup",))


_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"


def _kueue(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/kueue, ``GetPodGroupName`` in ``pkg/util/pod/pod.go``: groups of plain pods. Since 0.18
    the name may be an annotation, which decides."""
    name = pod.annotations.get(_KUEUE_GROUP) or pod.labels.get(_KUEUE_GROUP)
    if not name:
        return None
    return GangWords("Kueue", name, _count(pod.annotations, "kueue.x-k8s.io/pod-group-total-count"))


def _jobset(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/jobset, ``api/jobset/v1alpha2/jobset_types.go``. By its failure policy a JobSet starts
    all of its jobs again when one has failed. It does not say how many pods it has."""
    name = pod.labels.get("jobset.sigs.k8s.io/jobset-name")
    return GangWords("JobSet", name, together=False) if name else None


def _leader_worker_set(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/lws, ``api/leaderworkerset/v1/leaderworkerset_types.go``. A group starts again as a
    whole (RecreateGroupOnPodRestart, the default). Its workers may be created only when the leader is ready,
    from a template of their own."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    name, index = pod.labels.get(f"{prefix}name"), pod.labels.get(f"{prefix}group-index")
    if not name or not index:
        return None
    return GangWords(
        "LeaderWorkerSet",
        f"{name}-{index}",
        _count(pod.annotations, f"{prefix}size"),
        indispensable=pod.labels.get(f"{prefix}worker-index") == "0",
        others_unlike=True,
    )


def _ray(pod: Pod) -> GangWords | None:
    """ray-project/kuberay, ``ray-operator/controllers/ray/utils/constant.go``. A cluster is lost with its
    head, and works on with any number of workers. The hosts of one worker replica
    (``ray.io/worker-group-replica-name``, from 1.5) are replaced together."""
    name = pod.labels.get("ray.io/cluster")
    if not name:
        return None
    replica = pod.labels.get("ray.io/worker-group-replica-name")
    if replica:
        return GangWords("Ray worker", replica, together=False)
    head = pod.labels.get("ray.io/node-type") == "head"
    return GangWords("Ray", name, 1, together=False, indispensable=head, others_unlike=True)


_READERS: tuple[Callable[[Pod], GangWords | None], ...] = (
    *(_stowage, _native, _coscheduling, _volcano, _kai, _koordinator, _kueue),
    *(_leader_worker_set, _jobset, _ray),
)


_NAMES = frozenset({
    *(GANG, "scheduling.x-k8s.io/pod-group", _KUEUE_GROUP),
    *("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name"),
    *("pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"),
    *("gang.scheduling.koordinator.sh/name", "jobset.sigs.k8s.io/jobset-name"),
    *("leaderworkerset.sigs.k8s.io/name", "ray.io/cluster"),
})  # fmt: skip
"""Labels and annotations with the name of a gang: without any of them a pod names no gang."""


def _count(entries: Mapping[str, str], key: str) -> int | None:
    """The number of members that an entry declares, None if there is none or it is no number."""
    text = entries.get(key)
    return int(text) if text and _COUNT.fullmatch(text) else None
