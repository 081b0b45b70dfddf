"""predicate: whether a pod fits on one node.

Volcano asks once for each node, and counts CPU, memory and whole devices itself. It then takes the node at
once where these are idle, and otherwise waits there for pods that leave. So a pod fits, too, where it fits
once others have left: allocate says whether it must wait.
"""

from __future__ import annotations

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Pod
from extender.protocol.volcano import Code
from extender.untrusted.limits import shorten
from extender.verbs.volcano.session import Session
from packing.model.reasons import Reason


def predicate(session: Session, pod: Pod, node: str, counted: bytes) -> tuple[str, Code]:
    """Why the pod does not fit, "" if it does, and whether evictions could help. ``counted``: see
    ``forget_given_up``."""
    try:
        request = request_of(pod)
    except RequestError as error:
        return shorten(str(error)), Code.UNRESOLVABLE
    if not request.wants_gpu:
        return "", Code.SUCCESS
    session.forget_given_up(pod.uid, node, counted)
    reason = session.reason(pod, request, node, later=True)
    if reason is Reason.FITS:
        return "", Code.SUCCESS
    return reason.text, Code.UNSCHEDULABLE if reason.eviction_helps else Code.UNRESOLVABLE
