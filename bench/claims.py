"""The gain of Stowage's scores for ResourceClaims: MIG devices created on demand, claims that arrive and end.

Claims arrive at random, each for a MIG device or for whole GPUs, and end after a random time; a claim that
fits nowhere is dropped. Each node allocates the first devices that fit, as kube-scheduler does. The node is a
random one that fits (the in-tree plugins do not score devices), the most allocated one (like a simple
scorer), or the one with Stowage's best score. The figure is the allocated percentage of the requested GPUs.

    python -m bench.claims --seeds 1 2 3 4
"""

from __future__ import annotations

import heapq
import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from statistics import mean
from typing import Any, Literal

from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator
from extender.k8s.objects import Pod, PodClaim, PodSpec
from tests.e2e.dra_cases import classes
from tests.e2e.dra_devices import divided_node
from tests.extender.dra.records import parse_claim, parse_class, parse_slice

SIZES = {"1g.10gb": 1 / 7, "2g.20gb": 2 / 7, "3g.40gb": 3 / 7, "one GPU": 1.0, "two GPUs": 2.0}
MIXES: Mapping[str, Mapping[str, float]] = {
    "small": {"1g.10gb": 0.7, "2g.20gb": 0.15, "3g.40gb": 0.1, "one GPU": 0.05},
    "mixed": {"1g.10gb": 0.4, "2g.20gb": 0.2, "3g.40gb": 0.2, "one GPU": 0.2},
    "large": {"1g.10gb": 0.2, "3g.40gb": 0.3, "one GPU": 0.5},
    "pairs": {"1g.10gb": 0.5, "3g.40gb": 0.2, "one GPU": 0.2, "two GPUs": 0.1},
}
Choice = Literal["any", "most allocated", "Stowage"]
CHOICES: tuple[Choice, ...] = ("any", "most allocated", "Stowage")
CLUSTERS = ((24, 1), (6, 4))
"""(nodes, GPUs of each)."""


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--claims", type=int, default=1500)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.9, 1.1])
    args = parser.parse_args()
    print("| nodes x GPUs | claims | load | any node | most allocated | Stowage |\n|---|---|--:|--:|--:|--:|")
    for nodes, gpus in CLUSTERS:
        for name, mix in MIXES.items():
            if gpus == 1 and "two GPUs" in mix:
                continue
            for load in args.loads:
                cells = [f"{nodes} x {gpus}", name, load]
                for choice in CHOICES:
                    run = partial(Cluster.run, mix=mix, load=load, claims=args.claims, choice=choice)
                    part = mean(run(Cluster(nodes, gpus), seed=seed) for seed in args.seeds)
                    cells.append(f"{100 * part:.1f}")
                print("|", " | ".join(map(str, cells)), "|", flush=True)


class Cluster:
    """Nodes with H100 in MIG mode, and the claims that are allocated there."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self.gpus = nodes * gpus
        self._cache = DeviceCache()
        self._nodes = [f"n{number}" for number in range(nodes)]
        for raw in classes():
            self._cache.put(parse_class(raw["metadata"]["name"], raw["spec"]))
        for name in self._nodes:
            for raw in divided_node(name, gpus)[1]:
                self._cache.put(parse_slice(raw["metadata"]["name"], raw["spec"]))
        self._simulator = AllocationSimulator(self._cache)
        self._used = defaultdict[str, float](float)  # allocated GPUs, by node

    def run(self, mix: Mapping[str, float], load: float, seed: int, claims: int, choice: Choice) -> float:
        """The allocated fraction of the requested GPUs. ``load`` is the requested fraction of all GPUs."""
        rng, luck = random.Random(seed), random.Random(-seed)
        arrival_rate = load * self.gpus / sum(share * SIZES[kind] for kind, share in mix.items())
        now = requested = allocated = 0.0
        departures: list[tuple[float, str, str, float]] = []
        for number in range(claims):
            now += rng.expovariate(arrival_rate)
            while departures and departures[0][0] <= now:
                _, claim, node, size = heapq.heappop(departures)
                self._cache.remove("ResourceClaim", claim)
                self._used[node] -= size
            kind = rng.choices(list(mix), list(mix.values()))[0]
            departure = now + rng.expovariate(1.0)
            requested += SIZES[kind]
            if node := self._place(f"claim-{number}", kind, luck, choice):
                allocated += SIZES[kind]
                self._used[node] += SIZES[kind]
                heapq.heappush(departures, (departure, f"d/claim-{number}", node, SIZES[kind]))
        return allocated / requested

    def _place(self, name: str, kind: str, luck: random.Random, choice: Choice) -> str:
        """Allocate a claim on the chosen node; "" if it fits on none."""
        self._cache.put(parse_claim("d", name, {"devices": _spec(kind)}, None))
        self._cache.refresh(lambda node: {})
        pod = Pod("d", name, name, PodSpec(claims=(PodClaim("c", name),)))
        forecasts = self._simulator.forecasts(pod, [(node, {}) for node in self._nodes])
        fitting = {node: one for node, one in zip(self._nodes, forecasts, strict=True) if one.devices}
        if not fitting:
            self._cache.remove("ResourceClaim", f"d/{name}")
            return ""
        node = luck.choice([*fitting])
        if choice == "most allocated":
            node = max(fitting, key=lambda one: self._used[one])
        elif choice == "Stowage":
            node = min(fitting, key=lambda one: fitting[one].cost)
        results = [device._asdict() for device in fitting[node].devices]
        status = {"allocation": {"devices": {"results": results}}}
        self._cache.put(parse_claim("d", name, {"devices": {}}, status))
        return node


def _spec(kind: str) -> dict[str, Any]:
    if kind.endswith(("GPU", "GPUs")):
        exactly: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", "count": int(SIZES[kind])}
    else:
        expression = f"device.attributes['gpu.nvidia.com'].profile == '{kind}'"
        exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    return {"requests": [{"name": "r", "exactly": exactly}]}


if __name__ == "__main__":
    main()
