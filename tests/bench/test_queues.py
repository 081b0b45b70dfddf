"""The replay with queues: rules from the settings, nodes for a load, and the systems side by side."""

import math

import pytest

from bench.packing.eviction_rules import SHIELD
from bench.packing.queued_timeline import SpotMarket
from bench.packing.queues import QUEUE_OF_QOS, QueueOptions, queue_rules, replay_queues, thinned
from bench.packing.traces import BadInput
from extender.settings import DEFAULT_QUEUES, Queue, Settings
from packing.model.request import Request, whole_gpus
from tests.bench.test_filling import nodes, share

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,64000,262144,2,T4\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time\n"
PODS = (
    HEAD
    + """half-0,1000,1024,1,500,BE,0,7200
half-1,1000,1024,1,500,BE,0,7200
half-2,1000,1024,1,500,BE,0,7200
half-3,1000,1024,1,500,BE,0,7200
two,1000,1024,2,1000,LS,3600,7200
late,1000,1024,1,1000,Burstable,5400,7200
"""
)


def run(tmp_path, pods=PODS, **options):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(pods)
    chosen = QueueOptions(QUEUE_OF_QOS, DEFAULT_QUEUES, **options)
    rows = replay_queues(
        tmp_path / "nodes.csv", [tmp_path / "pods.csv"], [1], chosen, lambda what, part: None
    )
    return {row["system"]: row for row in rows}


def test_the_systems_differ_as_computed_by_hand(tmp_path):
    """Four halves fit on two GPUs; stock gives each a whole one, so the two GPUs for the interactive pod are
    only free after two hours or an eviction. Packed, the interactive pod does not have to wait."""
    rows = run(tmp_path)
    fifo, stock, packing, queues = (
        rows[name] for name in ("stock-fifo", "stock-priority", "packing", "queues")
    )
    assert fifo["wait_p95_interactive"] == 3600
    assert fifo["evictions"] == 0
    assert stock["wait_p95_interactive"] == 0
    assert stock["evictions"] == 3  # two for the interactive pod, one for the batch pod
    assert stock["lost_gpu_hours"] == 1.8  # of half a GPU each: 1, 1 and 1.5 hours
    assert packing["wait_p95_interactive"] == queues["wait_p95_interactive"] == 0
    assert queues["evictions"] == 2  # for the batch pod, which half a GPU does not help
    assert queues["lost_gpu_hours"] == 1.5
    assert fifo["held"] > fifo["allocated"] == fifo["useful"]
    assert packing["held"] == packing["allocated"] == packing["useful"]
    assert all(row["never_started"] == 0 for row in rows.values())


def test_packed_work_costs_fewer_node_hours(tmp_path):
    only = HEAD + "".join(f"p{i},1000,1024,1,500,BE,0,36000\n" for i in range(4)) + "x,1,1,0,0,BE,1,2\n"
    rows = run(tmp_path, only)
    assert rows["stock-fifo"]["cost"] == pytest.approx(40)  # four GPUs for ten hours
    assert rows["packing"]["cost"] == pytest.approx(20)


def test_spot_nodes_cost_less_and_lose_work(tmp_path):
    only = HEAD + "p,1000,1024,1,1000,BE,0,36000\nq,1000,1024,0,0,LS,1,2\n"
    rows = run(tmp_path, only, spot=SpotMarket(0.5, 0.75, 1.0))
    spot = rows["queues-spot"]
    assert spot["interruptions"] > 0
    assert spot["lost_gpu_hours"] > 0
    calm = run(tmp_path, only, spot=SpotMarket(0.5, 0.75, 1e-9))["queues-spot"]
    assert calm["interruptions"] == 0
    assert calm["cost"] == pytest.approx(rows["queues"]["cost"] / 4, abs=0.01)


def test_checkpoints_keep_work(tmp_path):
    only = HEAD + "p,1000,1024,2,1000,BE,0,36000\nr,1,1,2,1000,BE,0,36000\nq,1000,1024,2,1000,LS,5400,9000\n"
    assert run(tmp_path, only)["queues"]["lost_gpu_hours"] == 3  # two GPUs for an hour and a half
    assert run(tmp_path, only, checkpoint=3600)["queues"]["lost_gpu_hours"] == 1


def test_a_seed_repeats_itself(tmp_path):
    first, second = (run(tmp_path, load=0.5, spot=SpotMarket(0.5, 0.75, 1.0)) for _ in range(2))
    for name, row in first.items():
        assert row | {"seconds": 0} == second[name] | {"seconds": 0}


def test_queues_that_preempt_others_come_first():
    rules = queue_rules(DEFAULT_QUEUES)
    assert [rules[name].priority for name in ("interactive", "batch", "backfill")] == [2, 1, 0]
    assert rules["batch"].min_runtime == 600
    assert rules["backfill"].max_duration == 4 * 3600
    assert rules["interactive"].max_duration == math.inf
    saving = queue_rules(DEFAULT_QUEUES, checkpoint=60)
    assert saving["batch"].checkpoint_interval == 60
    assert saving["interactive"].checkpoint_interval == math.inf  # it is not restartable
    with pytest.raises(BadInput, match="in a cycle"):
        queue_rules({"a": Queue(preempts=frozenset({"b"})), "b": Queue(preempts=frozenset({"a"}))})


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        (PODS + "x,1,1,0,0,XX,0,1\n", "no queue is named for qos 'XX', only for LS, BE"),
        (PODS + "x,1,1,0,0,LS,,1\n", "pod 'x' has no creation_time"),
    ],
)
def test_pods_without_a_queue_or_a_time_are_refused(tmp_path, pods, says):
    with pytest.raises(BadInput, match=says):
        run(tmp_path, pods)


def test_thinned_nodes_can_host_what_all_can():
    specs = [*nodes(30, gpus=1), *(nodes(40, gpus=8)[30:])]
    requests = [share(500), Request(shares=whole_gpus(8)), Request(shares=whole_gpus(9))]
    for seed in range(5):
        kept = thinned(specs, requests, 10, seed)
        assert any(len(node.gpus) == 8 for node in kept)
        assert 10 <= sum(len(node.gpus) for node in kept) < 18
        assert len({node.name for node in kept}) == len(kept)
    assert thinned(specs, requests, 10, 1) == thinned(specs, requests, 10, 1)


def test_the_shield_is_by_default_as_long_as_in_the_service():
    assert Settings().shield_seconds == SHIELD
