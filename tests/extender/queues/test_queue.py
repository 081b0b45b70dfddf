"""Which queue a pod belongs to, and what queues permit."""

from __future__ import annotations

import pytest

from extender.k8s.admission_objects import PriorityClass
from extender.k8s.objects import Deleted, Listed, Upserted
from extender.queues.queue import OTHER_QUEUE_LABELS, QUEUE_LABEL, Queues
from extender.settings import Queue
from packing.victims.rights import may_preempt
from tests.extender.builders import make_pod

QUEUES = Queues(
    {
        "fast": Queue(preempts=frozenset({"slow"}), priority_classes=frozenset({"high"})),
        "slow": Queue(priority_classes=frozenset({"low"}), aliases=frozenset({"night", "night-cq"})),
    }
)


def name_of(**pod: object) -> str:
    return QUEUES.name_of(make_pod("p", **pod))


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_the_own_word_comes_first(part: str) -> None:
    words = {QUEUE_LABEL: "fast", "kai.scheduler/queue": "slow"}
    assert name_of(**{part: words}, priority_class="low") == "fast"
    assert name_of(**{part: {QUEUE_LABEL: "nothing"}}) == ""
    assert name_of(**{part: {QUEUE_LABEL: "nothing"}}, priority_class="low") == "slow"
    assert name_of(**{part: {QUEUE_LABEL: "night"}}) == "", "aliases are names in other systems"


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("key", OTHER_QUEUE_LABELS)
def test_the_queues_of_other_systems_count_by_name_or_alias(key: str, part: str) -> None:
    assert name_of(**{part: {key: "night"}}, priority_class="high") == "slow"
    assert name_of(**{part: {key: "fast"}}, priority_class="low") == "fast"
    assert name_of(**{part: {key: "nothing"}}, priority_class="high") == "fast"
    assert name_of(**{part: {key: ""}}) == ""


def test_the_local_queue_of_kueue_counts_before_its_cluster_queue() -> None:
    kueue = {"kueue.x-k8s.io/local-queue-name": "fast", "kueue.x-k8s.io/cluster-queue-name": "night-cq"}
    assert name_of(labels=kueue) == "fast"
    assert name_of(labels=kueue | {"kueue.x-k8s.io/local-queue-name": "team-a"}) == "slow"


def test_only_a_change_of_the_classes_is_a_new_revision() -> None:
    classes = QUEUES.classes
    before = classes.revision
    classes.apply(Upserted(PriorityClass("c")))
    assert classes.revision is not before
    known = classes.revision
    classes.apply(Upserted(PriorityClass("c")))
    classes.apply(Listed("PriorityClass", frozenset({"c"})))
    classes.apply(Deleted("PriorityClass", "d"))
    assert classes.revision is known
    classes.apply(Deleted("PriorityClass", "c"))
    assert classes.revision is not known


def test_who_may_preempt_whom() -> None:
    names = [QUEUES.name_of(make_pod("p", labels={QUEUE_LABEL: name})) for name in ("fast", "slow", "none")]
    assert names == ["fast", "slow", ""]

    def preempts(name: str) -> frozenset[str]:
        return QUEUES.by_name[name].preempts if name else frozenset()

    permitted = {(one, other) for one in names for other in names if may_preempt(one, preempts(one), other)}
    assert permitted == {("fast", "slow"), ("", ""), ("", "fast"), ("", "slow"), ("fast", ""), ("slow", "")}
