"""allocate and deallocate: the places that Volcano takes and gives up, and the pods that it evicts.

The status of the task says which of these it is. An error from allocate undoes the allocation, and Volcano
tries the pod again in its next session. What deallocate answers changes nothing.
"""

from __future__ import annotations

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.volcano import Task, TaskStatus
from extender.untrusted.limits import shorten
from extender.verbs.volcano.session import Session
from packing.model.reasons import Reason

UNKNOWN_POD = "Stowage has not seen this pod yet"
_ELSEWHERE = "pod is bound to another node"


def allocate(session: Session, task: Task, pod: Pod | None) -> str:
    """Hold the task's place; "" is success. ``pod``: as the watch shows it, None if it does not.

    A place for now must be free now, for all that is known: what is about to leave is still there. So nothing
    that Volcano binds is over-committed, whatever came before.
    """
    if task.Status not in (TaskStatus.ALLOCATED, TaskStatus.PIPELINED):
        session.keep(task.UID)  # a pod that runs: its eviction was only tried, or failed
        return ""
    if pod is None:
        return UNKNOWN_POD
    if pod.node_name:
        return "" if pod.node_name == task.NodeName else _ELSEWHERE
    try:
        request = request_of(pod)
    except RequestError as error:
        return shorten(str(error))
    if not request.wants_gpu:
        return ""
    waits = task.Status == TaskStatus.PIPELINED
    reason = session.reason(pod, request, task.NodeName, later=waits)
    if reason is not Reason.FITS:
        return reason.text
    session.hold(pod, task.NodeName, waits=waits)
    return ""


def deallocate(session: Session, task: Task) -> None:
    """Release the task's place, or count the pod as one that leaves."""
    if task.Status == TaskStatus.RELEASING:
        session.evict(task.UID)
    else:
        session.release(task.UID)
