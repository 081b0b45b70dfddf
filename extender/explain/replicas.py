"""What a node gives for counted devices that are only parts of GPUs: "2 of 4 replicas of one T4"."""

from __future__ import annotations

from extender.untrusted.limits import NAME, shorten
from packing.fleet.fleet import Fleet
from packing.fleet.separate_gpus import idle_gpus
from packing.model.request import Request


def replicas_given(fleet: Fleet, row: int, request: Request) -> str:
    """What the request would get of such devices on this node; "" where it asks for whole GPUs, or names the
    parts itself. With several GPUs it says whether the device plugin is certain to choose different ones."""
    spec = fleet.specs[row] if row >= 0 else None
    asked, texts = dict(request.devices), []
    for pool in spec.pools if spec else ():
        count = asked.get(pool.resource, 0)
        if not count or not spec or pool.separate is None or not pool.gpus:
            continue
        parts = "replicas" if pool.separate else "MIG instances"
        model, gpus = shorten(spec.model or spec.product or "GPU", NAME), len(pool.gpus)
        text = f"{count} of {pool.total} {parts} of {'one' if gpus == 1 else gpus} {model}"
        if gpus > 1 and count > 1:
            certain = int(idle_gpus(fleet.arrays, fleet.names.resources[pool.resource])[row]) >= count
            text += ", of different GPUs" if certain else ", perhaps of the same GPU"
        texts.append(text)
    return "; ".join(texts)
