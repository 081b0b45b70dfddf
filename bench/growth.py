"""Memory and CPU of one replica by the size of the cluster, and fitted formulas.

Sizes are measured one by one, each with a scripted API server (``bench.apiserver``) and one Stowage. Memory
and the CPU of a start are fitted as ``a + b x nodes + c x pods + d x GPUs`` (least squares); to separate the
three factors, the sizes of ``--vary`` are also measured with fewer pods and with more GPUs on each node. The
last lines are one of four shards of the sizes of ``--shard``, which the formulas exclude. Run alone:

    python -m bench.growth --nodes 1000 5000 10000 20000
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np

from bench import cluster
from bench.client import Client
from bench.latency import Asker
from bench.node_manifest import GPUS_PER_NODE, SHARD_LABEL, SHARDS
from bench.service import Running, api_server, cpu_seconds, free_port, stowage

SIZES = (1000, 5000, 10_000, 20_000)
_FEWER_PODS, _MORE_GPUS = 2, 16
_DECISIONS = 200
_SHORTLIST = 64  # the default of the setting
_SETTLES = 8.0  # seconds after the start until freed memory is returned and garbage is collected
_IDLE, _LONGEST = 0.15, 120.0  # fraction of a core; seconds until which the first prices must be found
_RATES = 500, 2000  # changes of pods per second
_SECONDS = 10.0  # at each rate


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster; ``pods`` and ``gpus`` are per node."""

    nodes: int
    pods: int = cluster.PODS_PER_NODE
    gpus: int = GPUS_PER_NODE
    shards: int = 1

    @property
    def names(self) -> list[str]:
        """The nodes in kube-scheduler's requests."""
        return [cluster.node_name(index) for index in range(0, self.nodes, self.shards)]

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the first shard, as environment variables. Its scheduler has no pods: only its nodes
        count."""
        if self.shards == 1:
            return {}
        return {"STOWAGE_NODE_SELECTOR": f"{SHARD_LABEL}=0", "STOWAGE_SHARD_SCHEDULERS": '["stowage-0"]'}

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """The terms of the formula's four factors: 1, nodes, pods, GPUs."""
        return 1.0, float(self.nodes), float(self.nodes * self.pods), float(self.nodes * self.gpus)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one size. ``ready``: seconds from the start of the process; ``start_cpu``: its CPU until
    then. ``resident`` and ``peak`` in MiB, after the start and ``_DECISIONS`` pods. ``decision_ms`` and
    ``decision_cpu_ms``: filter and prioritize together with all nodes named, the lower quartile, because
    other work on the machine can only add to them. ``event_us``: CPU of the process per watch event, at each
    of ``_RATES``."""

    size: Size
    ready: float
    start_cpu: float
    resident: float
    peak: float
    decision_ms: float
    decision_cpu_ms: float
    event_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """``factors`` of 1, nodes, pods and GPUs, and for each size the residual: the measured value minus the
    fit."""

    factors: tuple[float, ...]
    residuals: tuple[float, ...]


def sizes(nodes: Sequence[int], vary: Collection[int], shard: Sequence[int]) -> Iterator[Size]:
    """The sizes to measure: each number of nodes, those of ``vary`` also with other pods and GPUs, and a
    shard of those of ``shard``."""
    for count in nodes:
        yield Size(count)
        if count in vary:
            yield Size(count, pods=_FEWER_PODS)
            yield Size(count, gpus=_MORE_GPUS)
    for count in shard:
        yield Size(count, shards=SHARDS)


def fit(measured: Sequence[Figures], value: Callable[[Figures], float]) -> Fit:
    """Least squares over all sizes. A factor whose term is proportional to others shares their value: with
    only one kind of nodes, pods and GPUs are multiples of the nodes."""
    terms = np.array([one.size.terms for one in measured])
    values = np.array([value(one) for one in measured])
    scale = terms.max(axis=0)
    factors = np.linalg.lstsq(terms / scale, values, rcond=None)[0] / scale
    return Fit(tuple(factors.tolist()), tuple((values - terms @ factors).tolist()))


def measure(size: Size, environment: Mapping[str, str]) -> Figures:
    """Start both processes, and measure."""
    port = free_port()
    server = api_server(size.nodes, waiting=_DECISIONS, port=port, pods=size.pods, gpus=size.gpus)
    with server as kubeconfig, stowage(kubeconfig, {**environment, **size.settings}) as running:
        start_cpu = cpu_seconds(running.pid)
        _until_idle(running.pid)
        wall, cpu = _decisions(running, size.names)
        resident, peak = running.memory_mib(), running.memory_mib("VmHWM")
        events = tuple(_event(running.pid, port, rate) for rate in _RATES)
    return Figures(size, running.ready_seconds, start_cpu, resident, peak, wall, cpu, events)


def _until_idle(pid: int) -> None:
    """Wait until the work that follows a start is done."""
    deadline = time.monotonic() + _LONGEST
    time.sleep(_SETTLES)
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(2.0)
        if cpu_seconds(pid) - before < 2.0 * _IDLE:
            return


def until_preempts(port: int) -> None:
    """Wait for the kernels of ``preempt``, which are compiled after the first start. Raises
    ``TimeoutError``."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/scheduler/preempt", b"{}")
    for _ in range(600):
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                return
        time.sleep(0.5)
    raise TimeoutError("the kernels of preempt were not compiled")


