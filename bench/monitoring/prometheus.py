"""A real Prometheus that scrapes one Stowage and evaluates the alerts."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.service import free_port

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yaml"
RATE_INTERVAL = "20s"
"""Replaces Grafana's ``$__rate_interval`` for scrapes every second."""
MISSING = "prometheus is not installed (Debian: apt install prometheus): its queries cannot be run"


def installed() -> bool:
    """Whether the programs ``prometheus`` and ``promtool`` are installed."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, times (Unix seconds) and values."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def between(self, expr: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """The values of an expression between two times, without NaN. Raises RuntimeError for bad PromQL."""
        query = {"query": expr.replace("$__rate_interval", RATE_INTERVAL)}
        found = self._get("query_range", query | {"start": start, "end": end, "step": step})
        series = []
        for one in found["result"]:
            points = [(at, float(text)) for at, text in one["values"] if text != "NaN"]
            if points:
                times, values = zip(*points, strict=True)
                series.append(Series(one["metric"], [*times], [*values]))
        return series

    def now(self, expr: str) -> list[Series]:
        """The values at this moment."""
        found = self._get("query", {"query": expr})
        results = found["result"]
        return [Series(one["metric"], [one["value"][0]], [float(one["value"][1])]) for one in results]

    def rules(self) -> list[dict[str, Any]]:
        """The alerts as evaluated by Prometheus: name, query, state, health, lastError."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def _get(self, path: str, query: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{query}: {error.read().decode()}") from None

    def wait(self, seconds: float = 120) -> None:
        """Wait until it answers and has scraped once. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.now("stowage_build_info"):
                    return
            except (OSError, RuntimeError):  # not listening or not ready yet
                pass
            time.sleep(0.2)
        raise TimeoutError(f"Prometheus has scraped nothing within {seconds:g} s")


@contextmanager
def prometheus(stowage_ports: Sequence[int], directory: Path) -> Iterator[Prometheus]:
    """Scrape these ports of this machine every second, and evaluate ``deploy/monitoring/alerts.yaml``."""
    targets = [f"127.0.0.1:{port}" for port in stowage_ports]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "stowage", "static_configs": [{"targets": targets}]}],
    }
    file, port = directory / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(config))
    command = [
        "prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        running = Prometheus(port)
        running.wait()
        yield running
    finally:
        process.terminate()
        process.wait(30)
