"""The cost of mutual TLS for filter and prioritize on persistent connections, and of a handshake.

Two Stowages follow the same cluster, one with TLS and one without. Each pod is sent to both, alternately
first to one and first to the other, so that both have the same machine load. Run alone:

    python -m bench.tls --nodes 1000 --pods 300
"""

from __future__ import annotations

import json
import ssl
import statistics
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from bench import cluster
from bench.client import Client, extender_args
from bench.service import Running, api_server, stowage
from tests.certificates import Authority, Secret

_WARM_UP = 20
_CONNECTIONS = 200


@dataclass(frozen=True, slots=True)
class Side:
    """Milliseconds of filter and prioritize for each pod, and the CPU of Stowage's event loop within them."""

    client: Client
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def place(self, pod: dict[str, object], names: Sequence[str]) -> None:
        """Place one pod, like kube-scheduler with a shortlist."""
        reply = self.client.post("/scheduler/filter", extender_args(pod, names))
        wall, cpu = self.client.seconds, self.client.cpu
        body = extender_args(pod, json.loads(reply)["NodeNames"] or names[:1])
        self.client.post("/scheduler/prioritize", body)
        self.wall.append((wall + self.client.seconds) * 1e3)
        self.cpu.append((cpu + self.client.cpu) * 1e3)


def run(nodes: int, pods: int) -> str:
    """Measure, and return a Markdown table."""
    names = [cluster.node_name(index) for index in range(nodes)]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arguments, context = _certificates(directory)
        kubeconfig = stack.enter_context(api_server(nodes))
        plain = stack.enter_context(stowage(kubeconfig))
        secure = stack.enter_context(stowage(kubeconfig, None, arguments, context))
        sides = [
            Side(stack.enter_context(Client(plain.port, plain.pid))),
            Side(stack.enter_context(Client(secure.port, secure.pid, context))),
        ]
        for number, pod in enumerate(islice(cluster.arrivals(), pods + _WARM_UP)):
            for side in sides if number % 2 else sides[::-1]:
                side.place(pod, names)
        connections = _connections([(plain, None), (secure, context)])
    one, other = sides
    lines = [
        f"| {nodes:,} nodes, {pods} pods, ms | plain | TLS | difference |",
        "|--|--:|--:|--:|",
        _row("filter and prioritize", one.wall[_WARM_UP:], other.wall[_WARM_UP:]),
        _row("CPU of the event loop", one.cpu[_WARM_UP:], other.cpu[_WARM_UP:]),
        _row("CPU of a new connection and `/healthz`", *connections),
    ]
    return "\n".join(lines)


def _certificates(directory: Path) -> tuple[list[str], ssl.SSLContext]:
    ca = Authority()
    secret = Secret(directory / "server")
    secret.certify(ca.server(), ca.pem)
    client = ca.client("kube-scheduler")
    (directory / "client.pem").write_bytes(client.certificate + client.key)
    context = ssl.create_default_context(cadata=ca.pem.decode())
    context.load_cert_chain(directory / "client.pem")
    arguments = ["--debug-port=0"]
    for flag, name in (("tls-cert", "tls_crt"), ("tls-key", "tls_key"), ("client-ca", "ca_crt")):
        arguments.append(f"--{flag}={secret.path(name)}")
    return arguments, context


def _connections(sides: Sequence[tuple[Running, ssl.SSLContext | None]]) -> list[list[float]]:
    """CPU milliseconds of the event loop for a new connection and a short request, for each side."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(_CONNECTIONS):
        for values, (running, context) in zip(found, sides, strict=True):
            with Client(running.port, running.pid, context) as client:
                values.append(client.connected() * 1e3)
    return found


def _row(name: str, plain: Sequence[float], secure: Sequence[float]) -> str:
    """Medians, and the median difference of pairs with its standard error (from the quartiles: there are
    outliers)."""
    differences = [after - before for before, after in zip(plain, secure, strict=True)]
    low, _, high = statistics.quantiles(differences, n=4)
    error = 1.2533 * (high - low) / 1.349 / len(differences) ** 0.5
    medians = " | ".join(f"{statistics.median(values):.3f}" for values in (plain, secure))
    return f"| {name} | {medians} | {statistics.median(differences):+.3f} ± {error:.3f} |"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=300)
    args = parser.parse_args()
    print(run(args.nodes, args.pods))


if __name__ == "__main__":
    main()