def _decisions(running: Running, names: list[str]) -> tuple[float, float]:
    with Client(running.port, running.pid) as client:
        asker = Asker(client, _SHORTLIST)
        pods = itertools.islice(cluster.arrivals(), _DECISIONS)
        pairs = [asker.ask(pod, names)[0] for pod in pods][_DECISIONS // 4 :]
    return _quartile([pair.ms for pair in pairs]), _quartile([pair.cpu_ms for pair in pairs])


def _quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def _event(pid: int, port: int, rate: int) -> float:
    """Microseconds of CPU per event of ``_SECONDS``."""
    before, cpu = _sent(port, f"?pods={rate}"), cpu_seconds(pid)
    time.sleep(_SECONDS)
    sent, cpu = _sent(port) - before, cpu_seconds(pid) - cpu
    return cpu / sent * 1e6


def _sent(port: int, query: str = "") -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/rate{query}", timeout=30) as answer:
        return int(json.load(answer)["sent"])


def row(one: Figures) -> str:
    """A row of the table."""
    _, nodes, pods, gpus = one.size.terms
    shard = f", 1 of {one.size.shards} shards" if one.size.shards > 1 else ""
    columns = [f"{nodes:,.0f}{shard}", f"{pods:,.0f}", f"{gpus:,.0f}"]
    columns += [f"{one.resident:.0f}", f"{one.peak:.0f}", f"{one.ready:.1f}", f"{one.start_cpu:.1f}"]
    columns += [f"{one.decision_ms:.2f}", f"{one.decision_cpu_ms:.2f}"]
    columns += [f"{us:.0f}" for us in one.event_us] + [f"{1e6 / min(one.event_us):,.0f}"]
    return f"| {' | '.join(columns)} |"


HEAD = (
    "| nodes | pods | GPUs | memory, MiB | its peak | ready after, s | CPU of the start, s "
    "| filter + prioritize, ms | their CPU, ms | CPU per event at 500 per second, us | at 2,000 "
    "| events per second per core |\n"
    f"{'|--:' * 12}|"
)


def formula(name: str, unit: str, measured: Sequence[Figures], value: Callable[[Figures], float]) -> str:
    """The formula and the residual of each size."""
    found = fit(measured, value)
    base, *factors = found.factors
    terms = [f"{factor * 1000:.3f} x {what}" for factor, what in zip(factors, _WHATS, strict=True)]
    largest = max(found.residuals, key=abs)
    lines = [f"{name} = {base:.1f} {unit} + {' + '.join(terms)}", f"largest residual {largest:+.1f} {unit}:"]
    for one, residual in zip(measured, found.residuals, strict=True):
        size = f"{one.size.nodes:,} nodes, {one.size.pods} pods and {one.size.gpus} GPUs on each"
        lines.append(f"  {size}: {value(one):.1f}, {residual:+.1f} {unit}")
    return "\n".join(lines)


_WHATS = ("thousand nodes", "thousand pods", "thousand GPUs")


def main() -> None:
    """Print a row for each size, then the formulas."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--vary", type=int, nargs="*", default=[5000])
    parser.add_argument("--shard", type=int, nargs="*", default=[20_000])
    args = parser.parse_args()
    measured = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {"NUMBA_CACHE_DIR": cache}
        with api_server(100) as kubeconfig, stowage(kubeconfig, environment) as running:
            until_preempts(running.port)  # all kernels are compiled
        print(HEAD, flush=True)
        for size in sizes(args.nodes, args.vary, args.shard):
            measured.append(measure(size, environment))
            print(row(measured[-1]), flush=True)
    measured = [one for one in measured if one.size.shards == 1]
    print("\n" + formula("memory", "MiB", measured, lambda one: one.resident))
    print("\n" + formula("CPU of a start", "s", measured, lambda one: one.start_cpu))


if __name__ == "__main__":
    main()
