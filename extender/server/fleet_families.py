"""The gauges of the fleet: GPUs by model, what is on offer, and what is stranded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.server.gauges import Gauges

if TYPE_CHECKING:
    from extender.cluster.census import MigSlices
    from packing.fleet.stranded import Fragmentation

_Labels = tuple[str, ...]
_ON_OFFER: dict[str, tuple[str, Callable[[Fragmentation], float]]] = {
    "gpus_on_offer": ("GPUs of nodes that take pods.", lambda one: one.gpus),
    "gpus_free": ("Free compute of GPUs on offer, in GPUs.", lambda one: one.free),
    "gpus_whole": ("GPUs on offer that are free and that pods can get whole.", lambda one: one.whole),
    "nodes_on_offer": ("Nodes with GPUs that take pods.", lambda one: one.nodes),
    "nodes_whole": ("Nodes on offer all of whose GPUs are entirely free.", lambda one: one.whole_nodes),
    "largest_request_gpus": ("The most whole GPUs that a pod can get.", lambda one: one.largest_request),
    "largest_island_gpus": ("The most of them that are NVLink peers.", lambda one: one.largest_island),
    "largest_node_gpus": ("The most whole GPUs that an empty node has.", lambda one: one.largest_node),
    "stranded_gpu_memory_bytes": (
        "Free memory of shared GPUs that have no compute left.",
        lambda one: one.stranded_memory_mib * (1 << 20),
    ),
}
_STRANDED: dict[str, Callable[[Fragmentation], float]] = {
    "gpu_memory": lambda one: one.stranded_compute,
    "cpu": lambda one: one.stranded_by_cpu,
    "host_memory": lambda one: one.stranded_by_host_memory,
}


def fleet(now: Gauges) -> Iterator[Metric]:
    """The gauges; without values before the kernels are loaded."""
    found = now.census
    gpus = found.installed if found else {}
    installed = {model: float(one.gpus) for model, one in gpus.items()}
    used = {model: one.used for model, one in gpus.items()}
    spot = {"installed": float(found.spot.gpus), "used": found.spot.used} if found else {}
    for name, text, label, values in (
        ("gpus_installed", "GPUs of all nodes, on offer or not.", "model", installed),
        ("gpus_used", "Compute in use of all GPUs, in GPUs.", "model", used),
        ("spot_gpus", "GPUs of spot nodes: all of them, and those in use.", "state", spot),
    ):
        yield _family(name, text, [label], (((key,), value) for key, value in values.items()))
    text = "Those that nodes do not offer: no device plugin, unhealthy, or not readable."
    yield _family("gpus_not_offered", text, [], [((), found.totals.not_offered)] if found else [])
    text = "Nodes with GPUs of which it is not known how many they are."
    yield _family("nodes_uncounted", text, [], [((), found.totals.uncounted)] if found else [])
    models = found.models if found else {}
    for name, (text, value_of) in _ON_OFFER.items():
        yield _family(name, text, ["model"], (((model,), value_of(one)) for model, one in models.items()))
    text = "Free compute of GPUs on offer, in GPUs, for which something else is lacking."
    stranded = (((m, why), of(one)) for m, one in models.items() for why, of in _STRANDED.items())
    yield _family("stranded_gpus", text, ["model", "lack"], stranded)
    text = "Nodes with GPUs that take no pods at present, by reason."
    closed = found.closed_nodes if found else {}
    yield _family("closed_nodes", text, ["reason"], (((why,), count) for why, count in closed.items()))
    yield from _mig(found.mig if found else {})


def _mig(models: dict[str, MigSlices]) -> Iterator[Metric]:
    free = [((model,), one.free_slices) for model, one in models.items()]
    yield _family("mig_free_slices", "Free memory slices of GPUs in MIG mode.", ["model"], free)
    labels = ["model", "profile"]
    profiles = [((model, name), one) for model, mig in models.items() for name, one in mig.profiles.items()]
    instances = ((key, one.instances) for key, one in profiles)
    yield _family("mig_free_instances", "MIG instances that pods can get now.", labels, instances)
    text = "Free memory slices that cannot become an instance of the profile, but could on an empty GPU."
    yield _family("mig_stranded_slices", text, labels, ((key, one.stranded) for key, one in profiles))


def _family(name: str, text: str, labels: list[str], values: Iterable[tuple[_Labels, float]]) -> Metric:
    family = GaugeMetricFamily(f"stowage_{name}", text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
