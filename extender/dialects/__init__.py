"""Pod -> Request: what a pod asks for, in the words that clusters already use, one file per vocabulary.

A vocabulary turns the effective resources of a pod into parts of a ``Request``. Contradictory or impossible
requests raise ``RequestError`` with a text for the pod's owner; nothing is guessed.
"""

from __future__ import annotations

from functools import lru_cache

from extender.dialects import counted
from extender.dialects.effective import RequestError, effective
from extender.objects import Pod, PodSpec
from packing.request import Request

__all__ = ["RequestError", "request_of"]


def request_of(pod: Pod) -> Request:
    """What a pod asks for. Raises RequestError."""
    return _of_spec(pod.spec)


@lru_cache(maxsize=8192)
def _of_spec(spec: PodSpec) -> Request:
    # Pods come from few templates whose specs are shared, so most pods cost one look-up.
    resources = effective(spec)
    return Request(
        cpu_milli=resources.pop("cpu", 0),
        memory_mib=resources.pop("memory", 0),
        devices=counted.devices(resources),
    )
