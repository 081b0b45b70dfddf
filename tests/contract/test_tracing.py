"""Spans of the verbs as an exporter gets them, and nothing of OpenTelemetry's SDK without the setting."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from extender.server.service import Service
from extender.server.tracing import Tracing
from extender.settings import Settings, SettingsError
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import Start, Stowage, manifest
from tests.extender.builders import make_node, make_pod

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
POD = {"k8s.namespace.name": "default", "k8s.pod.name": "train"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(start: Start, spans: InMemorySpanExporter) -> Stowage:
    nodes = [make_node(name, 1) for name in ("a", "b")]
    stowage = await start(*nodes, make_pod("holds", node_name="a"), make_pod("train"), bind=True, ready=False)
    stowage.service.tracing = Tracing("1.2.3", SimpleSpanProcessor(spans))
    await stowage.service.start()
    return stowage


async def test_each_call_is_a_span_with_pod_nodes_and_result(
    traced: Stowage, spans: InMemorySpanExporter
) -> None:
    pod = manifest("train")
    await traced.filter(pod, ["a", "b", "gone"])
    await traced.prioritize(pod, ["a", "b"])
    await traced.preempt(pod, {"a": {"Pods": [{"UID": "uid-holds"}]}})
    await traced.bind(pod, "b")
    found = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert found == {
        "stowage/filter": POD | {"stowage.nodes": 3, "stowage.answered": 1, "stowage.result": "fits"},
        "stowage/prioritize": POD | {"stowage.nodes": 2, "k8s.node.name": "b", "stowage.result": "scored"},
        "stowage/preempt": POD | {"stowage.nodes": 1, "stowage.answered": 0, "stowage.result": "no_victims"},
        "stowage/bind": POD | {"k8s.node.name": "b", "stowage.result": "bound"},
    }


async def test_a_span_belongs_to_the_trace_of_the_caller(
    traced: Stowage, spans: InMemorySpanExporter
) -> None:
    message = {"Pod": manifest("train"), "Nodes": None, "NodeNames": ["a"]}
    for parent in (f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00", "00-zz-1-01"):
        headers = {"traceparent": parent, "tracestate": "a=1"}
        await traced.http.post("/scheduler/filter", json=message, headers=headers)
    below, alone = spans.get_finished_spans()  # the caller does not sample the second one
    assert below.parent is not None
    assert (f"{below.parent.trace_id:032x}", f"{below.parent.span_id:016x}") == (TRACE, CALLER)
    assert alone.parent is None


async def test_a_refusal_is_an_error(traced: Stowage, spans: InMemorySpanExporter) -> None:
    await traced.post("prioritize", {"Pod": 1})
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {}) == {"stowage.result": "bad_message"}


class Collector(BaseHTTPRequestHandler):
    """Keeps what is posted, by path."""

    received: queue.Queue[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.received.put((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    Collector.received = queue.Queue()
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_spans_go_where_the_variables_say(
    start: Start, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    stowage = await start(make_node("a"), tracing=True)
    await stowage.filter(manifest("train"), ["a"])
    path, body = await asyncio.to_thread(Collector.received.get, timeout=30)
    assert path == "/v1/traces"
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    resource = {one.key: one.value.string_value for one in sent.resource.attributes}
    assert resource["service.name"] == "stowage"
    assert resource["deployment.environment.name"] == "test"
    assert [span.name for scope in sent.scope_spans for span in scope.spans] == ["stowage/filter"]


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "extender.server.tracing", None)
    source = SnapshotSource(Snapshot({}), "test")
    with pytest.raises(SettingsError, match=r"pip install 'kube-stowage\[tracing\]'"):
        Service(Settings(tracing=True), source, "1.2.3")


def test_without_the_setting_nothing_is_imported() -> None:
    code = (
        "import sys; from extender.server.service import Service; from extender.settings import Settings;"
        "from extender.source.snapshot import Snapshot, SnapshotSource;"
        "Service(Settings(), SnapshotSource(Snapshot({}), ''), '');"
        "sys.exit('opentelemetry.sdk' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
