"""How filter and prioritize grow with the cluster, without HTTP and without a server, in one process.

From the body to the reply: find the names, evaluate the nodes, encode. The lowest of many calls, so with warm
caches; all else is in ``bench.latency``. Run alone:

    python -m bench.request --nodes 100 1000 5000 20000
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

from bench import cluster
from bench.client import extender_args
from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.protocol import codec
from extender.protocol.pod_reader import PodReader
from extender.settings import Settings
from extender.verbs.filter import filter_nodes
from extender.verbs.last_filter import LastFilter

_CALLS = 60


def measure(nodes: int, shortlist: int) -> tuple[float, float]:
    """Microseconds of filter and of prioritize for one waiting pod, on nodes without pods."""
    state, pod = _cluster(nodes)
    names = [cluster.node_name(index) for index in range(nodes)]
    body = extender_args(pod, names[nodes // 3 :] + names[: nodes // 3])
    pods, settings, last = PodReader(state.pods.by_uid), Settings(shortlist=shortlist), LastFilter(state)

    def ask_filter() -> bytes:
        args = codec.parse_filter(body, pods)
        result, evaluation = filter_nodes(state, args, settings)
        last.keep(evaluation, args, result)
        return codec.encode_filter(result)

    asked = extender_args(pod, json.loads(ask_filter())["NodeNames"])

    def ask_prioritize() -> bytes:
        continued = last.continued(asked)
        assert continued is not None
        return continued.reply

    return _lowest(ask_filter), _lowest(ask_prioritize)


def _cluster(nodes: int) -> tuple[State, dict[str, object]]:
    state, pod = state_of(Settings()), next(cluster.arrivals())
    for node in cluster.nodes(nodes):
        state.apply([Upserted(NodeManifest.model_validate(node).record())])
    state.apply([Upserted(PodManifest.model_validate(pod).record())])
    return state, pod


def _lowest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times) * 1e6


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000, 20000])
    args = parser.parse_args()
    print("| nodes | shortlist | filter, us | prioritize, us |\n|--:|--:|--:|--:|")
    for nodes in args.nodes:
        for shortlist in (0, 64):
            filtered, prioritized = measure(nodes, shortlist)
            print(f"| {nodes:,} | {shortlist or 'off'} | {filtered:.0f} | {prioritized:.0f} |", flush=True)


if __name__ == "__main__":
    main()
