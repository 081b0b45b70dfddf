"""KAI: annotations ``gpu-fraction`` or ``gpu-memory``, ``gpu-fraction-num-devices``.

Facts (kai-scheduler/KAI-Scheduler at d5bc503a): names in ``pkg/common/constants/constants.go``, what is valid
in ``pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go``; manifests in ``docs/gpu-sharing``.
A fraction is of the GPU's memory, and KAI packs by it as a part of the GPU: it counts for compute, too.
``gpu-memory`` is in MiB and says nothing of compute.

KAI's own scheduler holds the GPU with a pod in ``kai-resource-reservation`` that asks for one whole
``nvidia.com/gpu``: that pod is in the books, the fractions on it add nothing. A pod that Stowage places asks
for a share of our own (``own.py``) in these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from extender.dialects.dialect import Claims, positive
from extender.dialects.pod_resources import RequestError
from extender.dialects.sharing import stowage as own
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import WHOLE, Shares

RESOURCE = own.RESOURCE
FRACTION, MEMORY, COUNT = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
READS = frozenset({FRACTION, MEMORY, COUNT})
READS_LABELS: frozenset[str] = frozenset()
ASSIGNED_BY = own.ASSIGNED_BY


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    fraction, memory, count = said.get(FRACTION), said.get(MEMORY), said.get(COUNT)
    if fraction is None and memory is None:
        if count is not None:
            raise RequestError(f"{COUNT} without {FRACTION} or {MEMORY}: how much of each GPU?")
        return None
    if fraction is not None and memory is not None:
        raise RequestError(f"{FRACTION} and {MEMORY} contradict each other: ask for one of them")
    devices = positive(COUNT, count) if count is not None else 1
    if fraction is None:
        return Shares(devices, 0, positive(MEMORY, str(memory)), resource=RESOURCE)
    milli = _milli(fraction)
    return Shares(devices, milli, memory_milli=milli, resource=RESOURCE)


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``: what ``bind`` can have given, nothing under KAI's scheduler. Whole GPUs
    where the pod asks for a share neither in these words nor in our own."""
    if not own.assigned(pod):
        return None
    try:
        asked = shares(pod.spec, {}, pod.annotations)
    except ValueError:
        return own.whole_ones(pod)
    return asked or (None if own.grantable(pod, resources) else own.whole_ones(pod))


def claims(pod: Pod) -> Claims | None:
    """Those of a pod that Stowage bound. Under KAI's scheduler fractions hold nothing beside their
    reservation pod."""
    text = pod.annotations.get(own.INDICES)
    if text is None:
        return None
    try:
        asked = shares(pod.spec, {}, pod.annotations)
    except RequestError:
        return None
    return own.claims_on(text, asked) if asked else None


def _milli(text: str) -> int:
    try:  # as a float first: a Fraction of 1e999999999 would take all day
        part = Fraction(text) if len(text) < 32 and 0 < float(text) < 1 else Fraction(0)
    except ValueError:
        part = Fraction(0)
    if not part:
        raise RequestError(f"{FRACTION}: {quoted(text)} is not a number between 0 and 1")
    return -(-part.numerator * WHOLE // part.denominator)
