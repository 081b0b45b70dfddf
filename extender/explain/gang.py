"""The gang of a pod in words."""

from __future__ import annotations

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten


def describe_gang(state: State, pod: Pod) -> str:
    """Which gang the pod belongs to, how many members run, and what is held for it; "" for no gang."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return ""
    running, known = state.gangs.running(gang.key), len(state.gangs.members(gang.key))
    text = f"It belongs to the gang {shorten(gang.key, KEY)}: {running} of {max(known, 1)} members run"
    text += f", {gang.minimum} must" if gang.minimum else ", any number may"
    held = state.gang_holds.describe(gang.key)
    return f"{text}; {held}" if held else text
