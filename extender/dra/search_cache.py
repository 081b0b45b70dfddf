"""Caches search results: the claims of a template ask for the same on many nodes, and for many pods."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from weakref import ref

from extender.dra.device_slots import LostSlots
from extender.dra.node_search import SearchResult
from extender.dra.pod_claims import DeviceClaims
from extender.k8s.resource_api.objects import DeviceClaim

MAX_TEMPLATES = 128
"""Different claims (or sets of claims) with cached results: a cluster has few templates."""
_MAX_BYTES = 32 << 20


@dataclass(slots=True)
class ClaimResults:
    """The results for equal claims, by node, each with the version of what it depends on.

    ``exhausted`` has the versions for which the budget of a forecast was too small, by node. ``size`` is in
    bytes, about.
    """

    exhausted: dict[str, Hashable] = field(default_factory=dict)
    size: int = 0
    is_cached: bool = True
    _results: dict[str, tuple[Hashable, SearchResult]] = field(default_factory=dict)
    _lost_slots: dict[LostSlots, LostSlots] = field(default_factory=dict)  # one object for nodes alike

    def get(self, node: str, version: Hashable) -> SearchResult | None:
        """The result for a node, if it is of this version."""
        known_version, result = self._results.get(node, (None, None))
        return result if known_version == version else None

    def put(self, node: str, version: Hashable, result: SearchResult) -> None:
        """Store a result."""
        self.size += 400 + 100 * len(result.devices)
        if result.lost_slots not in self._lost_slots:
            self.size += 150 * len(result.lost_slots)
        shared = self._lost_slots.setdefault(result.lost_slots, result.lost_slots)
        self._results[node] = version, replace(result, lost_slots=shared)


_Key: TypeAlias = tuple[ref[DeviceClaim], ...]


class SearchCache:
    """The results for the claims that were asked about last, as long as these claims exist."""

    def __init__(self) -> None:
        self._results: OrderedDict[_Key, ClaimResults] = OrderedDict()
        self._size = 0

    def results_for(self, claims: DeviceClaims) -> ClaimResults:
        """The results for these claims."""
        key = tuple(ref(claim, self._drop_claim) for claim in claims)
        results = self._results.setdefault(key, ClaimResults())
        self._results.move_to_end(key)
        if len(self._results) > MAX_TEMPLATES:
            self._drop(next(iter(self._results)))
        return results

    def put(self, results: ClaimResults, node: str, version: Hashable, result: SearchResult) -> None:
        """Store a result, and drop the oldest ones if the cache gets too large."""
        if not results.is_cached:
            return
        before = results.size
        results.put(node, version, result)
        self._size += results.size - before
        while self._size > _MAX_BYTES and self._results:
            self._drop(next(iter(self._results)))

    def _drop_claim(self, claim: ref[DeviceClaim]) -> None:
        for key in [key for key in self._results if any(one is claim for one in key)]:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        results = self._results.pop(key)
        self._size -= results.size
        results.is_cached = False
