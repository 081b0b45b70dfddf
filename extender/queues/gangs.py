"""Gangs: pods that are useless without each other, and which gang a pod names, in the words of every common
system.

The first system in ``_READERS`` whose words a pod has decides. Users write all of them, so a gang never
crosses a namespace, and a name that is no object name (too long) is ignored.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from extender.k8s.job_kinds import JOB_KINDS
from extender.k8s.objects import (
    Deleted,
    Event,
    Listed,
    Pod,
    PodGroup,
    PodGroupKind,
    Upserted,
    is_pod_group,
)
from extender.k8s.pod_groups import NATIVE
from extender.untrusted.limits import GANG_MEMBERS, OBJECT_NAME

GANG = "stowage.dev/gang"
"""Label or annotation of a pod: the name of its gang."""
GANG_MIN = "stowage.dev/gang-min"
"""Label or annotation: how many members must run. Without it: all."""

_COMES_WITHIN = 10.0
"""Seconds in which a job is shown that has made a pod already: its watch may lag behind."""
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GangWords:
    """What a pod says of its gang. ``kind`` and ``name`` identify it within a namespace.

    ``minimum`` is what the pod itself declares, None for nothing. ``pod_groups`` are the kinds of objects of
    this name that declare it, or of the name ``object``; the first that exists counts. ``role``: whose number
    in that object counts, "" for all. ``indispensable``: without this pod the others are useless.
    ``others_unlike``: members that do not exist yet may ask for something else than this pod.
    """

    kind: str
    name: str
    minimum: int | None = None
    pod_groups: tuple[PodGroupKind, ...] = ()
    object: str = ""
    role: str = ""
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
    all of its jobs again when one has failed."""
    name = pod.labels.get("jobset.sigs.k8s.io/jobset-name")
    return GangWords("JobSet", name, pod_groups=("JobSet",)) if name else None


def _grove(pod: Pod) -> GangWords | None:
    """NVIDIA/grove, ``operator/api/common/labels.go``."""
    name = pod.labels.get("grove.io/podgang")
    return GangWords("PodGang", name, pod_groups=("PodGang",)) if name else None


_KUBEFLOW: tuple[PodGroupKind, ...] = ("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob")


def _kubeflow(pod: Pod) -> GangWords | None:
    """kubeflow/trainer, branch release-1.9, ``pkg/apis/kubeflow.org/v1/common_types.go``. Only the launcher
    of an MPIJob (kubeflow/mpi-operator, v2beta1) is a pod of a Job of its own."""
    name = pod.labels.get("training.kubeflow.org/job-name")
    if not name:
        return None
    for kind in _KUBEFLOW:
        if pod.owner and pod.owner.kind == kind:
            return GangWords(kind, name, pod_groups=(kind,))
    return GangWords("MPIJob", name, pod_groups=("MPIJob", "OldMPIJob"))


_KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"


def _kueue_workload(pod: Pod) -> GangWords | None:
    """kubernetes-sigs/kueue, ``apis/kueue/v1beta2/topology_types.go`` (WorkloadAnnotation, set by default
    from 0.14 on). A Job that is not Indexed is a queue of tasks. Slices of an elastic job replace each
    other."""
    name = pod.annotations.get(_KUEUE_WORKLOAD)
    indexed = "batch.kubernetes.io/job-completion-index" in pod.labels
    elastic = "kueue.x-k8s.io/workload-slice-name" in pod.annotations
    if not name or elastic or not (indexed or (pod.owner and pod.owner.kind != "Job")):
        return None
    return GangWords("Kueue Workload", name, pod_groups=("KueueWorkload",))


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
        ("LeaderWorkerSet",),
        object=name,
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
        group = pod.labels.get("ray.io/group", "")
        return GangWords("Ray worker", replica, None, ("RayCluster",), object=name, role=group)
    head = pod.labels.get("ray.io/node-type") == "head"
    return GangWords("Ray", name, 1, ("RayCluster",), indispensable=head, others_unlike=True)


_READERS: tuple[Callable[[Pod], GangWords | None], ...] = (
    *(_stowage, _native, _coscheduling, _volcano, _kai, _koordinator, _kueue),
    *(_leader_worker_set, _grove, _jobset, _kubeflow, _ray, _kueue_workload),
)


_NAMES = frozenset({
    *(GANG, "scheduling.x-k8s.io/pod-group", _KUEUE_GROUP),
    *("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name"),
    *("pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"),
    *("gang.scheduling.koordinator.sh/name", "jobset.sigs.k8s.io/jobset-name"),
    *("leaderworkerset.sigs.k8s.io/name", "ray.io/cluster", "grove.io/podgang"),
    *("training.kubeflow.org/job-name", _KUEUE_WORKLOAD),
})  # fmt: skip
"""Labels and annotations with the name of a gang: without any of them a pod names no gang."""


