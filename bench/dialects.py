"""The synthetic cluster in the format of another GPU sharing system, so that its extender can also read it.

Nodes and GPUs are the same in every dialect. Bound pods have whole GPUs, and arriving pods request as many
fractions of GPUs as they request GPUs in ``nvidia``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.node_manifest import GPUS_PER_NODE, Manifest

_SHARES = 10
"""Default number of shares into which HAMi's device plugin divides a GPU (``deviceSplitCount``)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """``node`` and ``pod`` convert a manifest of ``bench.cluster`` to the dialect, in place. ``pod`` takes
    the number of requested GPUs, and for a bound pod the first of its GPUs, else -1.
    """

    node: Callable[[Manifest], None]
    pod: Callable[[Manifest, int, int], None]


def _hami_node(node: Manifest) -> None:
    """For facts see ``extender/dialects/hami.py``."""
    labels = node["metadata"]["labels"]
    gpu = {
        "count": _SHARES,
        "devmem": int(labels["nvidia.com/gpu.memory"]),
        "devcore": 100,
        "type": labels["nvidia.com/gpu.product"],
        "mode": "hami-core",
        "health": True,
    }
    name = node["metadata"]["name"]
    gpus = [{"id": _uuid(name, index), "index": index, **gpu} for index in range(GPUS_PER_NODE)]
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = json.dumps(gpus)
    # Separate objects: capacity and allocatable of the manifest may be the same.
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts] = node["status"][amounts] | {"nvidia.com/gpu": str(_SHARES * GPUS_PER_NODE)}


def _hami_pod(pod: Manifest, gpus: int, first: int) -> None:
    """For facts see ``extender/dialects/hami.py``."""
    if not gpus:
        return
    part = 100 if first >= 0 else 40
    for container in pod["spec"]["containers"]:
        resources = container["resources"]
        asked = {"nvidia.com/gpumem-percentage": str(part), "nvidia.com/gpucores": str(part)}
        container["resources"] = {kind: amounts | asked for kind, amounts in resources.items()}
    if first >= 0:
        node = pod["spec"]["nodeName"]
        devices = [f"{_uuid(node, first + index)},NVIDIA,0,100:" for index in range(gpus)]
        pod["metadata"]["annotations"] |= {
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-devices-allocated": "".join(devices) + ";",
        }


def _uuid(node: str, index: int) -> str:
    return f"GPU-{node.partition('.')[0]}-{index}"


def _unchanged(*_: object) -> None:
    """Whole GPUs of NVIDIA's device plugin, as written by ``bench.cluster``."""


DIALECTS: Mapping[str, Dialect] = {
    "nvidia": Dialect(_unchanged, _unchanged),
    "hami": Dialect(_hami_node, _hami_pod),
}
