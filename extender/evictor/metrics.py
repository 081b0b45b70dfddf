"""The metrics of the evictor. All names start with ``stowage_evictor_``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from extender.evictor.decision import SKIPPED

RESULTS = ("evicted", "gone", "budget", "refused", "unanswered")
"""Results of evictions and their dry runs. Dry runs that succeed are not counted."""

MOVES = ("recommended", "moved", "placed", "not_placed")
"""Results of moves: of the evictions, and then of the placement of the replacements."""

LAYOUTS = ("recommended", "begun", "done", "taken_over", "given_up", "reverted", "failed")
"""Results of MIG layout changes: the begin, and the end."""


class EvictorMetrics:
    """Counters since the start, and gauges of the last round. The series of known label values exist from the
    start: rate() misses the first increase of a new series."""

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
        self.moves = counter("moves", "Pods moved to make room for a large job, by result.", MOVES)
        self.moves_lost = counter("moves_lost_gpu_seconds", "GPU-seconds of work lost by moves.")
        self.layouts = counter("mig_layouts", "MIG layout changes of nodes, by result.", LAYOUTS)
        self.errors = counter("errors", "Caught errors of rounds.")
        text = "Duration of the last round."
        self._seconds = Gauge("stowage_evictor_round_seconds", text, registry=registry)
        text = "Pending pods for which the last round made no room, by reason."
        self._skipped = Gauge("stowage_evictor_skipped", text, ["reason"], registry=registry)
        self.round_ended(0.0, {})

    def round_ended(self, seconds: float, skipped: Mapping[str, int]) -> None:
        """Set the gauges of a round: its duration, and the pods without room by reason."""
        self._seconds.set(seconds)
        for reason in SKIPPED:
            self._skipped.labels(reason).set(skipped.get(reason, 0))
