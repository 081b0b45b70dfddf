"""The gang of a pod in words."""

from __future__ import annotations

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten


def describe_gang(state: State, pod: Pod) -> str:
    """Which gang the pod belongs to, how many members run, how many have succeeded or are held by gates, and
    what is held for it; "" for no gang."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return ""
    members = {one.key: one for one in state.gangs.members(gang.key)}
    members.setdefault(pod.key, pod)
    text = f"It belongs to the gang {shorten(gang.key, KEY)}: "
    text += f"{state.gangs.running(gang.key)} of {len(members)} members run"
    text += f", {gang.succeeded} more succeeded" if gang.succeeded else ""
    text += f", {gang.minimum} must" if gang.minimum else ", any number may"
    gated = sum(1 for one in members.values() if one.gates and not one.node_name)
    if gated:
        text += f"; {gated} held by scheduling gates"
        free = max(len(members), gang.minimum - gang.succeeded) - gated
        text += ", so the minimum cannot run yet" if free + gang.succeeded < gang.minimum else ""
    held = state.gang_holds.describe(gang.key)
    return f"{text}; {held}" if held else text
