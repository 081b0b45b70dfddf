"""Another extender gets the same requests as Stowage. No test measures time."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench import cluster, latency
from bench.against import Other
from bench.dialects import DIALECTS
from bench.service import api_server, stowage
from extender.cluster.factory import state_of
from extender.dialects.pod_request import request_of
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Listed, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.verbs.filter import filter_nodes

NODES, PODS = 8, 6


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_cluster_is_read_as_it_is_meant(dialect: str):
    state = state_of(Settings())
    for node in cluster.nodes(NODES, dialect):
        state.apply([Upserted(NodeManifest.from_value(node).record())])
    bound = [PodManifest.from_value(pod).record() for pod in cluster.bound_pods(NODES, dialect)]
    state.apply([*map(Upserted, bound), Listed("Pod", frozenset(pod.key for pod in bound))])
    assert not state.problems
    assert not state.overcommitted
    assert len(bound) == NODES * cluster.PODS_PER_NODE
    names = NodeNames.of(state.nodes)
    fitting = 0
    for manifest in itertools.islice(cluster.arrivals(dialect=dialect), PODS):
        pod = PodManifest.from_value(manifest).record()
        assert bool(request_of(pod).shares) == (dialect != "nvidia")
        fitting += bool(filter_nodes(state, FilterArgs(pod, names), Settings())[0].names)
    assert fitting >= PODS // 2


def test_bound_pods_have_the_same_gpus_in_every_dialect():
    free = {}
    for dialect in DIALECTS:
        state = state_of(Settings())
        for node in cluster.nodes(NODES, dialect):
            state.apply([Upserted(NodeManifest.from_value(node).record())])
        for pod in cluster.bound_pods(NODES, dialect):
            state.apply([Upserted(PodManifest.from_value(pod).record())])
        free[dialect] = state.fleet.arrays.free_gpu()
    assert free["hami"] == pytest.approx(free["nvidia"])


@pytest.mark.nightly
def test_a_second_stowage_gets_the_same_requests():
    with (
        api_server(NODES, waiting=PODS + 20, dialect="hami") as kubeconfig,
        stowage(kubeconfig, {"STOWAGE_SHORTLIST": "4"}) as second,
        Other(f"http://127.0.0.1:{second.port}/scheduler/", second.pid) as other,
    ):
        (row,) = latency.run([NODES], PODS, shortlists=(4,), other=other, dialect="hami")
    assert other.prioritizes
    assert [answer.nodes for answer in row.others] == [pair.nodes for pair in row.pairs]
    assert max(answer.nodes for answer in row.others) == 4
    assert all(answer.filter_ms > 0 for answer in row.others)
    assert sum(answer.cpu_ms for answer in row.others) > 0  # the kernel counts a running thread late
    assert "| 8 | 4 |" in latency.comparison([row])


@pytest.mark.parametrize("url", ["https://localhost/x", "localhost:8080", "http:///x", "http://h/x?y"])
def test_other_urls_are_refused(url: str):
    with pytest.raises(ValueError, match="expected http://HOST"):
        Other(url)


def test_an_extender_without_prioritize_answers_filter_alone(without_prioritize: int):
    with Other(f"http://127.0.0.1:{without_prioritize}") as other:
        answers = [other.ask({"metadata": {}}, ["node-1", "node-2"]) for _ in range(2)]
    assert not other.prioritizes
    assert [(one.nodes, one.prioritize_ms, one.cpu_ms) for one in answers] == [(1, 0, 0)] * 2


@pytest.fixture
def without_prioritize() -> Iterator[int]:
    """The port of an extender that has no prioritize and returns the first node, as HAMi's has."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _WithoutPrioritize) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class _WithoutPrioritize(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self.path == "/filter"
        reply = json.dumps({"NodeNames": asked["NodeNames"][:1], "Error": ""}).encode() if found else b"no"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Nothing."""
