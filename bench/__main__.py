"""``make bench``: the tables of the service's speed. Packing needs trace files: ``python -m
bench.packing``."""

from __future__ import annotations

from bench import latency, start, tails, throughput, victims


def main() -> None:
    """Print each table as soon as it is complete."""
    print("Latency over HTTP, median / 99th percentile\n", flush=True)
    print(latency.table(latency.run()), flush=True)
    print("\nThe slowest requests while the cluster changes, 5,000 nodes\n", flush=True)
    print(tails.table(tails.run()), flush=True)
    print("\nThe victim search on 100 nodes of 60 pods, CPU time in this process\n", flush=True)
    print(victims.table(), flush=True)
    print("\nA start on a cluster of 5,000 nodes and 30,000 pods\n", flush=True)
    print(start.table(start.run()), flush=True)
    print("\nPods per second through a real kube-scheduler, 1,000 nodes\n", flush=True)
    print(throughput.table(list(throughput.run())), flush=True)


if __name__ == "__main__":
    main()
