"""The dry run of preemption: who would be evicted, by whom, why not elsewhere, and who is protected."""

from __future__ import annotations

import pytest

from extender.cli.explain_text import render
from extender.explain.pod import explain
from extender.explain.words import Word
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.settings import Settings
from extender.verbs.preempt import preempt
from tests.extender.builders import NOW, make_node, make_pod, make_state

HOUR = 3600.0
BACKFILL = {"stowage.dev/queue": "backfill"}
INTERACTIVE = {"stowage.dev/queue": "interactive"}
BATCH = {"stowage.dev/queue": "batch"}


def high(gpus: int = 1, **more):
    return make_pod("p", gpus, **{"priority": 100, "labels": INTERACTIVE, **more})


@pytest.fixture
def cluster():
    """a: two backfill pods; b: a dear one; c: an interactive one; d: a batch pod that has just started."""
    return make_state(
        *(make_node(name, 2) for name in "abcd"),
        *(make_pod(f"a{i}", 1, node_name="a", labels=BACKFILL, started=NOW - 1.6 * HOUR) for i in range(2)),
        make_pod("b0", 2, node_name="b", labels=BACKFILL, started=NOW - 9 * HOUR),
        make_pod("c0", 2, node_name="c", labels=INTERACTIVE, started=NOW - HOUR),
        make_pod("d0", 2, node_name="d", labels=BATCH, started=NOW - 10),
    )


def test_the_dry_run_says_what_preempt_answers(cluster):
    told = explain(cluster, high(2), now=NOW).evictions
    assert [option.node for option in told.best] == ["a", "b"]
    best = told.best[0]
    assert (best.acts, best.victims, best.pods) == ("kube-scheduler", ("default/a0", "default/a1"), 2)
    assert best.loses == "2 pods of queue backfill lose 3.2 GPU-hours"
    assert best.gpu_hours == pytest.approx(3.2)
    assert told.elsewhere == {str(Word.NOT_ENOUGH()): 2}
    candidates = {name: ProposedVictims([f"uid-{name}0"]) for name in "abcd"}
    answer = preempt(cluster, PreemptArgs(high(2), candidates), NOW)
    assert answer.candidates == {"a": ProposedVictims(["uid-a0", "uid-a1"])}


def test_reasons_that_protect_pods_are_counted(cluster):
    told = explain(cluster, high(2), now=NOW).evictions
    assert told.protected == {
        "its queue may not be preempted by the pod's queue": 1,
        "below its minimum runtime": 1,
    }


def test_only_the_evictor_takes_a_gang_on_several_nodes():
    labels = BACKFILL | {"stowage.dev/gang": "g"}
    members = [
        make_pod(f"w-{node}", 2, node_name=node, labels=labels, started=NOW - 2 * HOUR) for node in "ab"
    ]
    state = make_state(make_node("a", 2), make_node("b", 2), *members)
    found = explain(state, high(2), now=NOW, settings=Settings(evictor="off"))
    best = found.evictions.best[0]
    assert (best.acts, best.node, best.victims) == ("evictor", "a", ("default/w-a",))
    assert best.other_nodes == ("default/w-b on b",)
    assert "set evictor: on (kube-scheduler cannot evict a gang" in " ".join(found.verdict.ways)
    assert "default/w-a, default/w-b on b" in render(found)


def test_kube_scheduler_never_asks_for_gangs_of_its_own():
    state = make_state(make_node("n", 1), make_pod("low", 1, node_name="n"))
    assert explain(state, high(1), now=NOW).evictions.best[0].acts == "kube-scheduler"
    assert explain(state, high(1, pod_group="g"), now=NOW).evictions.best[0].acts == "evictor"


def test_as_text(cluster):
    told = render(explain(cluster, high(2), now=NOW))
    assert "\nIt would fit if these pods were evicted, as kube-scheduler does at its next attempt:\n" in told
    assert "  a  2 pods of queue backfill lose 3.2 GPU-hours  default/a0, default/a1\n" in told
    assert "  1  below its minimum runtime" in told
