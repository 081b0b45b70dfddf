"""Advice for pods that a node rejects. docs/pending.md has the same sentences, with links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, shorten
from extender.untrusted.visible import listed
from extender.verbs.assignment import assignment_problem
from packing.fleet.fleet import Fleet
from packing.model.numa import REFUSING
from packing.model.reasons import Reason
from packing.model.request import Request

_TOO_LITTLE_BESIDE = "other pods on the node leave too little for its free GPUs"
ADVICE: Mapping[Reason, str] = {
    Reason.UNKNOWN_NODE: "wait a moment; if this persists, Stowage cannot watch nodes",
    Reason.NOT_IN_SHARD: (
        "check the setting node_selector and the node's labels; new nodes of the shard are used after 10 s"
    ),
    Reason.UNREADABLE: "see problems in GET /debug/nodes/{name} and the log",
    Reason.REPARTITIONING: "wait: the MIG manager is reconfiguring the node (nvidia.com/mig.config.state)",
    Reason.LAYOUT_CHANGES: "wait: Stowage is changing it (annotation stowage.dev/mig-change, docs/mig.md)",
    Reason.INVALID_LAYOUT: (
        "repair the node's MIG configuration (nvidia.com/gpu.product ends in -MIG-INVALID)"
    ),
    Reason.OVERCOMMITTED: (
        "the node's allocatable shrank under running pods: it accepts no pods until enough of them end"
    ),
    Reason.NO_SUCH_RESOURCE: "nothing: the node does not advertise that resource",
    Reason.GPUS_TOO_SMALL: "request a smaller share, or nodes with larger GPUs",
    Reason.WRONG_MODEL: "allow more models",
    Reason.TOO_FEW_GPUS: "request fewer GPUs per pod",
    Reason.ISLAND_TOO_SMALL: (
        "request fewer GPUs per pod, or do not require NVLink; also where a device plugin may allocate GPUs "
        "outside the island"
    ),
    Reason.NO_FREE_GPUS: "wait until pods there end",
    Reason.FRAGMENTED: "wait, or request less per GPU",
    Reason.SHARES_USED_UP: "wait, or configure the node's device plugin to split GPUs into more shares",
    Reason.WRONG_MODE: "allow another mode, or check the mode in the node's labels and annotations",
    Reason.MISALIGNED: "wait, or request less, so that all of it fits on one NUMA node",
    Reason.NO_FREE_CPU: _TOO_LITTLE_BESIDE,
    Reason.NO_FREE_MEMORY: _TOO_LITTLE_BESIDE,
    Reason.OLD_DRIVER: "upgrade the driver, or let GPU feature discovery label the node",
    Reason.TOO_MANY_REPLICAS: "request one replica",
    Reason.PARTS_OF_ONE_GPU: (
        "request one GPU, or allow replicas: annotation stowage.dev/separate-gpus: none"
    ),
    Reason.PLUGIN_BUSY: "wait, or check why that pod does not start",
    Reason.NO_FREE_PEERS: "wait: free GPUs of the node are, or may be, in different islands",
    Reason.NO_ASSIGNER: "see docs/bind.md: how nodes share GPUs",
    Reason.UNHEALTHY_GPU: "repair it; docs/dialects.md lists the signs that close a node",
    Reason.GANG_DOES_NOT_FIT: (
        "wait, or make the gang smaller: the pod itself fits there, but not all members that must "
        "run together"
    ),
    Reason.OTHER_WAY: "wait, or remove the device plugin or the DRA driver from the node",
    Reason.PART_OF_A_GPU: "let the pod use a fraction: annotation stowage.dev/whole-gpu: false",
    Reason.SMALL_DEVICES: "require less memory: annotation stowage.dev/min-gpu-memory",
    Reason.BELOW_MINIMUM: "request a larger share: the setting minimum_slice_milli rejects smaller shares",
    Reason.LEAVING: "nothing: a taint announces it",
    Reason.ON_SPOT: "wait for other nodes, or declare the pod restartable; only with spot: require",
}
"""By reason, for all but ``FITS``."""
FULL, TOO_SMALL, OTHER = 1, 2, 3
RANKS: Mapping[str, int] = {
    Reason.GANG_DOES_NOT_FIT.text: 0,
    **{
        reason.text: TOO_SMALL
        for reason in (
            *(Reason.GPUS_TOO_SMALL, Reason.TOO_FEW_GPUS, Reason.ISLAND_TOO_SMALL, Reason.NO_FREE_GPUS),
            *(Reason.FRAGMENTED, Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY, Reason.TOO_MANY_REPLICAS),
            *(Reason.PARTS_OF_ONE_GPU, Reason.BELOW_MINIMUM, Reason.SMALL_DEVICES),
        )
    },
    Reason.REPARTITIONING.text: 4,
    Reason.UNKNOWN_NODE.text: 4,
    Reason.NO_SUCH_RESOURCE.text: 5,
}
"""Rank of each reason by its text, the most informative first: the gang does not fit (the pod does), nodes
are ``FULL`` or ``TOO_SMALL`` for the request, ``OTHER`` reasons, and last they have no such resource."""
_NAMED = 3
"""Maximum number of nodes and of reasons named."""


def advice_on(state: State, fleet: Fleet, pod: Pod, request: Request, node: str, reason: Reason) -> str:
    """Advice for this node: specific if possible, or else the general advice."""
    known, problem = "", state.nodes.problems.get(node, "")
    not_counted = reason is Reason.NO_SUCH_RESOURCE and any(name in problem for name, _ in request.devices)
    if reason is Reason.UNREADABLE or not_counted:
        known = problem
    elif reason is Reason.MISALIGNED and (free := state.numa.free(pod, node)):
        known = f"free by NUMA node: {free}; {ADVICE[reason]}"
    elif reason is Reason.NO_SUCH_RESOURCE and (spec := fleet.spec_of(node)) and spec.sharing_resource:
        known = f"nothing: it offers only fractions of GPUs, as {spec.sharing_resource} (docs/dialects.md)"
    elif reason is Reason.NO_ASSIGNER and state.binds:
        known = assignment_problem(state, fleet, pod, request, fleet.rows[node])
    return known or ADVICE.get(reason, "")


def doubts(state: State, pod: Pod, nodes: Iterable[str]) -> Iterator[str]:
    """Sentences about nodes on which the pod fits but kubelet may reject it."""
    found: dict[str, list[str]] = {}
    for node in nodes if state.numa else ():
        if doubt := state.numa.doubt(pod, node):
            found.setdefault(doubt, []).append(node)
    for doubt, of in islice(found.items(), _NAMED):
        named = listed([shorten(node, KEY) for node in of], _NAMED, f" node{'s' * (len(of) > _NAMED + 1)}")
        yield f"NUMA is unknown on {named}, where kubelet may reject the pod: {shorten(doubt)}."


def refused_text(state: State, pod: Pod) -> str:
    """Why kubelet rejected the pod by its NUMA policy, as far as is known; "" if it did not."""
    if not pod.misaligned:
        return ""
    node = shorten(pod.node_name, KEY)
    row = state.fleet.rows.get(pod.node_name, -1)
    if not state.numa:
        why = "the cluster has no NodeResourceTopology, so Stowage does not see NUMA nodes (docs/numa.md)"
    elif doubt := state.numa.doubt(pod, pod.node_name):
        why = shorten(doubt)
    elif state.numa.misaligned(state.fleet, pod, np.array([row]), REFUSING, idle=False)[0]:
        free = state.numa.free(pod, pod.node_name)
        why = "the node could not align it now either" + (f": free by NUMA node {free}" if free else "")
    else:
        why = "the node could align it now: its report has changed, or was late"
    return (
        f"Kubelet on {node} rejected it with TopologyAffinityError: its NUMA policy could not align the free "
        f"resources. {why[:1].upper()}{why[1:]}. Kubelet does not retry it; below is the result for a copy."
    )
