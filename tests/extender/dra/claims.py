"""Claims for NVIDIA's devices, as users write them (``spec.devices``)."""

from __future__ import annotations

from typing import Any


def request(**more: object) -> dict:
    return {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **more}}


def selectors(*expressions: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}


def many(*requests: dict, constraints: list | None = None) -> dict:
    """A claim of these requests, each with a name of its own."""
    named = [one | {"name": f"r{number}"} for number, one in enumerate(requests)]
    return {"requests": named, "constraints": constraints or []}


def gpu_claim(**more: object) -> dict[str, Any]:
    """A claim of one request for GPUs."""
    return {"requests": [request(**more)]}


def allocated(*results: dict, **more: Any) -> dict:
    """The status of a claim with these devices, of pool n0 unless they name another."""
    named = [{"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0", **one} for one in results]
    return {"allocation": {"devices": {"results": named}}, **more}
