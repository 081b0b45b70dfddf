"""Another running extender, which receives the same requests as Stowage (``bench.latency --against``).

Only the calls that kube-scheduler makes to every extender are compared: filter, then prioritize for the
returned nodes. Nothing is bound. An extender without prioritize (HAMi) answers 404, and only filter counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from bench.client import Client, Refused, extender_args

_NO_SUCH_VERB = (404, 405)


@dataclass(frozen=True, slots=True)
class Answer:
    """Milliseconds of both calls, CPU milliseconds of the extender's first thread (0 if its process is
    unknown), and the number of nodes that fit."""

    filter_ms: float
    prioritize_ms: float
    cpu_ms: float
    nodes: int


class Other:
    """One connection to another extender."""

    def __init__(self, url: str, pid: int = 0) -> None:
        """``url``: as ``urlPrefix`` in kube-scheduler's configuration, to which the verbs are appended; http
        only. ``pid``: its process, if it runs on this machine. Raises ``ValueError`` for other URLs."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url}: expected http://HOST:PORT/PATH")
        self._prefix, self._pid = parts.path.rstrip("/"), pid
        self._client = Client(parts.port or 80, pid, host=parts.hostname)
        self.prioritizes = True

    def ask(self, pod: dict[str, Any], names: Sequence[str]) -> Answer:
        """Call both verbs for this pod. An error in the reply of filter counts as no nodes. Raises
        ``Refused``."""
        client, filtered = self._client, json.loads(self._post("filter", extender_args(pod, names)))
        seconds, cpu = client.seconds, client.cpu
        fitting = [] if filtered.get("Error") else filtered.get("NodeNames") or []
        if not (fitting and self.prioritizes):
            return Answer(seconds * 1e3, 0.0, self._cpu_ms(cpu), len(fitting))
        try:
            self._post("prioritize", extender_args(pod, fitting))
        except Refused as refused:
            if refused.status not in _NO_SUCH_VERB:
                raise
            self.prioritizes = False
            return Answer(seconds * 1e3, 0.0, self._cpu_ms(cpu), len(fitting))
        return Answer(seconds * 1e3, client.seconds * 1e3, self._cpu_ms(cpu + client.cpu), len(fitting))

    def _cpu_ms(self, seconds: float) -> float:
        return seconds * 1e3 if self._pid else 0.0

    def _post(self, verb: str, body: bytes) -> bytes:
        return self._client.post(f"{self._prefix}/{verb}", body)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)
