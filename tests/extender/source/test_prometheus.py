"""Measured use from a Prometheus that answers in every way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from extender.source import prometheus
from extender.source.prometheus import MetricsError, Use, measured_use


class Prometheus:
    """Answers queries by the metric that they name; keeps the queries."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.queries: list[str] = []
        self.raw: bytes | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                query = parse_qs(body)["query"][0]
                outer.queries.append(f"{self.path} {query}")
                result = next((found for name, found in outer.answers.items() if name in query), [])
                answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode() if outer.raw is None else outer.raw)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Prometheus]:
    running = Prometheus()
    yield running
    running.stop()


def series(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1700000000.0, value]}


def test_the_labels_of_the_pod_and_not_of_the_exporter(server):
    exporter = {"pod": "dcgm-exporter-x", "namespace": "gpu-operator"}
    server.answers = {
        "DCGM_FI_DEV_FB_USED": [
            series("6000", exported_pod="a", exported_namespace="ml", **exporter),
            series("7000", pod="b", namespace="ml"),
            series("9000"),  # a GPU without a pod
        ],
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": [series("0.25", pod="b", namespace="ml")],
        "DCGM_FI_DEV_GPU_UTIL": [
            series("40", exported_pod="a", exported_namespace="ml", **exporter),
            series("90", pod="b", namespace="ml"),
        ],
    }
    assert measured_use(server.url + "/prometheus/", "7d", 0.95) == {
        "ml/a": Use(6000, 0.4),
        "ml/b": Use(7000, 0.25),
    }
    by = "namespace, pod, exported_namespace, exported_pod"
    assert server.queries[0] == (
        f"/prometheus/api/v1/query max by ({by}) (max_over_time(DCGM_FI_DEV_FB_USED[7d]))"
    )
    assert "quantile_over_time(0.95, DCGM_FI_PROF_GR_ENGINE_ACTIVE[7d])" in server.queries[1]


def test_what_the_agents_of_enforced_fractions_measure(server):
    gib = str(1 << 30)
    server.answers = {
        "gpu_sharing_gpu_memory_used_bytes": [series(gib, pod="a", namespace="ml")],
        "gpu_fractioning_gpu_sm_utilization_percent": [series("40", pod="a", namespace="ml")],
        "DCGM_FI_DEV_FB_USED": [series("7000", pod="b", namespace="ml")],
    }
    assert measured_use(server.url, "7d", 0.95) == {"ml/a": Use(1024, 0.4), "ml/b": Use(7000, None)}


def test_what_is_no_number_or_has_no_pod_is_left_out(server):
    server.answers["DCGM_FI_DEV_FB_USED"] = [
        series("NaN", pod="a", namespace="ml"),
        series("-1", pod="b", namespace="ml"),
        series("x", pod="c", namespace="ml"),
        {"metric": [], "value": [0, "1"]},
        {"metric": {"pod": 7, "namespace": "ml"}, "value": [0, "1"]},
        {"value": [0, "1"]},
        "nonsense",
        series("1", pod="d" * 400, namespace="ml"),
        series("5", pod="e", namespace="ml"),
    ]
    assert measured_use(server.url, "1h", 1) == {"ml/e": Use(5, None)}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"<html>", "without JSON"),
        (b'{"status": "error", "error": "query timed out"}', "refuses the query: 'query timed out'"),
        (b'{"status": "success", "data": []}', "does not answer with a list"),
        (b"[]", "refuses the query"),
        (b"[" * 100_000, "without JSON"),
    ],
)
def test_other_answers_are_errors(server, raw, says):
    server.raw = raw
    with pytest.raises(MetricsError, match=says):
        measured_use(server.url, "7d", 0.95)


def test_answers_are_bounded(server, monkeypatch):
    monkeypatch.setattr(prometheus, "METRICS_SIZE", 100)
    server.answers["DCGM_FI_DEV_FB_USED"] = [series("1", pod="a" * 100, namespace="ml")]
    with pytest.raises(MetricsError, match="more than 100 bytes"):
        measured_use(server.url, "7d", 0.95)
    monkeypatch.undo()
    monkeypatch.setattr(prometheus, "METRICS_SERIES", 1)
    server.answers["DCGM_FI_DEV_FB_USED"] *= 2
    with pytest.raises(MetricsError, match="at most 1 series"):
        measured_use(server.url, "7d", 0.95)


def test_nobody_answers():
    with pytest.raises(MetricsError, match="does not answer"):
        measured_use("http://127.0.0.1:9", "7d", 0.95)


@pytest.mark.parametrize(
    ("url", "window"),
    [("ftp://x", "7d"), ("http://", "7d"), ("http://x", "7d]) or (x"), ("http://x?q=1", "7d")],
)
def test_what_is_no_url_or_no_duration(url, window):
    with pytest.raises(MetricsError, match="expected"):
        measured_use(url, window, 0.95)
