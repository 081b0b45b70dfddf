"""Manifests as each system writes them, and the gang that they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.job_kinds import (
    PodGroupKind,
    PodGroupManifest,
)
from extender.k8s.manifest import Unreadable
from extender.k8s.objects import Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.queues.gangs import GangTable


def pod(name: str = "w-0", **fields: Any) -> Pod:
    """A running pod with these labels, annotations or spec fields."""
    metadata = {"namespace": "train", "name": name, "uid": name}
    metadata |= {key: fields.pop(key) for key in ("labels", "annotations") if key in fields}
    spec = {"nodeName": "n", "containers": [{"name": "c"}], **fields}
    return PodManifest.from_value({"metadata": metadata, "spec": spec}).record()


def table(*objects: Any) -> GangTable:
    gangs = GangTable()
    for obj in objects:
        gangs.apply(Upserted(obj))
    return gangs


# Pods as in the documentation of each system, the key of the gang, how many of three members must run, and
# how many are placed all at once.
MANIFESTS = {
    "native": ({"schedulingGroup": {"podGroupName": "llama"}}, "PodGroup train/llama", 3, 0),
    "coscheduling": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "nginx"}},
        "coscheduling train/nginx",
        3,
        0,
    ),
    "coscheduling read by Koordinator": (
        {
            "labels": {"scheduling.x-k8s.io/pod-group": "nginx"},
            "annotations": {"gang.scheduling.koordinator.sh/min-available": "2"},
        },
        "coscheduling train/nginx",
        2,
        2,
    ),
    "volcano": (
        {"annotations": {"scheduling.k8s.io/group-name": "job-1-2d3e", "volcano.sh/job-name": "job-1"}},
        "Volcano train/job-1-2d3e",
        3,
        0,
    ),
    "volcano's own name": (
        {"annotations": {"scheduling.volcano.sh/group-name": "pg"}},
        "Volcano train/pg",
        3,
        0,
    ),
    "kai": (
        {"annotations": {"pod-group-name": "pg-job-1"}, "labels": {"kai.scheduler/queue": "research"}},
        "KAI train/pg-job-1",
        3,
        0,
    ),
    "koordinator": (
        {
            "annotations": {
                "gang.scheduling.koordinator.sh/name": "gang-example",
                "gang.scheduling.koordinator.sh/min-available": "2",
            }
        },
        "Koordinator train/gang-example",
        2,
        2,
    ),
    "koordinator's old labels": (
        {
            "labels": {
                "pod-group.scheduling.sigs.k8s.io/name": "gang-example",
                "pod-group.scheduling.sigs.k8s.io/min-available": "1",
            }
        },
        "Koordinator train/gang-example",
        1,
        1,
    ),
    "kueue": (
        {
            "labels": {
                "kueue.x-k8s.io/queue-name": "user-queue",
                "kueue.x-k8s.io/pod-group-name": "sample-group",
            },
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
        },
        "Kueue train/sample-group",
        3,
        3,
    ),
    "kueue's annotation": (
        {
            "labels": {"kueue.x-k8s.io/queue-name": "user-queue", "kueue.x-k8s.io/pod-group-name": "old"},
            "annotations": {
                "kueue.x-k8s.io/pod-group-name": "sample-group-of-a-long-name",
                "kueue.x-k8s.io/pod-group-total-count": "3",
            },
        },
        "Kueue train/sample-group-of-a-long-name",
        3,
        3,
    ),
    "jobset": (
        {
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": "pytorch",
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-index": "0",
            }
        },
        "JobSet train/pytorch",
        3,
        0,
    ),
    "leader worker set": (
        {
            "labels": {
                "leaderworkerset.sigs.k8s.io/name": "vllm",
                "leaderworkerset.sigs.k8s.io/group-index": "4",
                "leaderworkerset.sigs.k8s.io/worker-index": "1",
            },
            "annotations": {"leaderworkerset.sigs.k8s.io/size": "3"},
        },
        "LeaderWorkerSet train/vllm-4",
        3,
        3,
    ),
    "ray": (
        {"labels": {"ray.io/cluster": "rc", "ray.io/node-type": "worker", "ray.io/group": "gpu"}},
        "Ray train/rc",
        1,
        1,
    ),
    "hosts of one ray worker": (
        {
            "labels": {
                "ray.io/cluster": "rc",
                "ray.io/node-type": "worker",
                "ray.io/worker-group-replica-name": "tpu-group-af03de",
            }
        },
        "Ray worker train/tpu-group-af03de",
        3,
        0,
    ),
    "stowage": (
        {"labels": {"stowage.dev/gang": "sweep", "stowage.dev/gang-min": "2"}},
        "stowage train/sweep",
        2,
        2,
    ),
    "stowage, all members": ({"annotations": {"stowage.dev/gang": "sweep"}}, "stowage train/sweep", 3, 0),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_the_words_of_each_system_mean(name: str) -> None:
    fields, key, minimum, together = MANIFESTS[name]
    pods = [pod(f"w-{i}", **fields) for i in range(3)]
    gangs = table(*pods)
    gang = gangs.gang_of(pods[0])
    assert gang is not None
    assert (gang.key, gang.minimum, gang.together) == (key, minimum, together)
    assert list(gangs.members(key)) == pods
    assert gangs.running(key) == 3


GROUPS = {
    "native gang": (
        "OldAlphaPodGroup",
        {"schedulingGroup": {"podGroupName": "g"}},
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": "Pod"},
        (2, 2),
    ),
    "native gang, disrupted as a whole (1.36)": (
        "OldAlphaPodGroup",
        {"schedulingGroup": {"podGroupName": "g"}},
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": "PodGroup"},
        (3, 2),
    ),
    "native gang, disrupted as a whole (1.37)": (
        "PodGroup",
        {"schedulingGroup": {"podGroupName": "g"}},
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"all": {}}},
        (3, 2),
    ),
    "native without gang": (
        "PodGroup",
        {"schedulingGroup": {"podGroupName": "g"}},
        {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}},
        None,
    ),
    "coscheduling": (
        "CoschedulingPodGroup",
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        {"minMember": 2, "scheduleTimeoutSeconds": 10},
        (2, 2),
    ),
    "volcano, one task": (
        "VolcanoPodGroup",
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"minMember": 1, "minTaskMember": {"worker": 3}},
        (1, 1),
    ),
    "volcano, tasks with minimums of their own": (
        "VolcanoPodGroup",
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"minMember": 2, "minTaskMember": {"master": 1, "worker": 1}},
        (3, 2),
    ),
    "kai": ("KaiPodGroup", {"annotations": {"pod-group-name": "g"}}, {"minMember": 1}, (1, 1)),
    "kai with subgroups": (
        "KaiPodGroup",
        {"annotations": {"pod-group-name": "g"}},
        {
            "minMember": 2,
            "subGroups": [{"name": "decode", "minMember": 1}, {"name": "prefill", "minMember": 1}],
        },
        (3, 2),
    ),
    "elastic": ("KaiPodGroup", {"annotations": {"pod-group-name": "g"}}, {"minMember": 0}, None),
    "impossible": ("KaiPodGroup", {"annotations": {"pod-group-name": "g"}}, {"minMember": -4}, (3, 0)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_minimum_of_a_pod_group(name: str) -> None:
    kind, fields, spec, expected = GROUPS[name]
    group, elsewhere = (
        PodGroupManifest.from_value({"metadata": {"namespace": namespace, "name": "g"}, "spec": one}).record(
            kind
        )
        for namespace, one in (("train", spec), ("other", {}))
    )
    pods = [pod(f"w-{i}", **fields) for i in range(3)]
    gang = table(*pods, group, elsewhere).gang_of(pods[1])
    assert (gang and (gang.minimum, gang.together)) == expected


def test_the_head_of_a_ray_cluster_and_the_leader_of_a_group_are_indispensable() -> None:
    ray = {"ray.io/cluster": "rc", "ray.io/node-type": "head"}
    head, worker = pod("h", labels=ray), pod("w", labels=ray | {"ray.io/node-type": "worker"})
    lws = "leaderworkerset.sigs.k8s.io/"
    leader = pod("l", labels={f"{lws}name": "v", f"{lws}group-index": "0", f"{lws}worker-index": "0"})
    gangs = table(head, worker, leader)
    found = [gangs.gang_of(one) for one in (head, worker, leader)]
    indispensable = [{*gang.indispensable} for gang in found if gang]
    assert indispensable == [{head.key}, {head.key}, {leader.key}]
    assert found[0] is not None
    assert (found[0].minimum, gangs.running("Ray train/rc")) == (1, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = st.sampled_from(
    [
        "schedulingPolicy",
        "gang",
        "basic",
        "minCount",
        "disruptionMode",
        "preemptionPolicy",
        "parentCompositePodGroupName",
        "minMember",
        "minTaskMember",
        "subGroups",
    ]
)


@given(
    st.sampled_from(["PodGroup", "VolcanoPodGroup", "KaiPodGroup"]),
    st.dictionaries(FIELDS, JSON | st.dictionaries(FIELDS, JSON | st.dictionaries(FIELDS, JSON))),
)
def test_any_pod_group_is_read_or_refused(kind: PodGroupKind, spec: dict[str, Any]) -> None:
    try:
        group = PodGroupManifest.from_value({"metadata": {"name": "g"}, "spec": spec}).record(kind)
    except Unreadable:
        return
    assert group.minimum is None or 0 <= group.minimum < 1 << 31
