"""Duration of the search for victims on 100 full nodes of 60 pods, in CPU time of one process.

The nodes have eight GPUs: shared ones, ones that are divided into MIG instances on demand, or whole ones
behind the device plugin. "Ranked": all nodes are searched roughly and the best ones again, as for a plan,
with cached ``Holdings``; "all": all are searched thoroughly; "not cached": ranked, with new holdings. "x
feasible": the time of "ranked" divided by that of one ``reasons_for`` on the same fleet, the core of one
filter. "Cheapest": the percentage for which no set costs less, by HiGHS (``cheapest_victims``), for several
seeds; the ratios to the lowest cost are those of the first component that differs.

The second table is the whole plan of the ``preempt`` verb for half a GPU on shared nodes with 60 pods of
three priorities and two queues: rights, costs, search, and the evaluation of all answers. "New": nothing is
cached for any node; "cached": nothing has changed since the last plan. "x filter": "cached" divided by one
``evaluate`` of these nodes.

    python -m bench.victims --nodes 100 --rounds 20
"""

from __future__ import annotations

import math
import random
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.cheapest_victims import least_cost
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Container, Node, Pod, PodSpec, Upserted
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.verbs.evaluate import evaluate
from extender.verbs.eviction.plan import MOST_THOROUGH, plan_evictions
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, fitting_gpus
from packing.model.mig_instances import Instance, window
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.interface import update_now
from packing.victims.amounts import Holdings, demand_of
from packing.victims.search import VictimSearch
from packing.victims.victims import Cost, Victims, VictimSet

PODS, GPUS, MIB, GIB = 60, 8, 81_920, 1 << 30
NOW = 1_800_000_000.0
RESOURCE = "nvidia.com/gpu"
_MIG = (
    Instance("1g.10gb", 142, 10_240, tuple(window(i, 1) for i in range(7))),
    Instance("1g.20gb", 142, 20_480, tuple(window(i, 2) for i in (0, 2, 4, 6))),
    Instance("2g.20gb", 285, 20_480, tuple(window(i, 2) for i in (0, 2, 4))),
    Instance("3g.40gb", 428, 40_960, tuple(window(i, 4) for i in (0, 4))),
    Instance("4g.40gb", 571, 40_960, (window(0, 4),)),
    Instance("7g.80gb", 1000, 81_920, (window(0, 8),)),
)


def share(count: int, milli: int, cpu: int = 1000) -> Request:
    """This much compute and memory of ``count`` GPUs."""
    return Request(cpu, 4 * GIB, shares=Shares(count, milli, memory_milli=milli, resource=RESOURCE))


@dataclass(frozen=True, slots=True)
class Question:
    """A request on nodes of one kind, and the requests of the pods that fill them."""

    name: str
    spec: NodeSpec
    pods: Sequence[Request]
    asked: Request


def questions() -> list[Question]:
    """All rows of the table."""
    islands = ((0, 1, 2, 3), (4, 5, 6, 7))
    every = tuple(range(GPUS))
    pool = (Pool(RESOURCE, GPUS, every, 1000, MIB),)
    size = "", 128_000, 1024 * GIB
    cards = (Gpu(MIB, divisible=True),) * GPUS
    cut = NodeSpec(*size, cards, pool, islands=islands, sharing_resource=RESOURCE)
    mig = NodeSpec(*size, (replace(cards[0], instances=_MIG),) * GPUS, sharing_resource=RESOURCE)
    counted = NodeSpec(*size, (Gpu(MIB),) * GPUS, pool)
    four = Request(4000, shares=whole_gpus(4, RESOURCE))
    parts = [share(1, milli) for milli in (100, 125, 125, 150, 200)]
    slices = [share(1, milli) for milli in (125, 125, 125, 250)]
    whole = [Request(8000, 64 * GIB, ((RESOURCE, 1),)), *[Request(1000, 4 * GIB)] * 7]
    return [
        Question("shares: half a GPU", cut, parts, share(1, 500)),
        Question("shares: 4 whole GPUs", cut, parts, four),
        Question("shares: 4 whole GPUs of one island", cut, parts, replace(four, island=True)),
        Question("shares: a quarter of a GPU, 16 CPUs", cut, parts, share(1, 250, 16_000)),
        Question("MIG on demand: 3g.40gb", mig, slices, share(1, 428)),
        Question("whole GPUs: 2, with 24 CPUs", counted, whole, Request(24_000, 128 * GIB, ((RESOURCE, 2),))),
    ]


