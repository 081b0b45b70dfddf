"""Which pods may be interrupted at any time, because their work goes on elsewhere."""

from __future__ import annotations

from extender.k8s.objects import Pod
from extender.settings import Queue

RESTARTABLE = "stowage.dev/restartable"
"""Annotation: "true" or "false", before what the pod's queue says."""


def is_restartable(pod: Pod, queue: Queue) -> bool:
    """Whether the pod may run on spot nodes: its annotation, else its queue. Any other text of the annotation
    is ignored."""
    return {"true": True, "false": False}.get(pod.annotations.get(RESTARTABLE, ""), queue.restartable)
