"""The cost of hostile pods to others: the latency of normal pods with and without them.

Two Stowages watch two scripted API servers with the same cluster and the same changes; one cluster also has
pending pods that are expensive to process. Each normal pod is sent to both in succession, so changes of the
machine's speed affect both. Run alone:

    python -m bench.hostile --nodes 1000 --hostile 200 --pods 500
"""

from __future__ import annotations

import itertools
import statistics
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import ExitStack

from bench import cluster
from bench.client import Client, extender_args
from bench.service import api_server, stowage

_RATE = 50  # changes of pods per second
_WARM_UP = 20
_SIZES = {1: 12, 2: 4, 4: 3}  # every pod fits: a refusal is reevaluated for up to 30 ms
_CALLS = ("/scheduler/filter", "/scheduler/prioritize")


def run(nodes: int, hostile: int, pods: int) -> tuple[list[list[float]], list[float]]:
    """Without and with hostile pods: milliseconds of filter and prioritize together for each pod, and the
    resident memory in MiB."""
    names = [cluster.node_name(index) for index in range(nodes)]
    times: list[list[float]] = [[], []]
    with ExitStack() as stack:
        services = [
            stack.enter_context(stowage(stack.enter_context(api_server(nodes, rate=_RATE, hostile=count))))
            for count in (0, hostile)
        ]
        clients = [stack.enter_context(Client(service.port, service.pid)) for service in services]
        for number, pod in enumerate(itertools.islice(cluster.arrivals(_SIZES), pods + _WARM_UP)):
            body = extender_args(pod, names)
            for client, milliseconds in zip(clients, times, strict=True):
                seconds = 0.0
                for call in _CALLS:
                    client.post(call, body)
                    seconds += client.seconds
                if number >= _WARM_UP:
                    milliseconds.append(seconds * 1e3)
        return times, [service.memory_mib() for service in services]


def main() -> None:
    """Print medians, 99th percentiles, and the ratio per pod."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--pods", type=int, default=500)
    args = parser.parse_args()
    times, memory = run(args.nodes, args.hostile, args.pods)
    for name, milliseconds, mib in zip(("without", "with hostile pods"), times, memory, strict=True):
        p99 = statistics.quantiles(milliseconds, n=100)[98]
        print(f"{name}: median {statistics.median(milliseconds):.2f} ms, p99 {p99:.2f} ms, {mib:.0f} MiB")
    ratios = [beside / without for without, beside in zip(*times, strict=True)]
    print(f"ratio per pod: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
