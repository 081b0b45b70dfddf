"""KAI: annotations ``gpu-fraction`` or ``gpu-memory``, ``gpu-fraction-num-devices``.

Facts (kai-scheduler/KAI-Scheduler at d5bc503a): names are in ``pkg/common/constants/constants.go``, the
validation in ``pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go``, manifests in
``docs/gpu-sharing``. A fraction is a fraction of the GPU's memory, and KAI packs by it, so Stowage counts the
same fraction of compute. ``gpu-memory`` is in MiB and requests no compute.

KAI's scheduler reserves the GPU with a pod in ``kai-resource-reservation`` that requests one whole
``nvidia.com/gpu``. That pod counts; the pods with fractions of it add nothing. A pod with these annotations
that Stowage places takes a share on a node that is dedicated to Stowage (``stowage.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from extender.dialects import stowage
from extender.dialects.dialect import Dialect, parse_positive
from extender.dialects.pod_resources import Amounts, RequestError
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import Shares, part_milli

FRACTION, MEMORY, COUNT = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"

_RESERVATIONS = ("kai-resource-reservation", "runai-reservation", "kai-scale-adjust")


def requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    fraction, memory, count = metadata.get(FRACTION), metadata.get(MEMORY), metadata.get(COUNT)
    if fraction is None and memory is None:
        if count is not None:
            raise RequestError(f"{COUNT} requires {FRACTION} or {MEMORY}")
        return None
    if fraction is not None and memory is not None:
        raise RequestError(f"{FRACTION} and {MEMORY} are mutually exclusive")
    gpus = parse_positive(COUNT, count) if count is not None else 1
    if fraction is None:
        return Shares(gpus, 0, parse_positive(MEMORY, str(memory)), resource=stowage.RESOURCE)
    milli = _parse_fraction(fraction)
    return Shares(gpus, milli, memory_milli=milli, resource=stowage.RESOURCE)


def is_reservation(pod: Pod) -> bool:
    """Whether the pod only reserves a GPU: for pods that share it (``DefaultResourceReservationName``; before
    0.6 ``runai-reservation``), or to make an autoscaler add a node (``DefaultScaleAdjustName``)."""
    return pod.namespace in _RESERVATIONS


def _parse_fraction(text: str) -> int:
    try:  # as a float first: Fraction("1e999999999") would compute for hours
        fraction = Fraction(text) if len(text) < 32 and 0 < float(text) < 1 else Fraction(0)
    except ValueError:
        fraction = Fraction(0)
    if not fraction:
        raise RequestError(f"{FRACTION}: {quoted(text)} is not a number between 0 and 1")
    return part_milli(fraction)


DIALECT = Dialect(
    "KAI", stowage.RESOURCE, requested_shares, stowage.claims,
    request_annotations=frozenset({FRACTION, MEMORY, COUNT}),
    assignment_annotations=stowage.DIALECT.assignment_annotations,
)  # fmt: skip
