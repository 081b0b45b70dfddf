"""Nodes that are reserved for a large job: which pods filter and preempt refuse there, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.state import State
from extender.k8s.affinity import SchedulingConstraints
from extender.k8s.objects import Owner, Pod, Upserted
from extender.k8s.pod_manifest import KUEUE_LONGEST
from extender.protocol.codec import FilterArgs, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.untrusted.limits import RESERVED_NODES
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from packing.model.reasons import Reason
from packing.plan.backfill import Reservation, Reservations
from tests.extender.builders import NOW, make_node, make_pod, make_state, why

TRAIN = make_pod(
    "train-x7k2p", 8, priority=5, unscheduled="Unschedulable", owner=Owner("Job", "train", "u-train")
)
AT = NOW + 600


def reserved(*others: Pod, mode: str = "limits") -> State:
    """Node a is reserved for TRAIN until 08:10 UTC; node b is not."""
    state = make_state(make_node("a"), make_node("b"), TRAIN, *others)
    state.end_costs.clock = lambda: NOW
    state.large_jobs.mode = mode  # type: ignore[assignment]
    one = Reservation(TRAIN.uid, "default", 5, ("a",), 8.0, NOW - 60, AT, NOW + 3600, NOW - 60)
    state.large_jobs.update(Reservations((one,)))
    return state


def small(seconds: float = float("inf"), **more) -> Pod:
    return make_pod("small", deadline=seconds, **{"grace": 30.0, "priority": 5} | more)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (small(), Reason.RESERVED),
        (small(570), Reason.FITS),  # with its grace period it ends at the reservation's time
        (small(571), Reason.RESERVED),
        (TRAIN, Reason.FITS),
        (small(priority=6), Reason.FITS),
        (small(priority=4), Reason.FITS),  # the job may evict it
        (small(priority=4, annotations={"karpenter.sh/do-not-disrupt": "true"}), Reason.RESERVED),
        (small(570, labels={KUEUE_LONGEST: "570"}), Reason.RESERVED),  # nobody enforces the label
        (small(nominated_node="a"), Reason.FITS),
        (small(scheduling_constraints=SchedulingConstraints(owner_kind="DaemonSet")), Reason.FITS),
        (make_pod("other", 9, priority=5), Reason.TOO_FEW_GPUS),  # waiting would not help either
    ],
)
def test_only_pods_that_end_in_time_or_go_first_use_reserved_nodes(pod, reason):
    state = reserved(*([pod] if pod.nominated_node else []))
    assert why(state, pod, "a") == reason
    assert why(state, pod, "b") == (reason if reason is Reason.TOO_FEW_GPUS else Reason.FITS)


def test_a_kind_whose_runs_end_in_time_is_admitted_only_with_learned_ends():
    pod = small(owner=Owner("Job", "eval-17", "u"))
    for mode, reason in (("limits", Reason.RESERVED), ("learned", Reason.FITS)):
        state = reserved(mode=mode)
        for _ in range(20):
            state.end_costs.ends.lifetimes.ended([("default", "Job", "eval")], 100.0)
        assert why(state, pod, "a") == reason


def test_filter_says_for_whom_and_preemption_is_not_tried():
    state = reserved()
    result, _ = filter_nodes(state, FilterArgs(small(), NodeNames.of(["a"])), Settings())
    assert {text: list(names) for text, names in result.unresolvable.items()} == {
        "reserved for default/train until about 08:10 UTC, for pods that end before": ["a"]
    }
    assert not result.failed
    stranger = replace(small(), namespace="team-b")
    result, _ = filter_nodes(state, FilterArgs(stranger, NodeNames.of(["a"])), Settings())
    assert [*result.unresolvable] == [
        "reserved for a job of another namespace until about 08:10 UTC, for pods that end before"
    ]


def test_preempt_leaves_reserved_nodes_out():
    victims = [make_pod(f"low-{node}", 8, priority=-10, node_name=node) for node in "ab"]
    state = reserved(*victims)
    pod = make_pod("urgent", 8, priority=5)
    state.apply([Upserted(pod)])
    proposed = {victim.node_name: ProposedVictims([victim.uid]) for victim in victims}
    assert [*preempt(state, PreemptArgs(pod, proposed), NOW).candidates] == ["b"]
    assert [*preempt(state, PreemptArgs(TRAIN, proposed), NOW, most=2).candidates] == ["a", "b"]


def test_the_table_is_stored_and_what_is_not_one_is_ignored():
    state, other = reserved(), make_state(make_node("a"))
    other.large_jobs.mode = "limits"
    dumped = state.large_jobs.dump()
    other.large_jobs.load(dumped)
    assert other.large_jobs.table == state.large_jobs.table
    (one,) = state.large_jobs.table.current
    many = one._replace(nodes=("n",) * (RESERVED_NODES + 1))
    too_many = {"reserved": {"current": [list(many)], "missed": {}, "rests": {}}}
    late = [
        {"reserved": {"current": [list(one._replace(at=at))], "missed": {}, "rests": {}}}
        for at in (1e300, float("inf"), float("nan"), -1.0)
    ]
    for wrong in (None, [], {"reserved": 3}, {"reserved": {"current": [["k"]]}}, {}, too_many, *late):
        other.large_jobs.load(wrong)
        assert other.large_jobs.table == state.large_jobs.table
