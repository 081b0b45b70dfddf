"""The dry run of preemption: who would be evicted, by whom, why not elsewhere, and who is protected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cli.explain_text import render
from extender.explain.pod import explain
from extender.explain.words import Word
from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.objects import Upserted
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.settings import Settings
from extender.untrusted.limits import KEY
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.preempt import preempt
from tests.extender.builders import NOW, make_node, make_pod, make_state
from tests.extender.dialects.test_dialect_manifests import node as node_of

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


def test_at_most_three_nodes_are_shown_and_the_others_counted():
    state = make_state(
        *(make_node(f"n{i}", 1) for i in range(5)),
        *(make_pod(f"v{i}", 1, node_name=f"n{i}") for i in range(5)),
    )
    told = explain(state, high(1), now=NOW).evictions
    assert (len(told.best), told.elsewhere) == (3, {str(Word.DEARER()): 2})


def test_before_1_38_only_the_evictor_helps_where_kube_scheduler_counts_enough():
    """Both GPUs have a part free, but neither has enough: kube-scheduler counts no parts."""
    half = {"stowage.dev/gpu-compute": "600m"}
    running = [
        make_pod(f"v{gpu}", 0, node_name="stowage", annotations=half | {"stowage.dev/gpu-indices": str(gpu)})
        for gpu in range(4)
    ]
    state = make_state(node_of("stowage"), *running, binds=True)
    pod = make_pod("p", 0, priority=100, annotations=half)
    [option] = explain(state, pod, now=NOW).evictions.best
    assert (option.acts, option.pods) == ("evictor", 1)
    state.eviction_helps_extenders = True
    assert explain(state, pod, now=NOW).evictions.best[0].acts == "kube-scheduler"
    state.eviction_helps_extenders = False
    state.apply([Upserted(PodDisruptionBudget("default", "unreadable", problem="too large"))])
    assert explain(state, pod, now=NOW).evictions.best == ()  # the evictor violates no budget


def test_kube_scheduler_never_asks_for_gangs_of_its_own():
    state = make_state(make_node("n", 1), make_pod("low", 1, node_name="n"))
    assert explain(state, high(1), now=NOW).evictions.best[0].acts == "kube-scheduler"
    assert explain(state, high(1, pod_group="g"), now=NOW).evictions.best[0].acts == "evictor"


def test_only_the_evictor_takes_over_from_a_pod_beyond_its_maximum_duration():
    old = make_pod("old", 1, node_name="n", labels=BACKFILL, started=NOW - 5 * HOUR)
    state = make_state(make_node("n", 1), old)
    waits = make_pod("p", 1, labels=BACKFILL)
    assert explain(state, waits, now=NOW).evictions.best[0].acts == "evictor"
    state.apply([Upserted(replace(old, started=NOW - HOUR))])
    told = explain(state, waits, now=NOW).evictions
    assert (told.best, told.protected) == ((), {"same or higher priority": 1})
    assert plan_evictions(state, waits, ["n"], NOW, to_equals=True) == []


def test_nothing_is_said_where_the_pod_fits_or_nobody_asks():
    state = make_state(make_node("n", 2), make_pod("low", 1, node_name="n"))
    assert explain(state, high(1), now=NOW).evictions is None
    assert explain(state, high(2)).evictions is None


def test_as_text(cluster):
    told = render(explain(cluster, high(2), now=NOW))
    assert "\nIt would fit if these pods were evicted, as kube-scheduler does at its next attempt:\n" in told
    assert "  a  2 pods of queue backfill lose 3.2 GPU-hours  default/a0, default/a1\n" in told
    assert "  1  below its minimum runtime" in told


@pytest.mark.parametrize(
    ("evictor", "said"),
    [
        ("unknown", "kube-scheduler does not do so, but the evictor does if it is enabled:"),
        ("on", "kube-scheduler does not do so, but the evictor does:"),
        ("recommend", "kube-scheduler does not do so, and the evictor only recommends it:"),
        ("off", "kube-scheduler does not do so, and the evictor is disabled:"),
    ],
)
def test_the_text_says_whether_the_evictor_acts(evictor, said):
    old = make_pod("old", 1, node_name="n", labels=BACKFILL, started=NOW - 5 * HOUR)
    state, waits = make_state(make_node("n", 1), old), make_pod("p", 1, labels=BACKFILL)
    settings = None if evictor == "unknown" else Settings(evictor=evictor, evictor_lease="stowage/evictor")
    assert said in render(explain(state, waits, now=NOW, settings=settings))


def test_the_text_says_where_no_eviction_helps(cluster):
    told = render(explain(cluster, high(2, priority=-1), now=NOW))
    assert f"Preemption cannot help:\n  4  {Word.NOT_ENOUGH()!s}\n" in told
    assert "Pods on these nodes that cannot be evicted for it:\n  5  same or higher priority" in told


def test_texts_are_short():
    state = make_state(make_node("n", 8), make_pod("v" * 5000, 8, node_name="n"))
    [option] = explain(state, high(8), now=NOW).evictions.best
    assert max(map(len, option.victims)) <= KEY
