"""Who holds back a pod with scheduling gates: kube-scheduler does not try it, nobody makes room for it."""

from __future__ import annotations

from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten

_MEANING = {
    "kueue.x-k8s.io/admission": "Kueue has not admitted it to its queue",
    "kueue.x-k8s.io/topology": "Kueue has not assigned it to a topology domain",
    "kueue.x-k8s.io/elastic-job": "Kueue has not admitted this part of its elastic job",
}
"""Sources: kubernetes-sigs/kueue at ff69552e79ad, ``pkg/controller/jobs/pod/constants/constants.go``
(SchedulingGateName), ``apis/kueue/v1beta2/topology_types.go`` (TopologySchedulingGate) and ``constants.go``
(ElasticJobSchedulingGate)."""
_NAMED = 3


def gates_text(pod: Pod) -> str:
    """Which scheduling gates hold the pod, with what those of Kueue mean; "" for a pod without gates."""
    if not pod.gates:
        return ""
    named = ", ".join(map(_named, pod.gates[:_NAMED]))
    more = f" and {len(pod.gates) - _NAMED} more" if len(pod.gates) > _NAMED else ""
    return f"held by the scheduling gate{'s' * (len(pod.gates) > 1)} {named}{more}"


def gate_hint(pod: Pod) -> tuple[str, ...]:
    """A sentence for its author, if the pod has gates."""
    text = gates_text(pod)
    return (f"It is {text}. kube-scheduler tries it when no gate is left.",) if text else ()


def gates_note(pod: Pod) -> str:
    """Why kube-scheduler has never asked about the pod, if that is because of its gates."""
    text = gates_text(pod)
    return f"kube-scheduler has not asked: the pod is {text}" if text else ""


def _named(gate: str) -> str:
    meaning = _MEANING.get(gate)
    return shorten(gate, KEY) + (f" ({meaning})" if meaning else "")
