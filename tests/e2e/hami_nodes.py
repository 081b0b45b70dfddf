"""Nodes whose GPUs HAMi shares, as its device plugin registers them."""

import json

from .controlplane.api import Object
from .sharing import GPU
from .workload import node

MIG_PROFILES: list[Object] = [
    {
        "name": name,
        "memoryMB": mib,
        "core": core,
        "sliceCount": int(name[0]),
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for name, mib, core, size, starts in (
        ("1g.5gb", 4864, 15, 1, range(7)),
        ("2g.10gb", 9984, 29, 2, (0, 2, 4)),
        ("3g.20gb", 19968, 43, 4, (0, 4)),
        ("7g.40gb", 40192, 100, 8, (0,)),
    )
]
"""The profiles of an A100 with 40 GB, as in HAMi's register."""


def hami_node(name: str, gpus: int, *, slots: int) -> Object:
    """A node of HAMi with H100s, each of which takes at most `slots` pods."""
    return _registered(
        name,
        slots * gpus,
        [
            {**_device(name, index, slots), "devmem": 81559, "type": "NVIDIA H100", "mode": "hami-core"}
            for index in range(gpus)
        ],
    )


def hami_mig_node(name: str, gpus: int) -> Object:
    """A node of HAMi with A100s in MIG mode, which makes instances on demand."""
    return _registered(
        name,
        7 * gpus,
        [
            {
                **{**_device(name, index, 7), "devmem": 40960, "type": "NVIDIA A100-SXM4-40GB"},
                **{"mode": "mig", "migProfiles": MIG_PROFILES},
            }
            for index in range(gpus)
        ],
    )


def _device(name: str, index: int, slots: int) -> Object:
    return {"id": uuid(name, index), "index": index, "count": slots, "devcore": 100, "health": True}


def _registered(name: str, slots: int, register: list[Object]) -> Object:
    one = node(name, {GPU: slots})
    one["metadata"]["annotations"] = {
        "hami.io/node-nvidia-register": json.dumps(register),
        "hami.io/node-handshake": "Reported 2026-01-01 00:00:00",
    }
    return one


def uuid(node_name: str, index: int) -> str:
    return f"GPU-{node_name}-{index}"