def filled(question: Question, nodes: int, seed: int) -> tuple[Fleet, list[tuple[Holdings, Victims]]]:
    """A fleet of such nodes with 60 pods each, or as many as fit, and the pods as victims on each node."""
    rng = random.Random(seed)
    fleet, victims = Fleet(nodes, GPUS), []
    for number in range(nodes):
        row = fleet.put(replace(question.spec, name=f"node-{number}"))
        on_node: list[tuple[Allocation]] = []
        costs: list[Cost] = []
        while len(on_node) < PODS:
            request = rng.choice(question.pods)
            if reasons_for(fleet, request)[row]:
                request = Request(500, GIB)
            free = fitting_gpus(fleet, row, request)
            count = request.shares.count if request.shares else 0
            held = allocation_of(fleet, row, request, rng.sample(free, count))
            fleet.take(held)
            priority, seconds = rng.choice((0.0, 0.0, 1.0, 2.0)), rng.uniform(60, 86_400)
            on_node.append((held,))
            costs.append((priority, seconds * (count or 0.01), 1.0))
        gang_of, stays = np.full(PODS, -1, np.int64), np.zeros(PODS, np.bool_)
        victims.append((Holdings.of(fleet, row, on_node), Victims(np.array(costs), gang_of, stays)))
    return fleet, victims


