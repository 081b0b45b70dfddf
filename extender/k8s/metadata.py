"""The metadata of every manifest: names, and those labels and annotations that Stowage reads.

Also the conversions of maps of text that all manifests need.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, repeat
from operator import add
from typing import Annotated, TypeAlias

from msgspec import Meta
from pydantic import Field
from typing_extensions import TypedDict

from extender.k8s.objects import Pairs
from extender.untrusted.limits import KEY, LISTED_NAMES

# Domains (with their subdomains) and unqualified prefixes of annotations about GPUs, queues, gangs or
# preemption. All others are dropped: on most pods they are larger than everything that is kept.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com"),
    *(".scheduling.x-k8s.io", ".jobset.sigs.k8s.io", ".leaderworkerset.sigs.k8s.io", ".ray.io"),
    *(".cluster-autoscaler.kubernetes.io", ".karpenter.sh"),
)
_SHARED_ENTRIES = 64  # no template has as many labels
_TIMESTAMP = 40  # characters; RFC 3339 with nanoseconds and an offset has 35
_UNQUALIFIED_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")

Text: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
"""Quantities may be written as plain numbers ("cpu: 1"), as Kubernetes allows."""
TextMap: TypeAlias = dict[str, Text | None] | None
Name: TypeAlias = Annotated[str, Field(max_length=KEY), Meta(max_length=KEY)]
"""The name of an object. The API server allows 253 characters, so it serves no object with a longer one."""


# The parts of a manifest are typed dicts: pydantic fills them at half the cost of models, and the garbage
# collector does not track dicts of text.
class OwnerManifest(TypedDict, total=False):
    kind: str | None
    name: Name | None
    uid: Name | None
    controller: bool | None


class Metadata(TypedDict, total=False):
    name: Name | None
    generateName: Name | None
    namespace: Name | None
    uid: Name | None
    labels: TextMap
    annotations: TextMap
    creationTimestamp: str | None
    deletionTimestamp: str | None
    resourceVersion: str | None
    ownerReferences: list[OwnerManifest] | None


NO_ENTRIES: dict[str, str] = {}
_last_labels: list[Mapping[str, str]] = [NO_ENTRIES]
"""The labels that were read last."""


def relevant_entries(entries: TextMap) -> Mapping[str, str]:
    """The annotations that Stowage may read."""
    if not entries:
        return NO_ENTRIES
    kept = {
        name: text or ""
        for key, text in entries.items()
        if len(key) <= KEY and (name := _relevant_name(key)) is not None
    }
    return kept or NO_ENTRIES


def all_entries(entries: TextMap) -> Mapping[str, str]:
    """The labels of a pod, with one string object for equal texts of all pods. Pods of one template that are
    read one after the other share one object."""
    if not entries:
        return NO_ENTRIES
    if entries == _last_labels[0]:
        return _last_labels[0]
    if len(entries) > _SHARED_ENTRIES:  # unusual: they would fill the intern table
        return {key: text or "" for key, text in entries.items() if len(key) <= KEY}
    texts = [text or "" for text in entries.values()]
    labels = dict(zip(map(sys.intern, entries), map(sys.intern, texts), strict=True))
    if max(map(len, labels)) > KEY:
        return {key: text for key, text in labels.items() if len(key) <= KEY}
    _last_labels[0] = labels
    return labels


@lru_cache(maxsize=4096)
def _relevant_name(key: str) -> str | None:
    """The key as one string object for all pods, None if it is not relevant.

    ``key`` has at most ``KEY`` characters, so the size of the cache is bounded.
    """
    return key if is_relevant(key) else None


def is_relevant(key: str) -> bool:
    """Whether an annotation or resource is about GPUs, queues, gangs or preemption, by its name."""
    domain, slash, _ = f".{key}".partition("/")
    return domain.endswith(_DOMAINS) if slash else key.startswith(_UNQUALIFIED_PREFIXES)


def drop_large_entries(
    labels: Mapping[str, str], annotations: Mapping[str, str], longest: int, total: int
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...], str]:
    """Labels and annotations of at most ``longest`` characters each, and ``total`` together with their names.

    Third, the names of those that were dropped (the largest are dropped first); fourth, a problem if there
    are too many names to list, else "".
    """
    maps = labels, annotations
    if sum([len("".join(m)) + len("".join(m.values())) for m in maps if m]) <= longest:  # almost always
        return labels, annotations, (), ""
    sizes = [map(add, map(len, entries), map(len, entries.values())) for entries in maps]
    by_size = sorted(chain(zip(sizes[0], labels, repeat(0)), zip(sizes[1], annotations, repeat(1))))
    kept: tuple[dict[str, str], dict[str, str]] = {}, {}
    dropped = []
    for place, (size, key, which) in enumerate(by_size):
        text = maps[which][key]
        total -= size
        if total < 0:  # all that follow are at least as large
            dropped += [key for _, key, _ in by_size[place:]]
            break
        if len(text) > longest:
            dropped.append(key)
        else:
            kept[which][key] = text
    too_many = f"more than {LISTED_NAMES} annotations and labels are too large"
    return *kept, tuple(dropped[:LISTED_NAMES]), too_many if len(dropped) > LISTED_NAMES else ""


def interned(entries: TextMap) -> Mapping[str, str]:
    """The entries that are not null, with one string object for equal texts of all objects."""
    return {sys.intern(k): sys.intern(v) for k, v in entries.items() if v is not None} if entries else {}


def sorted_pairs(entries: Mapping[str, str | None] | None) -> Pairs:
    """The entries that are not null, sorted by name."""
    return tuple(sorted([(k, v) for k, v in entries.items() if v is not None])) if entries else ()


def unix_seconds(timestamp: str | None) -> float:
    """A timestamp in Unix seconds; 0 if it is absent or malformed, because it only orders pods by age."""
    if not timestamp:
        return 0.0
    return _unix_seconds(timestamp) if len(timestamp) <= _TIMESTAMP else 0.0


@lru_cache(maxsize=1024)  # of short texts: the times of one pod come again with each of its events
def _unix_seconds(timestamp: str) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def micro_time() -> str:
    """Now as a MicroTime, the format of times in a Lease and in an Event."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
