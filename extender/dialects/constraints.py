"""What a pod requires of its GPUs: model, UUID, sharing mode, CUDA version, NVLink island, separate GPUs.

The model lists of HAMi, Volcano and vgpu-manager match any part of the GPU's name, in any letter case
(``pkg/device/devices.go`` CheckType in Project-HAMi/HAMi at 4707fb02; README of coldzerofear/vgpu-manager at
3d7f66d): ``A10`` matches an A100, too. Stowage's own lists match whole words, so there ``A10`` does not match
an A100. Separators do not matter: GPU feature discovery writes ``NVIDIA-A100-SXM4-40GB`` for the driver's
``NVIDIA A100-...``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from extender.dialects import hami, koordinator, vgpu_manager, volcano
from extender.dialects.pod_resources import RequestError
from extender.untrusted.limits import LISTED_NAMES, NAME, quoted
from packing.model.request import ANY, WHOLE, ModelName, Models, NameFilter, SeparateGpus, Shares

MODELS, NOT_MODELS = "stowage.dev/gpu-models", "stowage.dev/gpu-models-not"
CUDA, NVLINK = "stowage.dev/min-cuda", "stowage.dev/nvlink"
SEPARATE = "stowage.dev/separate-gpus"
ANNOTATIONS = frozenset({MODELS, NOT_MODELS, CUDA, NVLINK, SEPARATE})

_SEPARATE: Mapping[str, SeparateGpus] = {"required": "require", "preferred": "prefer", "none": "ignore"}

_USE_TYPE = (hami.USE_TYPE, vgpu_manager.USE_TYPE, MODELS)
_DENY_TYPE = (hami.DENY_TYPE, vgpu_manager.DENY_TYPE, NOT_MODELS)
_USE_UUID = (hami.USE_UUID, vgpu_manager.USE_UUID, volcano.USE_UUID)
_DENY_UUID = (hami.DENY_UUID, vgpu_manager.DENY_UUID, volcano.DENY_UUID)


def products(annotations: Mapping[str, str]) -> Models:
    """The GPU models that the pod allows. Raises RequestError."""
    allow = (frozenset(_model_names(annotations, key)) for key in _USE_TYPE)
    deny = frozenset(name for key in _DENY_TYPE for name in _model_names(annotations, key))
    return Models(tuple(filter(None, allow)), deny)


def uuids(annotations: Mapping[str, str]) -> NameFilter:
    """The GPUs that the pod allows, by UUID; ``ANY`` for all. Raises RequestError, also if no GPU is left."""
    allow = tuple(filter(None, (frozenset(_listed(annotations, key)) for key in _USE_UUID)))
    deny = frozenset(uuid for key in _DENY_UUID for uuid in _listed(annotations, key))
    if any(group <= deny for group in allow):
        raise RequestError("every GPU that the pod names by UUID is also excluded by the pod")
    return NameFilter(allow, deny) if allow or deny else ANY


def cuda(annotations: Mapping[str, str]) -> int:
    """The CUDA version that the driver must support: 12.4 is 12004, 0 is any. Raises RequestError."""
    text = annotations.get(CUDA)
    if text is None:
        return 0
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", text.strip(), re.ASCII)
    if match is None:
        raise RequestError(f"{CUDA}: {quoted(text)} is not a CUDA version such as 12.4")
    return int(match[1]) * 1000 + int(match[2] or 0)


def nvlink(annotations: Mapping[str, str]) -> Literal["required", "preferred", "none"]:
    """Whether all GPUs must or should be NVLink peers, or need not. Raises RequestError."""
    match annotations.get(NVLINK, "preferred"):
        case "required" | "preferred" | "none" as wish:
            return wish
        case text:
            raise RequestError(f"{NVLINK}: {quoted(text)} is invalid; expected required, preferred or none")


def separate_gpus(annotations: Mapping[str, str]) -> SeparateGpus | None:
    """Whether several devices of a container are to be on different GPUs; None if the pod does not say.
    Raises RequestError."""
    text = annotations.get(SEPARATE)
    if text is not None and text not in _SEPARATE:
        raise RequestError(f"{SEPARATE}: {quoted(text)} is invalid; expected {', '.join(_SEPARATE)}")
    return None if text is None else _SEPARATE[text]


def mode(metadata: Mapping[str, str], shares: Shares | None) -> str:
    """A text that names the sharing modes that the pod allows, "" for all. Raises RequestError.

    Koordinator isolates no pod with all of a GPU's memory (koordinator-sh/koordinator at a7a1b76b, ``Filter``
    in ``pkg/scheduler/plugins/deviceshare/plugin.go``)."""
    text = metadata.get(hami.MODE, "")
    if len(text) > NAME:
        raise RequestError(f"{hami.MODE}: more than {NAME} characters")
    provider = metadata.get(koordinator.ISOLATION, "")
    isolated = shares and shares.resource == koordinator.RESOURCE and shares.memory_milli < WHOLE
    isolation = koordinator.isolation_mode(provider) if provider and isolated else ""
    return ", ".join(filter(None, (text, isolation, vgpu_manager.memory_mode(metadata))))


def _model_names(annotations: Mapping[str, str], key: str) -> list[ModelName]:
    whole = key in (MODELS, NOT_MODELS)
    names = _listed(annotations, key)
    try:
        return [ModelName.of(name, whole=whole) for name in names]
    except ValueError as error:
        raise RequestError(f"{key}: {error}") from None


def _listed(annotations: Mapping[str, str], key: str) -> list[str]:
    """The names in a comma-separated list. Raises RequestError if there are too many, or one is too long."""
    names = [name for part in annotations.get(key, "").split(",") if (name := part.strip())]
    if len(names) > LISTED_NAMES:
        raise RequestError(f"{key}: more than {LISTED_NAMES} names")
    if any(len(name) > NAME for name in names):
        raise RequestError(f"{key}: a name of more than {NAME} characters")
    return names
