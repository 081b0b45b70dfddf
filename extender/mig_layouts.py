"""The layouts of NVIDIA's MIG manager, read from the ``config.yaml`` of its ConfigMap.

Facts (NVIDIA/mig-parted at bd7160f4): the form is ``api/spec/v1/spec.go``; GPUs go by their index in NVML's
order, ``device-filter`` by PCI device and vendor id, and where two entries are for one GPU the later one
counts (``cmd/nvidia-mig-parted/assert/assert.go``). A node's own ConfigMap bears its name in the label
``nvidia.com/node-name`` (``cmd/nvidia-mig-manager/main.go``). What cannot be read is a problem of the
ConfigMap and never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import yaml

from extender.objects import MigGroup, MigLayout

KEY = "config.yaml"
NODE_LABEL = "nvidia.com/node-name"
OWN = "app.kubernetes.io/component=nvidia-mig-manager"
"""Selects the ConfigMaps that the MIG manager writes itself, one for each node."""
MOST_GPUS = 64
_MOST_INSTANCES = 64
"""More GPUs in a node, or instances on a GPU, than this is a mistake."""

_Read: TypeAlias = tuple[Mapping[str, MigLayout], str]


class _Malformed(ValueError):
    """An entry is not of the form that the MIG manager takes."""


@lru_cache(maxsize=16)
def layouts_of(text: str) -> _Read:
    """The layouts of a ``config.yaml`` by name, without those that cannot be read, and what is wrong.

    Nodes of one kind have ConfigMaps of one text, so equal texts share their layouts.
    """
    try:
        content = yaml.load(text, yaml.SafeLoader)  # the one in C falls over deep nesting, with the process
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, f"{KEY} is not YAML"
    configs = content.get("mig-configs") if isinstance(content, dict) else None
    if not isinstance(configs, dict):
        return {}, f"{KEY} has no mig-configs"
    layouts, wrong = {}, []
    for name, entries in configs.items():
        try:
            layouts[str(name)] = tuple([_group(entry) for entry in _list(entries)])
        except _Malformed as error:
            wrong.append(f"layout {str(name)[:63]} is left out: {error}")
    return layouts, "; ".join(wrong[:3])


def _group(entry: object) -> MigGroup:
    if not isinstance(entry, dict):
        raise _Malformed("an entry is no map")
    enabled, instances = entry.get("mig-enabled"), entry.get("mig-devices") or {}
    if not isinstance(enabled, bool) or not isinstance(instances, dict):
        raise _Malformed("mig-enabled must be true or false, mig-devices a map")
    counts = {str(name): _number(n, _MOST_INSTANCES, f"{name}") for name, n in instances.items()}
    if counts and not enabled:
        raise _Malformed("mig-devices while mig-enabled is false")
    wanted = entry.get("device-filter") or []
    return MigGroup(
        _indices(entry.get("devices")),
        tuple(str(one).lower() for one in ([wanted] if isinstance(wanted, str) else _list(wanted))),
        tuple(counts.items()) if enabled else None,
    )


def _indices(devices: object) -> tuple[int, ...] | None:
    if devices == "all":
        return None
    return tuple([_number(index, MOST_GPUS - 1, "the index of a GPU") for index in _list(devices)])


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Malformed(f"{str(value)[:63]!r} is no list")
    return value


def _number(value: object, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _Malformed(f"{what[:63]} must be a whole number from 0 to {most}, not {str(value)[:63]}")
    return value
