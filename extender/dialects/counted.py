"""Counted devices behind a device plugin: ``nvidia.com/gpu: 2``, ``nvidia.com/mig-1g.10gb: 1``.

What one device is (a whole GPU, a replica of a shared one, a MIG instance) is the node's affair: the same
``nvidia.com/gpu`` is a whole GPU on one node and a MIG device under the single strategy on another.
Source: NVIDIA/k8s-device-plugin, README "Shared access to GPUs" and the MIG strategies.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.inventory.devices import is_gpu_resource


def devices(resources: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The GPU devices among a pod's resources, by name."""
    return tuple(
        sorted((name, count) for name, count in resources.items() if count and is_gpu_resource(name))
    )
