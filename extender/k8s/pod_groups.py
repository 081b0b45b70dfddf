"""The record of a PodGroup, whichever API it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard, get_args

PodGroupKind: TypeAlias = Literal[
    "PodGroup",
    "AlphaPodGroup",
    "CoschedulingPodGroup",
    "KoordinatorPodGroup",
    "VolcanoPodGroup",
    "KaiPodGroup",
]
"""All these objects have the kind PodGroup. "PodGroup" is Kubernetes' own."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """How many of the pods that name this object must run together.

    ``minimum``: 0 if any number of them may run, None if that is not readable. ``whole``: its pods are of
    different sorts or say so themselves, so only all of them may be evicted, or none.
    """

    kind: PodGroupKind
    namespace: str
    name: str
    minimum: int | None
    whole: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def is_pod_group(kind: str) -> TypeGuard[PodGroupKind]:
    """Whether objects of this kind are PodGroups."""
    return kind in _KINDS


_KINDS = frozenset(get_args(PodGroupKind))
