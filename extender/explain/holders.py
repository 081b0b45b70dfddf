"""Who holds the GPUs: the pods on each node, with their devices, since when, and until when."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from extender.background import with_turns
from extender.cluster.state import State
from extender.explain.answers import HolderLine
from extender.explain.job_runs import controller_text
from extender.explain.node import PartView, view_node
from extender.k8s.affinity import label_requirements
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten
from extender.verbs.eviction.node_pods import gpus_held
from packing.model.request import WHOLE


def check_namespace(state: State, namespace: str | None) -> None:
    """Raises ``ValueError`` for a namespace without pods."""
    if namespace and all(pod.namespace != namespace for pod in state.pods.values()):
        raise ValueError(f"there are no pods in the namespace {quoted(namespace)}")


async def holder_lines(
    state: State, nodes: Sequence[str] = (), namespace: str = "", selector: str = ""
) -> list[HolderLine]:
    """The pods with GPUs by node, the largest first: of all nodes or some, of all namespaces or one, and with
    labels that match ``selector``. Other tasks run in between. Raises ``ValueError`` for a node or namespace
    that does not exist, and a selector that is invalid or matches no pod with GPUs."""
    check_namespace(state, namespace)
    if unknown := [name for name in nodes if name not in state.fleet.rows]:
        raise ValueError(f"there is no node {quoted(unknown[0])}")
    required = label_requirements(selector) if selector else ()
    each = (holders_on(state, name) for name in nodes or sorted(state.fleet.rows))
    found = [line async for on_node in with_turns(each, 1) for line in on_node]
    lines = [
        line
        for line in found
        if line.pod.startswith(f"{namespace}/" * bool(namespace))
        and all(requirement.matches(_labels(state, line.pod)) for requirement in required)
    ]
    if selector and not lines:
        raise ValueError(f"no pod with GPUs has labels that match {quoted(selector)}")
    return lines


def _labels(state: State, key: str) -> Mapping[str, str]:
    pod = state.pods.get(key)
    return pod.labels if pod else {}


def holders_on(state: State, node: str) -> list[HolderLine]:
    """The pods with GPUs of a node, the largest first."""
    view, row = view_node(state, node, 0.0), state.fleet.rows.get(node, -1)  # it may be gone
    gpus, devices = defaultdict[str, float](float), defaultdict[str, list[str]](list)
    resources: dict[str, dict[str, int]] = {}
    for holder in view.holders if view else ():
        pod = state.pods.get(holder.pod)
        held = [taken for taken in (state.pods.allocations_of(pod) if pod else ()) if taken.row == row]
        if any(taken.has_gpus for taken in held):
            gpus[holder.pod] = gpus_held(state.fleet, held)
            resources[holder.pod] = holder.devices
            devices[holder.pod] += holder.device_ids or map(_part_text, holder.parts)
    for device in view.devices if view else ():
        for key in device.pods:
            gpus[key] += device.used_milli / WHOLE / len(device.pods)
            devices[key].append(device.device)
    for key, count in view.unoffered.held if view and view.unoffered else ():
        gpus.setdefault(key, count)
    order = sorted(gpus, key=lambda key: (-gpus[key], key))
    return [_holder(state, node, key, gpus[key], resources.get(key, {}), devices[key]) for key in order]


def _part_text(part: PartView) -> str:
    if part.compute_milli == WHOLE or not (part.compute_milli or part.memory_mib):
        return f"GPU {part.gpu}"
    compute = f"{part.compute_milli / 10:g} %" * bool(part.compute_milli)
    memory = f"{part.memory_mib / 1024:.3g} GiB" * bool(part.memory_mib)
    return f"GPU {part.gpu} ({', '.join(filter(None, (compute, memory)))})"


def _holder(
    state: State, node: str, key: str, gpus: float, resources: dict[str, int], devices: Sequence[str]
) -> HolderLine:
    pod = state.pods.get(key)
    since = (pod.started or pod.created or None) if pod else None
    end, limit = state.end_costs.declared_end(pod) if pod else (math.inf, "")
    until = end if since and math.isfinite(end) else None
    if pod and pod.deleting and pod.ends:
        until, limit = pod.ends, "deletionGracePeriodSeconds"
    return HolderLine(
        shorten(key, KEY),
        shorten(node, KEY),
        round(gpus, 3),
        {shorten(name, KEY): count for name, count in resources.items()},
        tuple(shorten(device, KEY) for device in devices[:LISTED_NAMES]),
        queue=state.rights.queues.name_of(pod) if pod else "",
        priority=pod.priority if pod else 0,
        since=since,
        until=until,
        limit=limit if until else "",
        job=controller_text(pod) if pod else "",
    )
