"""What a pod demands of the GPUs beside their number: model, UUID, mode, CUDA version, NVLink island.

Model lists of HAMi, Volcano and vgpu-manager match any part of the GPU's name, in any letter case
(``pkg/device/devices.go`` CheckType in Project-HAMi/HAMi at 4707fb02; README of coldzerofear/vgpu-manager
at 3d7f66d): ``A10`` means an A100, too. Ours match whole words, so that ``A10`` does not. Separators do not
matter, since GPU feature discovery writes ``NVIDIA-A100-SXM4-40GB`` where the driver says ``NVIDIA
A100-...``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from extender.dialects.pod_resources import RequestError
from extender.dialects.sharing import hami, vgpu_manager, volcano
from extender.untrusted.limits import LISTED_NAMES, NAME, quoted
from packing.model.request import ModelName, Models, NameFilter

MODELS, NOT_MODELS = "stowage.dev/gpu-models", "stowage.dev/gpu-models-not"
CUDA, NVLINK = "stowage.dev/min-cuda", "stowage.dev/nvlink"
READS = frozenset({MODELS, NOT_MODELS, CUDA, NVLINK})

_USE_TYPE = (hami.USE_TYPE, vgpu_manager.USE_TYPE, MODELS)
_DENY_TYPE = (hami.DENY_TYPE, vgpu_manager.DENY_TYPE, NOT_MODELS)
_USE_UUID = (hami.USE_UUID, vgpu_manager.USE_UUID, volcano.USE_UUID)
_DENY_UUID = (hami.DENY_UUID, vgpu_manager.DENY_UUID, volcano.DENY_UUID)


def products(said: Mapping[str, str]) -> Models:
    """What the names of the GPU's model must match. Raises RequestError."""
    allow = (frozenset(_names(said, key)) for key in _USE_TYPE)
    deny = frozenset(name for key in _DENY_TYPE for name in _names(said, key))
    return Models(tuple(filter(None, allow)), deny)


def uuids(said: Mapping[str, str]) -> NameFilter:
    """UUIDs of GPUs. Raises RequestError where every GPU that is named is ruled out, too."""
    allow = tuple(filter(None, (frozenset(_listed(said, key)) for key in _USE_UUID)))
    deny = frozenset(uuid for key in _DENY_UUID for uuid in _listed(said, key))
    if any(group <= deny for group in allow):
        raise RequestError("every GPU that the pod names by UUID is ruled out by the pod, too")
    return NameFilter(allow, deny)


def cuda(said: Mapping[str, str]) -> int:
    """The CUDA version that the driver must support: 12.4 is 12004; 0 for any. Raises RequestError."""
    text = said.get(CUDA)
    if text is None:
        return 0
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?", text.strip(), re.ASCII)
    if match is None:
        raise RequestError(f"{CUDA}: {quoted(text)} is not a CUDA version such as 12.4")
    return int(match[1]) * 1000 + int(match[2] or 0)


def island(said: Mapping[str, str]) -> bool:
    """Whether the GPUs must be NVLink peers. Raises RequestError."""
    text = said.get(NVLINK)
    if text not in (None, "required"):
        raise RequestError(f"{NVLINK}: {quoted(text)} is not known; the one value is 'required'")
    return text is not None


def mode(said: Mapping[str, str]) -> str:
    """The ways in which GPUs may be divided for the pod, in any text; "" for any. Raises RequestError."""
    text = said.get(hami.MODE, "")
    if len(text) > NAME:
        raise RequestError(f"{hami.MODE}: more than {NAME} characters")
    return text


def _names(said: Mapping[str, str], key: str) -> list[ModelName]:
    whole = key in (MODELS, NOT_MODELS)
    return [_name(key, text, whole=whole) for text in _listed(said, key)]


def _name(key: str, text: str, *, whole: bool) -> ModelName:
    try:
        return ModelName.of(text, whole=whole)
    except ValueError as error:
        raise RequestError(f"{key}: {error}") from None


def _listed(said: Mapping[str, str], key: str) -> list[str]:
    """The names of a list that is parted by commas. Raises RequestError where there are too many, or one is
    too long."""
    if key not in said:
        return []
    names = [name for part in said[key].split(",") if (name := part.strip())]
    if len(names) > LISTED_NAMES:
        raise RequestError(f"{key}: more than {LISTED_NAMES} names")
    if any(len(name) > NAME for name in names):
        raise RequestError(f"{key}: a name of more than {NAME} characters")
    return names
