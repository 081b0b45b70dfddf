"""Which Events announce a new node for a pod.

- cluster-autoscaler: ``TriggeredScaleUp`` (kubernetes/autoscaler, ``cluster-autoscaler/processors/status/``
  ``eventing_scale_up_processor.go``).
- Karpenter: ``Nominated`` with the note "Pod should schedule on: nodeclaim/NAME"; it adds ", node/NAME" where
  the node exists already (kubernetes-sigs/karpenter, ``pkg/controllers/provisioning/scheduling/events.go``).
  EKS Auto Mode writes the same.

Pods that consume a ProvisioningRequest are created, or no longer suspended, once it is provisioned.
"""

from __future__ import annotations

from collections.abc import Iterable

from extender.source.interface import Announcement


def announced_at(events: Iterable[Announcement]) -> float | None:
    """When a scale-up was first announced (Unix seconds), None if it was not."""
    return min((event.since for event in events if _announces(event)), default=None)


def _announces(event: Announcement) -> bool:
    if event.reason == "Nominated":
        return "nodeclaim/" in event.note and " node/" not in event.note
    return event.reason == "TriggeredScaleUp"