def _count(entries: Mapping[str, str], key: str) -> int | None:
    """The number of members that an entry declares, None if there is none or it is no number."""
    text = entries.get(key)
    return int(text) if text and _COUNT.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang: its key (unique in the cluster) and how many of its members must run.

    ``indispensable`` are the keys of members without which the others are useless: if one of them leaves, all
    leave. ``words``: how the pods name the gang. ``together``: how many members are to be placed all at once
    or not at all, 0 where nothing says so. ``succeeded``: how many members have ended well, which count
    towards both numbers. ``templates``: members that its job makes, and how many of each, () where it is not
    known. ``uncounted``: the job that would say how many there are, and is not seen: "PyTorchJob train".
    """

    key: str
    minimum: int
    indispensable: frozenset[str] = frozenset()
    words: GangWords = NO_WORDS
    together: int = 0
    succeeded: int = 0
    templates: tuple[tuple[Pod, int], ...] = ()
    uncounted: str = ""

    @property
    def to_place(self) -> int:
        """How many members are still to run, or to be placed, of those that must be placed together."""
        return max(self.together - self.succeeded, 0)

    @property
    def to_run(self) -> int:
        """How many members must run, of those that have not succeeded."""
        return max(self.minimum - self.succeeded, 0)


class StillToStart(NamedTuple):
    """Of the members of a gang that nothing deletes: those that have ``room``, those that wait for it without
    gates (``free``) or with them, and how many more than have room need it, negative for too many."""

    room: Sequence[Pod]
    free: Sequence[Pod]
    gated: Sequence[Pod]
    missing: int


class _Member(NamedTuple):
    """A member of a gang, the gang's key, and how the pod names it."""

    pod: Pod
    gang: str
    words: GangWords


