"""The messages of ``extender/v1`` for ``/openapi.json`` (kube-scheduler, ``extender/v1/types.go``).

``codec.py`` reads and writes them without these models, which would take longer than a decision.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

_Object: TypeAlias = dict[str, Any]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ExtenderArgs(_Message):
    """``Nodes`` are whole objects (``nodeCacheCapable: false``), ``NodeNames`` only their names."""

    Pod: _Object
    Nodes: _Object | None = None
    NodeNames: list[str] | None = None


class ExtenderFilterResult(_Message):
    """Nodes that fit, in the form of the request, and reasons of others by name."""

    Nodes: _Object | None
    NodeNames: list[str] | None
    FailedNodes: dict[str, str] | None
    FailedAndUnresolvableNodes: dict[str, str] | None
    Error: str


class HostPriority(_Message):
    Host: str
    Score: int = Field(ge=0, le=10)


class Victims(_Message):
    Pods: list[_Object]
    NumPDBViolations: int


class MetaPod(_Message):
    UID: str


class MetaVictims(_Message):
    Pods: list[MetaPod]
    NumPDBViolations: int


class ExtenderPreemptionArgs(_Message):
    """Victims by node, as whole pods or as their UIDs."""

    Pod: _Object
    NodeNameToVictims: dict[str, Victims] | None = None
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(_Message):
    NodeNameToMetaVictims: dict[str, MetaVictims] | None


class ExtenderBindingArgs(_Message):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class ExtenderBindingResult(_Message):
    Error: str


SHAPES: dict[str, tuple[type[BaseModel], Any]] = {
    "filter": (ExtenderArgs, ExtenderFilterResult),
    "prioritize": (ExtenderArgs, list[HostPriority]),
    "preempt": (ExtenderPreemptionArgs, ExtenderPreemptionResult),
    "bind": (ExtenderBindingArgs, ExtenderBindingResult),
}
"""The argument and result of each verb."""