def median_ms(run: Callable[[], object], rounds: int) -> float:
    """The median CPU time of a call, which is independent of other work on the machine."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return 1000 * statistics.median(times)


class Searches:
    """The searches of a question on filled nodes."""

    def __init__(self, question: Question, nodes: int, seed: int) -> None:
        self._asked = question.asked
        self._fleet, victims = filled(question, nodes, seed)
        self.kept, self._victims = zip(*victims, strict=True)

    def found(self, rows: Iterable[int], *, roughly: bool, new: bool = False) -> list[VictimSet]:
        """The results on these rows, without those where no eviction helps. ``new``: with new holdings."""
        among, answers = VictimSearch(self._fleet, self._asked).among, []
        for row in rows:
            kept = self.kept[row]
            holdings = Holdings.of(self._fleet, row, kept.allocations) if new else kept
            answers.append(among(row, holdings, self._victims[row], roughly=roughly))
        return [answer for answer in answers if answer]

    def on_all(self, *, roughly: bool = False) -> list[VictimSet]:
        """The results on all nodes."""
        return self.found(range(len(self.kept)), roughly=roughly)

    def rank(self, *, new: bool = False) -> None:
        """Search like the plan: all nodes roughly, and the best ones again."""
        roughly = self.found(range(len(self.kept)), roughly=True, new=new)
        best = sorted(range(len(self.kept)), key=lambda row: roughly[row].cost)[:MOST_THOROUGH]
        self.found(best, roughly=False, new=new)

    def feasibility(self) -> None:
        """Determine the nodes that fit."""
        self._fleet.last_reasons = None
        reasons_for(self._fleet, self._asked)

    def least_costs(self) -> list[Cost]:
        """The lowest cost on each node."""
        demands = (demand_of(self._fleet, self._asked, row, one.rows) for row, one in enumerate(self.kept))
        return list(map(least_cost, demands, self.kept, self._victims))


def measure(question: Question, nodes: int, rounds: int, seeds: int) -> str:
    """One row of the table."""
    each = [Searches(question, nodes, seed) for seed in range(1, seeds + 1)]
    least = [cost for one in each for cost in one.least_costs()]
    thorough = [answer for one in each for answer in one.on_all()]
    rough = [answer for one in each for answer in one.on_all(roughly=True)]
    first = each[0]
    ranked = median_ms(first.rank, rounds)
    on_all = median_ms(first.on_all, rounds)
    not_kept = median_ms(partial(first.rank, new=True), rounds)
    feasible = median_ms(first.feasibility, rounds * 10)
    cells = [question.name, f"{statistics.mean(len(answer.victims) for answer in thorough):.1f}"]
    cells += [*_compared(thorough, least), *_compared(rough, least)]
    cells += [f"{ms:.1f}" for ms in (ranked, on_all, not_kept)] + [f"{ranked / feasible:.0f}"]
    return "| " + " | ".join(cells) + " |"


def _compared(answers: Sequence[VictimSet], least: Sequence[Cost]) -> list[str]:
    """Percentage of results at the lowest cost, and the mean and the worst ratio."""
    ratios = [_ratio(answer.cost, cost) for answer, cost in zip(answers, least, strict=True)]
    same = sum(ratio == 1 for ratio in ratios)
    return [f"{100 * same / len(ratios):.1f}", f"{statistics.mean(ratios):.4f}", f"{max(ratios):.2f}"]


def _ratio(cost: Cost, least: Cost) -> float:
    """The ratio of the first components that differ."""
    for one, other in zip(cost, least, strict=False):
        if abs(one - other) > 1e-6 * (one + other):
            return one / other if other else math.inf
    return 1.0


def table(nodes: int = 100, rounds: int = 20, seeds: int = 3) -> str:
    """All questions as a Markdown table."""
    compared = "cheapest, % | mean x | worst x"
    times = "ranked, ms | all, ms | not cached, ms | x feasible"
    head = f"| request | victims | {compared} | roughly: {compared} | {times} |"
    rows = [measure(question, nodes, rounds, seeds) for question in questions()]
    return "\n".join([head, "|---" + "|--:" * 11 + "|", *rows])


def cluster(nodes: int, seed: int) -> State:
    """Full nodes with eight shared GPUs and 60 pods each."""
    rng, state = random.Random(seed), state_of(Settings())
    labels = {
        "stowage.dev/gpu-sharing": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/gpu.memory": str(MIB),
    }
    spec = PodSpec((Container("main", (("cpu", "1"), ("memory", "1Gi"))),))
    state.binds = True
    for number in range(nodes):
        allocatable = {"cpu": "128", "memory": "1Ti", RESOURCE: str(GPUS)}
        state.apply([Upserted(Node(f"node-{number}", labels=labels, allocatable=allocatable))])
        for i in range(PODS):
            parts = {
                "stowage.dev/gpu-compute": "125m",
                "stowage.dev/gpu-memory-fraction": "125m",
                "stowage.dev/gpu-indices": str(i % GPUS),
            }
            pod = Pod(
                "default", f"pod-{number}-{i}", f"uid-{number}-{i}", spec, f"node-{number}", "Running",
                priority=rng.choice((0, 0, 1, 2)), started=NOW - rng.randrange(60, 86_400),
                labels={"stowage.dev/queue": rng.choice(("batch", "backfill"))}, annotations=parts,
            )  # fmt: skip
            state.apply([Upserted(pod)])
    update_now(state.policy, state.fleet)
    return state


def whole_plan(nodes: int, rounds: int) -> str:
    """The second table."""
    state = cluster(nodes, 1)
    pod = Pod(
        "default", "waits", "waits", PodSpec((Container("main", (("cpu", "1"),)),)), priority=100,
        annotations={"stowage.dev/gpu-compute": "500m"}, labels={"stowage.dev/queue": "interactive"},
    )  # fmt: skip
    names = list(state.nodes)
    wanted, all_names = request_of(pod), NodeNames.of(names)

    def plan() -> None:
        assert plan_evictions(state, pod, names, NOW)

    def forget() -> None:
        state.kept_by_node.clear()
        for one in list(state.pods.values()):
            state.apply([Upserted(replace(one))])  # a new record, for which nothing is cached

    def evaluation() -> None:
        state.fleet.last_reasons = None
        evaluate(state, pod, wanted, all_names)

    plan()
    new = statistics.median(_after(forget, plan) for _ in range(max(3, rounds // 4)))
    kept, filtered = median_ms(plan, rounds), median_ms(evaluation, rounds * 5)
    head = "| plan for half a GPU | new, ms | cached, ms | filter, ms | x filter |\n|---|--:|--:|--:|--:|"
    return f"{head}\n| {nodes} nodes | {new:.0f} | {kept:.1f} | {filtered:.2f} | {kept / filtered:.0f} |"


def _after(prepare: Callable[[], object], run: Callable[[], object]) -> float:
    prepare()
    return median_ms(run, 1)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print(table(args.nodes, args.rounds, args.seeds))
    print()
    print(whole_plan(args.nodes, args.rounds))


if __name__ == "__main__":
    main()
