"""Which MIG layouts a node's GPUs can be given: the ConfigMap ``<node>-mig-config`` of NVIDIA's MIG manager.

Facts (NVIDIA/mig-parted at bd7160f4): labels ``nvidia.com/node-name`` and ``app.kubernetes.io/component:
nvidia-mig-manager`` and the key ``config.yaml`` in ``cmd/nvidia-mig-manager/main.go``; one layout
``all-<profile>`` per profile that the hardware reports, with the most instances of it that a GPU takes, and
``device-filter`` where GPUs of several models share the node, in ``pkg/mig/builder/builder.go``.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from extender.inventory.division import InventoryError
from packing.catalogue import parse_profile

COMPONENT = ("app.kubernetes.io/component", "nvidia-mig-manager")
NODE = "nvidia.com/node-name"
KEY = "config.yaml"


def most_instances(data: Mapping[str, str]) -> dict[str, int]:
    """The MIG profiles that a node's GPUs can have, and how many instances of one a GPU takes at most.

    ``data`` is the ConfigMap's. Names are as resources have them (``1g.10gb.me``, not ``1g.10gb+me``). Where
    GPUs differ, the largest number. Raises InventoryError.
    """
    try:
        content = yaml.safe_load(data.get(KEY, ""))
    except yaml.YAMLError as error:
        raise InventoryError(f"{KEY} of the MIG manager is not YAML") from error
    configs = content.get("mig-configs") if isinstance(content, dict) else None
    if not isinstance(configs, dict):
        raise InventoryError(f"{KEY} of the MIG manager has no mig-configs")
    most: dict[str, int] = {}
    for layouts in configs.values():
        for layout in layouts if isinstance(layouts, list) else ():
            for name, count in _devices(layout).items():
                most[name] = max(most.get(name, 0), count)
    return most


def _devices(layout: object) -> dict[str, int]:
    enabled = isinstance(layout, dict) and layout.get("mig-enabled") is True
    devices = layout.get("mig-devices") if enabled and isinstance(layout, dict) else None
    if not isinstance(devices, dict):
        return {}
    named = {str(name).replace("+", "."): n for name, n in devices.items() if isinstance(n, int)}
    return {name: count for name, count in named.items() if parse_profile(name) and count > 0}
