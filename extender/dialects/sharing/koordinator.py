"""Koordinator: ``koordinator.sh/gpu-core``, ``gpu-memory``, ``gpu-memory-ratio``, ``gpu.shared`` and ``gpu``.

Facts (koordinator-sh/koordinator at a7a1b76b): names and the annotation in
``apis/extension/device_share.go``, the combinations that are valid in
``pkg/scheduler/plugins/deviceshare/utils.go``, the division over GPUs in ``devicehandler_gpu.go``;
manifests in ``docs/proposals/scheduling/20220629-fine-grained-device-scheduling.md`` and
``20230803-enhance-gpu-share-api.md``. Amounts are of the whole pod: cores and ratio in per cent of one GPU,
memory in bytes; ``gpu.shared`` is the number of GPUs that they are divided over. ``gpu: 50`` is 50 of cores
and of ratio. The annotation names devices by minor number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from extender.dialects.dialect import Claim, Claims, compared
from extender.dialects.pod_resources import RequestError, effective
from extender.dialects.sharing.per_device import PERCENT, check_size
from extender.inventory.sharing import koordinator as nodes
from extender.k8s.objects import Pod, PodSpec
from extender.k8s.quantity import QuantityError, mib, whole
from extender.untrusted.limits import POD_ANNOTATION
from packing.model.request import Shares, whole_gpus

RESOURCE, CORE, MEMORY = nodes.RESOURCE, nodes.CORE, nodes.MEMORY
RATIO, SHARED = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared"
READS: frozenset[str] = frozenset()
READS_LABELS: frozenset[str] = frozenset()
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
ASSIGNED_BY = frozenset({ALLOCATED})

_NAMES = (RESOURCE, CORE, MEMORY, RATIO, SHARED)
_COMBINATIONS = (
    *({RESOURCE}, {MEMORY}, {RATIO}, {CORE, MEMORY}, {CORE, RATIO}),
    *({SHARED, MEMORY}, {SHARED, RATIO}, {SHARED, CORE, MEMORY}, {SHARED, CORE, RATIO}),
)


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    asked = {name: resources[name] for name in _NAMES if resources.get(name)}
    if not asked:
        return None
    if set(asked) not in _COMBINATIONS:
        raise RequestError(f"{', '.join(sorted(asked))}: Koordinator has no such combination")
    both = asked.get(RESOURCE, 0)
    core, ratio, memory = asked.get(CORE, both), asked.get(RATIO, both), asked.get(MEMORY, 0)
    count = asked.get(SHARED) or (ratio // 100 if ratio > 100 and ratio % 100 == 0 else 1)
    for name, value in ((CORE, core), (RATIO, ratio)):
        if value % count or value > 100 * count:
            raise RequestError(f"{name}: {value} cannot be divided into {count} equal parts of one GPU")
    return Shares(
        count, core // count * PERCENT, -(-memory // (count << 20)), ratio // count * PERCENT, RESOURCE
    )


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``: whole GPUs where the amounts contradict each other."""
    try:
        return shares(pod.spec, resources, {})
    except ValueError:
        parts = max(resources.get(name, 0) for name in (RESOURCE, CORE, RATIO))
        return whole_gpus(max(resources.get(SHARED, 0), -(-parts // 100), 1), RESOURCE)


def claims(pod: Pod) -> Claims | None:
    """See ``Dialect.claims``."""
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        return None
    try:
        named = [_claim(entry) for entry in _entries(text)]
    except (ValueError, TypeError, AttributeError, KeyError):
        return Claims(RESOURCE, complaint=f"{ALLOCATED} cannot be read")
    found, complaint = compared(named, _asked(pod.spec))
    return Claims(RESOURCE, tuple(found), complaint) if found else None


def _asked(spec: PodSpec) -> Shares | None:
    try:
        resources = effective(spec)
        whole_ones = resources.get(nodes.WHOLE_GPU, 0)
        return whole_gpus(whole_ones, RESOURCE) if whole_ones else shares(spec, resources, {})
    except RequestError:
        return None


def _entries(text: str) -> list[Mapping[str, Any]]:
    """The GPUs in the annotation's JSON. Raises ValueError, AttributeError or TypeError."""
    if len(text) > POD_ANNOTATION:
        raise ValueError("too long")
    entries = from_json(text).get("gpu") or []
    check_size(len(entries), 0)
    return list(entries)


def _claim(entry: Mapping[str, Any]) -> Claim:
    resources, minor = entry.get("resources") or {}, entry["minor"]
    amounts = {name: str(resources[name]) for name in (CORE, MEMORY, RATIO) if name in resources}
    if not isinstance(minor, int):
        raise ValueError("no minor number")
    try:
        ratio = 0 if MEMORY in amounts else whole(amounts.get(RATIO, "0"))
        core, memory = whole(amounts.get(CORE, "0")), mib(amounts.get(MEMORY, "0"))
    except QuantityError as error:
        raise ValueError(str(error)) from error
    return Claim(str(minor), core * PERCENT, memory, ratio * PERCENT)