class _Members:
    """The members of one gang, with the numbers that change with each of them."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.running = 0
        self.indispensable: set[str] = set()
        self.declared: Counter[int] = Counter()  # the minimums that the pods declare
        self.gang: tuple[int, Gang | None] = -1, None  # the version of the PodGroups that it is made with

    def add(self, pod: Pod, words: GangWords) -> None:
        self.pods[pod.key] = pod
        self.running += is_running(pod)
        if words.minimum is not None:
            self.declared[words.minimum] += 1
        if words.indispensable:
            self.indispensable.add(pod.key)
        self.gang = -1, None

    def remove(self, pod: Pod, words: GangWords) -> None:
        del self.pods[pod.key]
        self.running -= is_running(pod)
        if words.minimum is not None:
            self.declared[words.minimum] -= 1
            if not self.declared[words.minimum]:
                del self.declared[words.minimum]
        self.indispensable.discard(pod.key)
        self.gang = -1, None


def is_running(pod: Pod) -> bool:
    """Whether the pod is bound, and nothing ends it."""
    return bool(pod.node_name) and not (pod.deleting or pod.disruption or pod.terminated)


class GangTable:
    """The gangs of all known pods. The cluster's state keeps it up to date.

    The members of a gang have one namespace and one priority. A gang with more than ``limits.GANG_MEMBERS``
    members counts as none, so that nobody protects pods by their number.

    Members that have succeeded count towards the minimum until they are deleted, as for Volcano
    (volcano-sh/volcano, ``ReadyTaskNum`` in ``pkg/scheduler/api/job_info.go``), and as for scheduler-plugins,
    which counts all members that exist (kubernetes-sigs/scheduler-plugins, ``PreFilter`` in
    ``pkg/coscheduling/core/core.go``). KAI never calls a group stale of which a member has succeeded
    (NVIDIA/KAI-Scheduler, ``IsStale`` in ``pkg/scheduler/api/podgroup_info/job_info.go``). Members that have
    failed do not count: others replace them.
    """

    def __init__(self) -> None:
        self._gangs: dict[str, _Members] = {}
        self._pods: dict[str, _Member | None] = {}  # None for a pod of its own
        self._ended: dict[str, str] = {}  # by the key of a member that has succeeded, its gang's
        self._succeeded: Counter[str] = Counter()  # members by gang, at most GANG_MEMBERS of each
        self._pod_groups: dict[tuple[PodGroupKind, str], PodGroup] = {}
        self.changes = 0  # of members and PodGroups
        self._version = 0  # of the PodGroups
        self._changed: set[str] = set()
        self._served: set[str] = set()  # kinds of PodGroups that were listed

    def gang_of(self, pod: Pod) -> Gang | None:
        """The gang of a pod, None for a pod of its own. For a known pod, what the watch shows counts."""
        key = pod.key
        if key in self._pods:
            member = self._pods[key]
            return self._gang(self._gangs[member.gang]) if member else None
        words = words_of(pod)
        if words is None:
            return None
        return self._gang(self._gangs.get(_key(pod, words)) or _alone(pod, words))

    def awaited_job(self, pod: Pod, now: float) -> str:
        """The job that says how many pods start with this one, as "PyTorchJob train", if it should be seen
        soon: its kind is served, and the pod is young at ``now`` (Unix seconds); else ""."""
        gang = self.gang_of(pod)
        if gang is None or self._served.isdisjoint(gang.words.pod_groups):
            return ""
        return gang.uncounted if 0 <= now - pod.created < _COMES_WITHIN else ""

    def longest_run(self, pod: Pod) -> float:
        """The seconds that the pod runs at most, as its job or its Workload of Kueue says."""
        words = words_of(pod) or NO_WORDS
        named = [(kind, words.object or words.name) for kind in words.pod_groups]
        named.append(("KueueWorkload", pod.annotations.get(_KUEUE_WORKLOAD, "")))
        groups = (self._pod_groups.get((kind, f"{pod.namespace}/{name}")) for kind, name in named)
        return min((group.longest for group in groups if group), default=math.inf)

    def cycle_of(self, pod: Pod) -> str:
        """The key of the pods that kube-scheduler asks about in one cycle, before it binds any of them: those
        of a PodGroup of Kubernetes' own, or those of all CompositePodGroups of the namespace, of which it
        asks about one at a time. "" for other pods."""
        if not pod.pod_group:
            return ""
        name = f"{pod.namespace}/{pod.pod_group}"
        group = next(filter(None, (self._pod_groups.get((kind, name)) for kind in NATIVE)), None)
        return f"{pod.namespace}/" if group and group.in_composite else name

    def is_single(self, pod: Pod) -> bool:
        """Whether the watch shows that the pod names no gang."""
        return pod.key in self._pods and self._pods[pod.key] is None

    def gang(self, key: str) -> Gang | None:
        """The gang of this key; None if no pod names it, or if its members count one by one."""
        members = self._gangs.get(key)
        return self._gang(members) if members else None

    def pod_groups(self) -> list[PodGroup]:
        return list(self._pod_groups.values())

    @property
    def has_changed(self) -> bool:
        """Whether ``take_changed`` returns any."""
        return bool(self._changed)

    def take_changed(self) -> set[str]:
        """The keys of the gangs whose members have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def members(self, key: str) -> Sequence[Pod]:
        """The known members of a gang that have not ended, waiting ones included."""
        members = self._gangs.get(key)
        return tuple(members.pods.values()) if members else ()

    def still_to_start(
        self, gang: Gang, needed: int, has_room: Callable[[str], bool], *, but: str = ""
    ) -> StillToStart:
        """Who of a gang must still start, so that as many as ``needed`` have room. ``has_room``: whether the
        pod of this UID does. ``but``: the key of a member that is not counted."""
        room, free, gated = list[Pod](), list[Pod](), list[Pod]()
        for member in self.members(gang.key):
            if member.key != but and not member.deleting:
                (room if has_room(member.uid) else gated if member.gates else free).append(member)
        return StillToStart(room, free, gated, needed - len(room))

    def succeeded(self) -> dict[str, int]:
        """How many members have succeeded, by the key of their gang."""
        return dict(self._succeeded)

    def load_succeeded(self, counts: Mapping[str, int]) -> None:
        """Take in what ``succeeded`` of another table has returned."""
        self._succeeded.update(counts)

    def running(self, key: str) -> int:
        """How many members are bound and do not terminate."""
        members = self._gangs.get(key)
        return members.running if members else 0

    @contextmanager
    def supposing(self, pods: Iterable[Pod]) -> Iterator[None]:
        """For one question, with these pods in place of the known ones of the same keys, or beside them."""
        pods = [pod for pod in pods if pod.key not in self._ended]
        known = {pod.key: self._pods[pod.key] for pod in pods if pod.key in self._pods}
        changed = set(self._changed)
        for pod in pods:
            self._put(pod)
        try:
            yield
        finally:
            for pod in pods:
                self._remove(pod.key)
                if (member := known.get(pod.key)) is not None:
                    self._put(member.pod)
                elif pod.key in known:
                    self._pods[pod.key] = None
            self._changed = changed

    def apply(self, event: Event) -> None:
        """Take in an event about a pod or a PodGroup; others change nothing."""
        match event:
            case Upserted(Pod() as pod):
                self._put(pod)
            case Deleted("Pod", key):
                self._remove(key)
            case Listed("Pod", keys):
                for key in (self._pods.keys() | self._ended.keys()) - keys:
                    self._remove(key)
            case _:
                self._apply_to_groups(event)

    def _apply_to_groups(self, event: Event) -> None:
        match event:
            case Upserted(PodGroup() as group):
                if self._pod_groups.get((group.kind, group.key)) != group:
                    self._pod_groups_changed()
                self._pod_groups[group.kind, group.key] = group
            case Deleted(kind, key) if is_pod_group(kind):
                if self._pod_groups.pop((kind, key), None) is not None:
                    self._pod_groups_changed()
            case Listed(kind, keys, absent=absent) if is_pod_group(kind):
                (self._served.discard if absent else self._served.add)(kind)
                for gone in [(of, key) for of, key in self._pod_groups if of == kind and key not in keys]:
                    del self._pod_groups[gone]
                self._pod_groups_changed()

    def _gang_changed(self, key: str) -> None:
        self.changes += 1
        self._changed.add(key)

    def _pod_groups_changed(self) -> None:
        self.changes += 1
        self._version += 1

    def _put(self, pod: Pod) -> None:
        key = pod.key
        if (member := self._pods.get(key)) and member.pod == pod:
            return
        words = words_of(pod)
        gang = _key(pod, words) if words else ""
        if pod.phase == "Succeeded" and gang and self._ended.get(key) == gang:
            return
        self._remove(key)
        if pod.terminated:
            if pod.phase == "Succeeded" and gang and self._succeeded[gang] < GANG_MEMBERS:
                self._ended[key] = sys.intern(gang)
                self._count_succeeded(gang, 1)
            return
        if words is None:
            self._pods[key] = None
            return
        self._pods[key] = _Member(pod, gang, words)
        self._gangs.setdefault(gang, _Members()).add(pod, words)
        self._gang_changed(gang)

    def _count_succeeded(self, gang: str, change: int) -> None:
        self._succeeded[gang] += change
        if not self._succeeded[gang]:
            del self._succeeded[gang]
        if members := self._gangs.get(gang):
            members.gang = -1, None
        self._gang_changed(gang)

    def _remove(self, key: str) -> None:
        if ended := self._ended.pop(key, ""):
            self._count_succeeded(ended, -1)
        member = self._pods.pop(key, None)
        if member is None:
            return
        members = self._gangs[member.gang]
        members.remove(member.pod, member.words)
        self._gang_changed(member.gang)
        if not members.pods:
            del self._gangs[member.gang]

    def _gang(self, members: _Members) -> Gang | None:
        version, gang = members.gang
        if version != self._version:
            gang = self._made_of(members)
            members.gang = self._version, gang
        return gang

    def _made_of(self, members: _Members) -> Gang | None:
        pod = next(iter(members.pods.values()))
        words = words_of(pod)
        if words is None or len(members.pods) > GANG_MEMBERS:
            return None
        name = f"{pod.namespace}/{words.object or words.name}"
        groups = (self._pod_groups.get((kind, name)) for kind in words.pod_groups)
        group = next(filter(None, groups), None)
        minimum, together = max(members.declared, default=None), None
        if group is not None:
            minimum, together = group.minimum, group.together
            if words.role:
                minimum = together = group.by_role.get(words.role)
        key = _key(pod, words)
        succeeded = self._succeeded.get(key, 0)
        everybody = len(members.pods) + succeeded
        if group is not None and minimum == 0 and not group.whole:
            return None  # any number of them may run
        awaits_job = group is None and not JOB_KINDS.keys().isdisjoint(words.pod_groups)
        whole = minimum is None or (group is not None and group.whole)
        return Gang(
            key=key,
            minimum=max(minimum or 0, everybody) if whole else minimum or 0,
            indispensable=frozenset(members.indispensable),
            words=words,
            together=(minimum or 0) if together is None else together,
            succeeded=succeeded,
            templates=group.templates if group and not words.role else (),
            uncounted=f"{words.pod_groups[0]} {words.object or words.name}" if awaits_job else "",
        )


def _key(pod: Pod, words: GangWords) -> str:
    """Pods of another priority are another gang: they must not protect those that are below them."""
    priority = f" of priority {pod.priority}" if pod.priority else ""
    return f"{words.kind} {pod.namespace}/{words.name}{priority}"


def _alone(pod: Pod, words: GangWords) -> _Members:
    """The gang of a pod that the watch has not shown."""
    members = _Members()
    members.add(pod, words)
    return members
