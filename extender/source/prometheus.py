"""Measured use of GPUs by pods, from Prometheus: the metrics of NVIDIA's dcgm-exporter.

dcgm-exporter labels its series with the pod that uses the GPU (``pod``, ``namespace``). Without
``honor_labels`` in Prometheus's scrape configuration, these become ``exported_pod`` and
``exported_namespace``, and ``pod`` and ``namespace`` name the exporter. ``DCGM_FI_DEV_FB_USED`` is in MiB,
``DCGM_FI_PROF_GR_ENGINE_ACTIVE`` a fraction from 0 to 1, ``DCGM_FI_DEV_GPU_UTIL`` a percentage
(NVIDIA/dcgm-exporter, etc/default-counters.csv). The third replaces the second where that is disabled.

For pods with enforced fractions, the agents of KAI's GPU fractioning export memory in bytes and a percentage,
as ``gpu_fractioning_*``, earlier ``gpu_sharing_*`` (kai-scheduler/kai-gpu-fractioning, README).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from extender.source.errors import SourceError
from extender.untrusted.limits import KEY, METRICS_SECONDS, METRICS_SERIES, METRICS_SIZE, quoted

_BY = "namespace, pod, exported_namespace, exported_pod"
_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_WINDOW = re.compile(r"[1-9][0-9]{0,4}[smhdwy]")
_MEMORY = "DCGM_FI_DEV_FB_USED"
_ACTIVE, _BUSY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
_FRACTIONS = ("gpu_fractioning", "gpu_sharing")
_MEMORY_OF_FRACTION, _BUSY_OF_FRACTION = "_gpu_memory_used_bytes", "_gpu_sm_utilization_percent"


class MetricsError(SourceError):
    """Prometheus cannot be queried, or its answer is not usable."""


@dataclass(frozen=True, slots=True)
class Use:
    """A pod's use of its GPUs, the maximum over them: memory in MiB, and the fraction of time the GPU was
    busy (0 to 1). None where not measured."""

    memory_mib: float | None = None
    active: float | None = None


def check_question(url: str, window: str) -> None:
    """Raises ``MetricsError`` for an invalid URL or window."""
    if not _URL.fullmatch(url):
        raise MetricsError(f"--prometheus {quoted(url)}: expected a URL such as http://prometheus:9090")
    if not _WINDOW.fullmatch(window):
        raise MetricsError(f"--window {quoted(window)}: expected a duration such as 12h or 7d")


def measured_use(url: str, window: str, quantile: float) -> dict[str, Use]:
    """By pod (``namespace/name``): peak memory within the window (``7d``), and this quantile of the activity.
    Raises ``MetricsError``."""
    check_question(url, window)

    def measured(what: str, *metrics: str) -> dict[str, float]:
        each = (f"max by ({_BY}) ({what}{metric}[{window}]))" for metric in metrics)
        return _ask(url, " or ".join(each))

    most, usual = "max_over_time(", f"quantile_over_time({quantile:g}, "
    memory, active = measured(most, _MEMORY), measured(usual, _ACTIVE)
    used = measured(most, *(name + _MEMORY_OF_FRACTION for name in _FRACTIONS))
    busy = measured(usual, *(name + _BUSY_OF_FRACTION for name in _FRACTIONS)) | measured(usual, _BUSY)
    memory = {key: value / (1 << 20) for key, value in used.items()} | memory
    active = {key: value / 100 for key, value in busy.items()} | active
    return {key: Use(memory.get(key), active.get(key)) for key in memory.keys() | active.keys()}


def _ask(url: str, query: str) -> dict[str, float]:
    """The values of a query by pod; series without a pod are omitted."""
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=METRICS_SECONDS))
    try:
        answer = pool.request(
            "POST",
            f"{url.rstrip('/')}/api/v1/query",
            fields={"query": query, "timeout": f"{METRICS_SECONDS}s"},
            encode_multipart=False,
            preload_content=False,
            redirect=False,
        )
        body = answer.read(METRICS_SIZE + 1)
        answer.close()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise MetricsError(f"{url} does not answer: {quoted(str(error))}") from None
    if len(body) > METRICS_SIZE:
        raise MetricsError(f"{url} answers with more than {METRICS_SIZE} bytes")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise MetricsError(f"{url} answers with status {answer.status} without JSON") from None
    return _values(parsed, url)


def _values(parsed: object, url: str) -> dict[str, float]:
    answer = parsed if isinstance(parsed, dict) else {}
    if answer.get("status") != "success":
        raise MetricsError(f"{url} refuses the query: {quoted(str(answer.get('error') or 'no reason'))}")
    data = answer.get("data")
    series = data.get("result") if isinstance(data, dict) else None
    if not isinstance(series, list) or len(series) > METRICS_SERIES:
        raise MetricsError(f"{url} does not answer with a list of at most {METRICS_SERIES} series")
    values: dict[str, float] = {}
    for entry in series:
        key, value = _pod_and_value(entry)
        if key:
            values[key] = max(value, values.get(key, 0.0))
    return values


def _pod_and_value(series: Any) -> tuple[str, float]:  # noqa: ANN401 (any answer)
    """The key of the pod and the value; "" for a series without a pod or a number."""
    try:
        labels, value = series["metric"], float(series["value"][1])
    except (TypeError, KeyError, IndexError, ValueError):
        return "", 0.0
    if not isinstance(labels, Mapping) or not (math.isfinite(value) and value >= 0):
        return "", 0.0
    for prefix in ("exported_", ""):
        pod, namespace = labels.get(f"{prefix}pod"), labels.get(f"{prefix}namespace")
        if isinstance(pod, str) and isinstance(namespace, str) and pod and len(pod) + len(namespace) < KEY:
            return f"{namespace}/{pod}", value
    return "", 0.0
