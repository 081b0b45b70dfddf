"""The words of other systems that protect a pod."""

from __future__ import annotations

import math

import pytest

from extender.queues.rights import NO_PROTECTION, Protection, WhyNot, managed_by_kueue, protection_of
from tests.extender.builders import make_pod

SAFE, DISRUPT = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
KAI, PREEMPTABLE, COOLDOWN = (
    "kai.scheduler/preemptibility",
    "volcano.sh/preemptable",
    "volcano.sh/cooldown-time",
)
ALWAYS, START = math.inf, 1000.0


def by_annotation(key: str, text: str, **pod: object) -> Protection:
    return protection_of(make_pod("p", annotations={key: text}, **pod))


def by_label(key: str, text: str, **pod: object) -> Protection:
    return protection_of(make_pod("p", labels={key: text}, **pod))


def test_other_words_do_not_protect() -> None:
    assert protection_of(make_pod("p")) is NO_PROTECTION
    assert by_annotation("volcano.sh/queue-name", "x") is NO_PROTECTION


@pytest.mark.parametrize("key", [SAFE, DISRUPT, COOLDOWN])
@pytest.mark.parametrize("text", ["", "maybe", "5 m", "m", "x" * 16_000, "\x00", "9" * 90 + "s"])
def test_an_annotation_that_cannot_be_read_protects(key: str, text: str) -> None:
    assert by_annotation(key, text, started=START, phase="Running").until == ALWAYS


@pytest.mark.parametrize("key", [KAI, PREEMPTABLE, COOLDOWN])
@pytest.mark.parametrize("text", ["", "Preemptible", "maybe", "yes"])
def test_a_label_that_cannot_be_read_protects(key: str, text: str) -> None:
    assert by_label(key, text, started=START, phase="Running").until == ALWAYS


def test_safe_to_evict() -> None:
    assert by_annotation(SAFE, "false") == Protection(WhyNot.SAFE_TO_EVICT, ALWAYS)
    assert by_annotation(SAFE, "true").reason is None


def test_do_not_disrupt_holds_for_good_or_for_a_time_from_the_start() -> None:
    assert by_annotation(DISRUPT, "true") == Protection(WhyNot.DO_NOT_DISRUPT, ALWAYS)
    assert by_annotation(DISRUPT, "false").reason is None
    assert by_annotation(DISRUPT, "5m", started=START).until == START + 300
    assert by_annotation(DISRUPT, "5m").until == ALWAYS, "its start would begin the time"


def test_preemptibility_of_kai() -> None:
    assert by_label(KAI, "preemptible").reason is None
    assert by_label(KAI, "non-preemptible") == Protection(WhyNot.PREEMPTIBILITY, ALWAYS)
    assert by_label(KAI, "semi-preemptible") == NO_PROTECTION._replace(keeps_minimum=True)
    assert by_annotation(KAI, "non-preemptible").reason is None, "KAI reads the label only"


@pytest.mark.parametrize("text", ["false", "0", "F", "true", "1", "T"])
def test_preemptable_of_volcano(text: str) -> None:
    expected = WhyNot.PREEMPTABLE if text in ("false", "0", "F") else None
    assert by_label(PREEMPTABLE, text).reason == by_annotation(PREEMPTABLE, text).reason == expected


def test_volcanos_annotation_counts_before_its_label_except_for_the_cooldown() -> None:
    pod = make_pod("p", labels={PREEMPTABLE: "false"}, annotations={PREEMPTABLE: "true"})
    assert protection_of(pod).reason is None
    running = {"started": START, "phase": "Running"}
    pod = make_pod("p", labels={COOLDOWN: "1m"}, annotations={COOLDOWN: "1h"}, **running)
    assert protection_of(pod).until == START + 60


def test_the_cooldown_protects_running_pods_only() -> None:
    running = by_label(COOLDOWN, "10m", started=START, phase="Running")
    assert running == Protection(WhyNot.COOLDOWN, START + 600)
    assert by_label(COOLDOWN, "10m", started=START).reason is None
    assert by_label(COOLDOWN, "10m", phase="Running").reason is None
    assert by_label(COOLDOWN, "-10m", started=START, phase="Running").until < START


def test_of_several_words_the_longest_counts() -> None:
    labels = {COOLDOWN: "10m", KAI: "semi-preemptible"}
    pod = make_pod("p", labels=labels, annotations={DISRUPT: "1h"}, started=START, phase="Running")
    assert protection_of(pod) == Protection(WhyNot.DO_NOT_DISRUPT, START + 3600, keeps_minimum=True)


def test_words_that_were_dropped_for_their_size_protect() -> None:
    assert protection_of(make_pod("p", unreadable=("a", SAFE))) == Protection(WhyNot.UNREADABLE, ALWAYS)
    assert protection_of(make_pod("p", problem="too much")).reason is WhyNot.UNREADABLE
    assert protection_of(make_pod("p", unreadable=("a",))) is NO_PROTECTION


def test_pods_of_kueue() -> None:
    assert managed_by_kueue(make_pod("plain", labels={"kueue.x-k8s.io/managed": "true"}))
    assert managed_by_kueue(make_pod("job", labels={"kueue.x-k8s.io/podset": "main"}))
    assert managed_by_kueue(make_pod("tas", annotations={"kueue.x-k8s.io/workload": "job-x"}))
    assert not managed_by_kueue(make_pod("waits", labels={"kueue.x-k8s.io/queue-name": "main"}))
