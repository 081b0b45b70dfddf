"""Which pods an event of the watch shows as disrupted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from extender.dialects.pod_request import bound_request
from extender.inventory.node_state import is_leaving
from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.queues.disruptions import DisruptionLog, disruption_reason, lost_seconds
from extender.queues.queue import Queues
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet


def note_disruptions(
    event: Event,
    log: DisruptionLog,
    queues: Queues,
    pods: Mapping[str, Pod],
    nodes: Mapping[str, Node],
    fleet: Fleet,
) -> None:
    """Note in ``log`` which pods the event shows as disrupted, and how much work they lost."""
    for pod, reason in disrupted_pods(event, pods, nodes):
        queue, row = queues.queue_of(pod), fleet.rows.get(pod.node_name)
        gpus = 0.0 if row is None else float(gpu_sizes(fleet, bound_request(pod).request)[row])
        log.record_loss(pod, queues.name_of(pod), reason, gpus, partial(lost_seconds, pod, queue))


def disrupted_pods(event: Event, pods: Mapping[str, Pod], nodes: Mapping[str, Node]) -> list[tuple[Pod, str]]:
    """Bound pods that end with this event because of a disruption, and the reason. ``pods`` are those before
    the event.

    A pod counts once it is being deleted, has ended or is gone: until then the disruption may come to nothing
    (Kubernetes resets such a condition after two minutes, pkg/controller/disruption/disruption.go, v1.36).
    """
    disrupted = []
    for pod in _ending(event, pods):
        if not pod.node_name:
            continue
        node = nodes.get(pod.node_name)
        if reason := disruption_reason(pod, node_interrupted=node is not None and is_leaving(node)):
            disrupted.append((pod, reason))
    return disrupted


def _ending(event: Event, pods: Mapping[str, Pod]) -> Iterable[Pod]:
    match event:
        case Upserted(Pod() as pod):
            ending = [pod] if pod.deleting or pod.terminated else []
            before = pods.get(pod.key)
            return [before, *ending] if before is not None and before.uid != pod.uid else ending
        case Deleted("Pod", key) if (gone := pods.get(key)) is not None:
            return (gone,)
        case Listed("Pod", keys):
            return [pod for key, pod in pods.items() if key not in keys]
    return ()
