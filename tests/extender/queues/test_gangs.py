"""The table of gangs against a slow recount, and what the authors of pods can do with gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.k8s.objects import Deleted, Event, Listed, Pod, PodGroup, Upserted
from extender.queues import gangs as module
from extender.queues.gang_words import words_of
from extender.queues.gangs import GangTable
from extender.untrusted.limits import GANG_MEMBERS
from tests.examples import examples
from tests.extender.builders import make_pod, make_state

NAMES = ["a", "b", "c", "d"]


def member(name: str, gang: str = "g", **fields: Any) -> Pod:
    labels = {"stowage.dev/gang": gang} | fields.pop("labels", {})
    return make_pod(name, labels=labels, **fields)


LABELS = st.sampled_from(
    [
        {},
        {"stowage.dev/gang": "g"},
        {"stowage.dev/gang": "g", "stowage.dev/gang-min": "1"},
        {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"},
        {"scheduling.x-k8s.io/pod-group": "g"},
        {"ray.io/cluster": "g", "ray.io/node-type": "head"},
        {"ray.io/cluster": "g"},
    ]
)
PODS = st.builds(
    make_pod,
    st.sampled_from(NAMES),
    labels=LABELS,
    node_name=st.sampled_from(["", "n"]),
    deleting=st.booleans(),
    disruption=st.sampled_from(["", "PreemptionByScheduler"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    priority=st.sampled_from([0, 5]),
)
GROUPS = st.builds(
    PodGroup,
    st.just("CoschedulingPodGroup"),
    st.just("default"),
    st.sampled_from(["g", "h"]),
    st.sampled_from([None, 0, 1, 2]),
    st.booleans(),
)
KEYS = st.sampled_from([f"default/{name}" for name in NAMES])
EVENTS = st.one_of(
    st.builds(Upserted, PODS),
    st.builds(Upserted, GROUPS),
    st.builds(Deleted, st.just("Pod"), KEYS),
    st.builds(Deleted, st.just("CoschedulingPodGroup"), st.sampled_from(["default/g", "default/h"])),
    st.builds(Listed, st.just("Pod"), st.frozensets(KEYS)),
    st.builds(Listed, st.just("CoschedulingPodGroup"), st.frozensets(st.just("default/g"))),
)


def replayed(events: list[Event]) -> tuple[dict[str, Pod], dict[str, PodGroup]]:
    """The pods that have not failed and the groups that are left after the events."""
    pods: dict[str, Pod] = {}
    groups: dict[str, PodGroup] = {}
    for event in events:
        match event:
            case Upserted(Pod() as pod):
                pods.pop(pod.key, None)
                if pod.phase != "Failed":
                    pods[pod.key] = pod
            case Upserted(PodGroup() as group):
                groups[group.key] = group
            case Deleted(kind, key):
                (pods if kind == "Pod" else groups).pop(key, None)
            case Listed(kind, keys):
                table: dict[str, Any] = pods if kind == "Pod" else groups
                for key in set(table) - keys:
                    del table[key]
    return pods, groups


def same_gang(one: Pod, other: Pod) -> bool:
    a, b = words_of(one), words_of(other)
    if a is None or b is None or one.priority != other.priority:
        return False
    return (a.kind, a.name, one.namespace) == (b.kind, b.name, other.namespace)


def key_of(pod: Pod) -> str:
    return pod.key


@settings(max_examples=examples(300))
@given(st.lists(EVENTS, max_size=25))
def test_the_table_equals_a_recount_after_any_events(events: list[Event]) -> None:
    table = GangTable()
    for event in events:
        table.apply(event)
        for pod in replayed(events)[0].values():
            table.gang_of(pod)  # so that a stale answer would be kept
    known, groups = replayed(events)
    pods = {key: pod for key, pod in known.items() if not pod.terminated}
    for pod in pods.values():
        succeeded = sum(one.terminated and same_gang(pod, one) for one in known.values())
        mates = [other for other in pods.values() if same_gang(pod, other)]
        words, group = words_of(pod), groups.get("default/g")
        gang = table.gang_of(pod)
        if words is None:
            assert gang is None
            continue
        if words.kind != "coscheduling":
            group = None
        declared = [w.minimum for m in mates if (w := words_of(m)) and w.minimum is not None]
        minimum = group.minimum if group else max(declared, default=None)
        if group and minimum == 0 and not group.whole:
            assert gang is None
            continue
        whole = minimum is None or (group is not None and group.whole)
        assert gang is not None
        assert gang.succeeded == succeeded
        assert gang.minimum == (max(len(mates) + succeeded, minimum or 0) if whole else minimum)
        assert sorted(table.members(gang.key), key=key_of) == sorted(mates, key=key_of)
        running = sum(m.node_name != "" and not m.deleting and not m.disruption for m in mates)
        assert table.running(gang.key) == running
        heads = {m.key for m in mates if m.labels.get("ray.io/node-type") == "head"}
        assert gang.indispensable == heads
    named = [(words.kind, words.name, p.priority) for p in pods.values() if (words := words_of(p))]
    assert len(table._gangs) == len(set(named))  # an empty gang is forgotten
    assert sum(table.succeeded().values()) == sum(
        pod.terminated and words_of(pod) is not None for pod in known.values()
    )


def test_members_that_have_succeeded_count_until_they_are_deleted() -> None:
    labels = {"stowage.dev/gang-min": "2"}
    first, second = (member(name, labels=labels, phase="Succeeded") for name in "ab")
    state = make_state(first, second, member("c", labels=labels, phase="Failed"))
    last = member("d", labels=labels)

    def to_place() -> int:
        gang = state.gangs.gang_of(last)
        assert gang is not None
        return gang.to_place

    assert to_place() == 0
    changes = state.gangs.changes
    state.apply([Upserted(replace(first, labels={**first.labels, "seen": "yes"})), Upserted(last)])
    assert state.gangs.changes == changes + 1  # nothing new of the first
    state.apply([Deleted("Pod", first.key)])
    assert to_place() == 1
    state.apply([Upserted(replace(second, phase="Pending"))])  # a pod of this name is created again
    assert to_place() == 2
    state.apply([Upserted(second), Listed("Pod", frozenset({last.key}))])
    assert (to_place(), state.gangs.succeeded()) == (2, {})


def test_no_more_succeeded_members_are_remembered_than_a_gang_may_have(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "GANG_MEMBERS", 3)
    table = GangTable()
    for number in range(5):
        table.apply(Upserted(member(f"p{number}", phase="Succeeded")))
    assert table.succeeded() == {"stowage default/g": 3}
    assert len(table._ended) == 3


def test_a_gang_of_too_many_pods_counts_one_by_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "GANG_MEMBERS", 3)
    table, pods = GangTable(), [member(f"p{i}", node_name="n") for i in range(4)]
    for pod in pods[:3]:
        table.apply(Upserted(pod))
    assert table.gang_of(pods[0]) is not None
    table.apply(Upserted(pods[3]))
    assert table.gang_of(pods[0]) is table.gang("stowage default/g") is None
    table.apply(Deleted("Pod", pods[1].key))
    assert table.gang_of(pods[0]) is not None
    assert GANG_MEMBERS >= 512  # the largest training jobs have about as many pods
