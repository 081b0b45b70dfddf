"""The metrics of the evictor. All names start with ``stowage_evictor_``."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from extender.evictor.decision import SKIPPED

RESULTS = ("evicted", "gone", "budget", "refused", "unanswered")
"""What came of an eviction or its dry run. A dry run that succeeds is not counted."""


MOVES = ("recommended", "moved", "placed", "not_placed")
"""What became of pods that move: their eviction, and then that of their replacements."""


LAYOUTS = ("recommended", "begun", "done", "taken_over", "given_up", "reverted", "failed")
"""What became of MIG layouts: the begin of a change, and its end."""


class EvictorMetrics:
    """Counters since the start, and gauges of the last round."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Evictions by result; refused ones include dry runs."
        self._evictions = Counter("stowage_evictor_evictions", text, ["result"], registry=registry)
        text = "Nominations that were made, renewed, cleared, or failed."
        self._nominations = Counter("stowage_evictor_nominations", text, ["result"], registry=registry)
        text = "Recommendations: evictions that the mode recommend did not make."
        self._recommendations = Counter("stowage_evictor_recommendations", text, registry=registry)
        text = "Pods that moved so that a large job fits, by result."
        self._moves = Counter("stowage_evictor_moves", text, ["result"], registry=registry)
        text = "GPU-seconds that pods lost by moves."
        self._moves_lost = Counter("stowage_evictor_moves_lost_gpu_seconds", text, registry=registry)
        text = "MIG layouts of nodes that were changed, by result."
        self._layouts = Counter("stowage_evictor_mig_layouts", text, ["result"], registry=registry)
        text = "Errors of a round that were caught."
        self._errors = Counter("stowage_evictor_errors", text, registry=registry)
        text = "Duration of the last round."
        self._seconds = Gauge("stowage_evictor_round_seconds", text, registry=registry)
        text = "Pending pods that got no room in the last round, by reason."
        self._skipped = Gauge("stowage_evictor_skipped", text, ["reason"], registry=registry)
        for result in RESULTS:  # rate() does not see the first increase of a new series
            self._evictions.labels(result)
        for reason in SKIPPED:
            self._skipped.labels(reason)
        for result in MOVES:
            self._moves.labels(result)
        for result in LAYOUTS:
            self._layouts.labels(result)

    def evicted(self, result: str) -> None:
        """``result``: one of ``RESULTS``."""
        self._evictions.labels(result).inc()

    def nominated(self, result: str) -> None:
        self._nominations.labels(result).inc()

    def recommended(self) -> None:
        self._recommendations.inc()

    def moved(self, result: str, lost: float = 0.0) -> None:
        """``result``: one of ``MOVES``; ``lost``: in GPU-seconds."""
        self._moves.labels(result).inc()
        self._moves_lost.inc(lost)

    def layout_changed(self, result: str) -> None:
        """``result``: one of ``LAYOUTS``."""
        self._layouts.labels(result).inc()

    def failed(self) -> None:
        self._errors.inc()

    def round_ended(self, seconds: float, skipped: Mapping[str, int]) -> None:
        self._seconds.set(seconds)
        for reason in SKIPPED:
            self._skipped.labels(reason).set(skipped.get(reason, 0))
