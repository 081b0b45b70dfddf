"""The metrics of the evictor. All names start with ``stowage_evictor_``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from extender.evictor.decision import SKIPPED

RESULTS = ("evicted", "gone", "budget", "refused", "unanswered")
"""What came of an eviction or its dry run. A dry run that succeeds is not counted."""

MOVES = ("recommended", "moved", "placed", "not_placed")
"""What became of pods that move: their eviction, and then that of their replacements."""

LAYOUTS = ("recommended", "begun", "done", "taken_over", "given_up", "reverted", "failed")
"""What became of MIG layouts: the begin of a change, and its end."""


class EvictorMetrics:
    """Counters since the start, and gauges of the last round. The series of known label values exist from the
    start: rate() does not see the first increase of a new one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, results: Iterable[str] | None = None) -> Counter:
            labels = () if results is None else ("result",)
            made = Counter(f"stowage_evictor_{name}", text, labels, registry=registry)
            for result in results or ():
                made.labels(result)
            return made

        text = "Evictions by result; refused ones include dry runs."
        self.evictions = counter("evictions", text, RESULTS)
        self.nominations = counter("nominations", "Nominations made, renewed, cleared or failed.", [])
        text = "Recommendations: evictions that the mode recommend did not make."
        self.recommendations = counter("recommendations", text)
        self.moves = counter("moves", "Pods that moved so that a large job fits, by result.", MOVES)
        self.moves_lost = counter("moves_lost_gpu_seconds", "GPU-seconds that pods lost by moves.")
        self.layouts = counter("mig_layouts", "MIG layouts of nodes that were changed, by result.", LAYOUTS)
        self.errors = counter("errors", "Errors of a round that were caught.")
        text = "Duration of the last round."
        self._seconds = Gauge("stowage_evictor_round_seconds", text, registry=registry)
        text = "Pending pods that got no room in the last round, by reason."
        self._skipped = Gauge("stowage_evictor_skipped", text, ["reason"], registry=registry)
        self.round_ended(0.0, {})

    def round_ended(self, seconds: float, skipped: Mapping[str, int]) -> None:
        """After this time, with pending pods that got no room by reason."""
        self._seconds.set(seconds)
        for reason in SKIPPED:
            self._skipped.labels(reason).set(skipped.get(reason, 0))
