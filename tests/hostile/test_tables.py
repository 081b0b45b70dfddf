"""Names that users choose fill no table for ever.

Pods, nodes, claims, classes and requests with names of their own come, are asked about, run, end and go. What
the process then keeps may not have grown with them: neither the collections of any object of Stowage, nor
those of its modules, unless ``KEPT`` has their bound. Caches have theirs in the cache itself.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from time import time
from types import ModuleType
from typing import Any

from extender.untrusted.bounded_cache import BoundedMap
from packing.fleet.names import MOST_ALLOWED_BYTES, MOST_KINDS
from tests.examples import examples
from tests.hostile.cluster import GPU, HAMI, PLAIN, Cluster, Manifest, usual_node, usual_pod

MANY = examples(120, least=70)
"""Names of each kind in one round, more than the smallest bound: growth by a quarter of them is noticed."""
KEPT = {
    "Names._numbers": MOST_KINDS,
    "Names.kinds": MOST_KINDS,
    "Names._allowed": MOST_ALLOWED_BYTES // 512,
    "RetryOrder._tried": 2 * MANY,
}
"""By class and attribute: how many entries remain, at most. Pods count as tried for some seconds."""
LARGEST_CACHE = 8192
"""Entries of the caches of functions."""


def pod_of(number: int) -> Manifest:
    """A pod in which everything that a user can choose is unlike all others."""
    n = f"x{number}"
    pod = usual_pod(
        f"p{n}",
        [{GPU: "1"}, {f"example.com/{n}": "1"}, {f"nvidia.com/mig-{number % 7}g.{number}gb": "1"}][
            number % 3
        ],
        annotations={
            "stowage.dev/gpu-models": f"M{n}",
            "stowage.dev/queue": f"q{n}",
            "stowage.dev/gang-min": "2",
            "nvidia.com/use-gputype": f"T{n}",
        },
        labels={"stowage.dev/gang": f"g{n}", "stowage.dev/queue": f"q{n}", f"l{n}": n, "app": n},
        nodeSelector={} if number % 2 else {f"s{n}": n},
        tolerations=[{"key": f"t{n}", "operator": "Exists"}],
        priority=number,
        priorityClassName=f"c{n}",
        schedulerName=f"s{n}",
    )
    owner = {"kind": f"Kind{n}", "name": f"o{n}", "uid": f"o{n}", "controller": True, "apiVersion": f"{n}/v1"}
    pod["metadata"] |= {"namespace": f"ns{n}", "ownerReferences": [owner]}
    pod["spec"]["containers"][0]["image"] = f"image{n}"
    return pod


def come_and_go(cluster: Cluster, numbers: range) -> None:
    for number in numbers:
        n, pod = f"x{number}", pod_of(number)
        node = usual_node(
            f"node{n}", {GPU: "8", f"example.com/{n}": "1"}, {"nvidia.com/gpu.product": f"M{n}", n: n}
        )
        others: list[tuple[Any, Manifest]] = [
            ("Node", node),
            ("PodDisruptionBudget", {"spec": {"selector": {"matchLabels": {"app": n}}}}),
            ("PriorityClass", {"value": number}),
            ("DeviceClass", {"spec": {"extendedResourceName": f"example.com/{n}"}}),
            ("ResourceClaim", {"spec": {"devices": {"requests": [{"name": n}]}}}),
            ("PodGroup", {"spec": {"minMember": 2}}),
        ]
        for kind, manifest in others:
            manifest.setdefault("metadata", {"name": f"k{n}", "namespace": f"ns{n}", "uid": f"k{n}"})
            cluster.hear(kind, "ADDED", manifest)
        cluster.put(pod)
        cluster.ask_all(pod)
        cluster.filter(pod, [f"node{n}", f"none{n}"])
        cluster.send("GET", f"/debug/pods/ns{n}/p{n}")
        running = pod | {"spec": pod["spec"] | {"nodeName": (PLAIN, HAMI, f"node{n}")[number % 3]}}
        running |= {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}
        cluster.hear("Pod", "MODIFIED", running)
        if number % 2:
            cluster.hear(
                "Pod", "MODIFIED", running | {"status": {"phase": ("Succeeded", "Failed")[number % 4 > 1]}}
            )
        cluster.remove(running)
        for kind, manifest in reversed(others):
            cluster.hear(kind, "DELETED", manifest)
    cluster.plan()
    cluster.send("GET", "/metrics")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("extender", "packing")


def collections() -> Iterator[tuple[str, Any]]:
    """Each collection that an object or a module of Stowage has as an attribute, with its name."""
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, ModuleType):
            named, owner = vars(thing), thing.__name__
        elif _is_ours(str(getattr(type(thing), "__module__", ""))):
            slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
            named = getattr(thing, "__dict__", {}) | {
                s: getattr(thing, s, None) for s in slots if s != "__dict__"
            }
            owner = type(thing).__qualname__
        else:
            continue
        if isinstance(thing, ModuleType) and not _is_ours(owner):
            continue
        for name, value in named.items():
            if isinstance(value, dict | set | list | deque | OrderedDict):
                yield f"{owner}.{name}", value


def sizes() -> Counter[str]:
    """Entries in all collections of each name, including those directly below."""
    found: Counter[str] = Counter()
    for name, value in collections():
        below = value.values() if isinstance(value, dict) else value
        found[name] += len(value) + sum(
            len(v) for v in list(below) if isinstance(v, dict | set | list | deque)
        )
    return found


def cached_functions() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if _is_ours(name):
            for attribute, value in list(vars(module).items()):
                if hasattr(value, "cache_info") and getattr(value, "__module__", name) == name:
                    yield f"{name}.{attribute}", value


def empty_caches() -> None:
    """Empty all caches that have a bound, so that what they keep does not count."""
    for _, function in cached_functions():
        if function.cache_info().maxsize is not None:
            assert function.cache_info().maxsize <= LARGEST_CACHE
            function.cache_clear()
    for cache in [thing for thing in gc.get_objects() if isinstance(thing, BoundedMap)]:
        for key in list(vars(cache)["_entries"]):
            cache.pop(key)


def test_names_of_users_fill_no_table_without_a_bound(runner: asyncio.Runner) -> None:
    gc.unfreeze()  # conftest.py: objects of modules are looked at, too
    cluster, rounds = Cluster(runner, volcano=True), []
    for start in (0, MANY):  # a day later: nothing has just ended any more
        cluster.engine.state.pods.now = lambda start=start: time() + 1000 * start
        come_and_go(cluster, range(start, start + MANY))
        empty_caches()
        endless = {name: function.cache_info().currsize for name, function in cached_functions()}
        rounds.append(sizes() + Counter(endless))
    gc.freeze()
    first, second = rounds
    grown = {name: (first[name], size) for name, size in second.items() if size - first[name] > MANY // 4}
    assert not {name: sizes for name, sizes in grown.items() if name not in KEPT}
    # Other tests of this process may have left tables of the same kind.
    assert all(size - before <= KEPT[name] for name, (before, size) in grown.items())
    cluster.alive()
