"""What an eviction costs, for the service and the replay. docs/preemption.md has the reasons."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from packing.fleet.arrays import Doubles

_Numbers = TypeVar("_Numbers", float, Doubles)

RESTART = 300.0
"""Seconds of work that a restart costs beside what was computed since the last checkpoint: the pod waits for
a node, pulls its image, loads data and model, and warms up. Minutes for most training jobs."""
SMALLEST = 0.01
"""GPUs: a pod with less counts as this, so that pods without a GPU do not leave for nothing."""
ROOM_SECONDS = 3600.0
"""GPU-seconds for each GPU that a placement costs by the policy: a bad one stays for about an hour."""


def gpu_seconds(gpus: _Numbers, lost: _Numbers, restarts: _Numbers) -> _Numbers:
    """What the eviction of a pod, or of each of many, costs. ``gpus`` that it holds, seconds of work that are
    ``lost``, and ``restarts``: how often its job lost a pod before."""
    cost: _Numbers = np.maximum(gpus, SMALLEST) * (lost + RESTART * (1 + restarts))
    return cost
