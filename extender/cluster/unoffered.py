"""GPUs of a node that are not in its allocatable resources: the node offers none of its GPUs (its device
plugin or driver is gone), its inventory is unreadable, or its GPUs are only in ResourceSlices. If the node
offers some GPUs, the others are ``not_offered``.

Tables and sums include these GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from extender.cluster.other_resources import asked_by
from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.dialects.shared_gpus import NVIDIA, is_gpu_resource
from extender.dra.cel.program import Unsupported
from extender.dra.node_devices import NodeDevices
from extender.inventory.gpu_labels import read_gpu_labels
from extender.inventory.node_state import FOR_MACHINES, OtherAllocator, other_allocator
from extender.untrusted.limits import GPUS_PER_NODE, quoted
from packing.fleet.stranded import closed_reason
from packing.model import node_spec
from packing.model.gpu_catalog import find_model
from packing.model.reasons import Reason

_UNREAD_CLAIM = "an unreadable claim may hold any of them"
_INCOMPLETE = "ResourceSlices are missing or unreadable"
_NAMED = 4
_ONLY_CLAIMS, _BY_CLASS = "its GPUs are for claims only", "its GPUs come from ResourceSlices"


@dataclass(frozen=True, slots=True)
class Unoffered:
    """``gpus``: their number, 0 if unknown. ``used``: number held by pods or claims, ``held``: by pod, parts
    of GPUs rounded up. ``free``: number that can be allocated to claims, without tainted GPUs, of them
    ``whole`` as a whole. ``used`` and ``free`` may be fractional. ``note``: why the node does not offer them.
    ``claims``: whether they can be allocated to claims. ``memory_mib``: of all of them, 0 if unknown.
    ``beside``: the node has these in addition to those that it offers."""

    gpus: int
    model: str
    used: float
    held: tuple[tuple[str, int], ...]
    free: float
    whole: int
    note: str
    claims: bool = False
    memory_mib: int = 0
    free_mib: int = 0
    beside: bool = False


def closed_text(state: State, name: str) -> str:
    """Why the node accepts no pods, according to the fleet, or else to the cluster (cordoned, not ready); ""
    if it accepts pods."""
    reason = closed_reason(state.fleet.arrays, state.fleet.rows[name])
    return reason.text if reason is not Reason.FITS else state.nodes.closed.get(name, "")


def unoffered(state: State, name: str) -> Unoffered | None:
    """The GPUs of a node; None if it offers some of them, or has none as far as is known."""
    spec = state.fleet.spec_of(name)
    if spec is None or spec.gpus:
        return None
    if devices := in_slices(state, name, state.devices.on_node(name, state.nodes.labels_of(name))):
        return devices
    count = state.nodes.unoffered.get(name)
    if count is None:
        return None
    other = other_allocator(state.nodes[name])
    held = dict(_held(state, name, other))
    used = sum(held.values())
    gpus = max(count, ceil(used))
    note = f"offers none of its {gpus or ''} GPUs".replace("  ", " ")
    if other:
        note = other.note
    elif not closed_text(state, name):
        note += ": its device plugin or driver may be down"
    model = _model(read_gpu_labels(state.nodes.labels_of(name)).product)
    problem = state.nodes.problems.get(name, "")
    of_pods = tuple((key, ceil(number)) for key, number in held.items())
    return Unoffered(gpus, model, float(used), of_pods, 0, 0, problem or note)


def of_virtual_node(state: State, name: str) -> Unoffered | None:
    """The GPUs of a virtual node with more of them than a machine has; None for every other node."""
    spec = state.fleet.spec_of(name)
    pools = [pool for pool in spec.pools if pool.is_many_gpus] if spec else []
    if not pools or spec is None:
        return None
    used = float(sum(number for _, number in _held(state, name, None)))
    gpus = sum(pool.total for pool in pools)
    free = max(0, gpus - ceil(used))
    return Unoffered(gpus, spec.model or spec.product, used, (), free, free, "", claims=True)


def _model(product: str) -> str:
    """The name in the catalog, or else the product name. Labels have dashes instead of spaces."""
    model = find_model(product.replace(" ", "-"))
    return model.name if model else product


def _held(state: State, name: str, other: OtherAllocator | None) -> Iterator[tuple[str, Fraction]]:
    for pod in state.pods.on_node(name):
        request = bound_request(pod).request
        counted = sum(count for resource, count in request.devices if is_gpu_resource(resource))
        number = Fraction(counted + (request.shares.count if request.shares else 0))
        asked = asked_by(pod)
        for resource, part in other.part.items() if other else ():
            number += min(asked.get(resource, 0) * part, Fraction(GPUS_PER_NODE))
        if number:
            yield pod.key, number


def missing_gpus(state: State, name: str) -> int:
    """Number of GPUs that a node with other GPUs does not offer; 0 if ResourceSlices may offer them."""
    missing, labels = state.nodes.unoffered.get(name, 0), state.nodes.labels_of(name)
    return 0 if missing and state.devices.on_node(name, labels).has_pools else missing


def not_offered(state: State, name: str) -> str:
    """The GPUs that are unhealthy, missing on a node that offers others, or for virtual machines,
    in words; "" for none."""
    spec, missing = state.fleet.spec_of(name), missing_gpus(state, name)
    if spec and spec.gpus and (sick := state.nodes.unhealthy.get(name, 0)):
        return f"{sick} of its {len(spec.gpus)} GPUs {'is' if sick == 1 else 'are'} unhealthy"
    if spec is None or not spec.gpus or not missing:
        return FOR_MACHINES if spec and spec.mode == node_spec.FOR_MACHINES else ""
    text = f"offers {len(spec.gpus)} of its {len(spec.gpus) + missing} GPUs"
    labels = read_gpu_labels(state.nodes.labels_of(name))
    counts_more = labels.counted_by_gfd and labels.gpu_count > len(spec.gpus) == 1
    registers_one = counts_more and NVIDIA[0] not in state.nodes[name].capacity  # not more than allocatable
    return text + ": on WSL, one device stands for all of them" * registers_one


def rejections(state: State, name: str) -> str:
    """The pods that kubelet rejected on a node where no GPU pod runs, in words; "" for fewer than two."""
    count = sum(node == name for node in state.pods.not_admitted.values())
    running = (pod for pod in state.pods.on_node(name) if pod.phase == "Running")
    if count < 2 or any(bound_request(pod).request.wants_gpu for pod in running):
        return ""
    return f"kubelet rejected {count} GPU pods with UnexpectedAdmissionError, and no GPU pod runs"


def unoffered_note(state: State, name: str) -> str:
    """Why the node does not offer some of its GPUs; "" if it offers all."""
    hidden = unoffered(state, name)
    return hidden.note if hidden else not_offered(state, name)


def unoffered_counts(state: State) -> dict[str, int]:
    """Number of GPUs that each node offers neither to pods nor to claims; 0 if unknown."""
    labels_of, on_node = state.nodes.labels_of, state.devices.on_node
    counts = state.nodes.unoffered.items()
    return {
        name: count
        for name, count in counts
        if not on_node(name, labels_of(name)).has_pools and not other_allocator(state.nodes[name])
    }


def device_problem(state: State, on_node: NodeDevices, index: int) -> str:
    """Why a device of a node cannot be allocated although no known claim holds it; "" for no reason."""
    if _may_be_held(state, on_node):
        return _UNREAD_CLAIM
    try:
        taints = state.devices.taints_of(on_node.device_id(index), on_node.device(index))
    except Unsupported as error:
        return str(error)
    keys = (quoted(taint.key) for taint in taints if taint.blocks_scheduling)
    return next((f"has the taint {key}" for key in keys), "")


def _may_be_held(state: State, on_node: NodeDevices) -> bool:
    return on_node.holdings_unknown or state.devices.any_device_may_be_held


def in_slices(state: State, name: str, on_node: NodeDevices) -> Unoffered | None:
    """The GPUs among a node's DRA devices."""
    gpus, taken = dict[str, list[str]](), set[str]()
    used, left = defaultdict[str, float](float), defaultdict[str, float](float)
    product, mib = "", defaultdict[str, int](int)
    for index, (gpu, fraction, facts) in on_node.gpus().items():
        mib[gpu] = max(mib[gpu], int(facts.memory_mib / fraction) if fraction else 0)
        product = product or facts.product
        holders = [state.devices.claims[key] for key in state.devices.holders(on_node.device_id(index))]
        pods = [f"{claim.namespace}/{pod}" for claim in holders for pod in claim.reserved_for]
        gpus.setdefault(gpu, []).extend(pods)
        held = fraction * on_node.used_fraction(index) if holders else 0.0
        used[gpu] = min(used[gpu] + held, 1.0)
        allocatable = on_node.available.is_available(index) and not device_problem(state, on_node, index)
        left[gpu] += (fraction - held) * allocatable
        if holders or not allocatable:
            taken.add(gpu)
    incomplete = state.devices.lacks_gpus(name)
    if not gpus and not incomplete:
        return None
    by_pod = Counter(pod for pods in gpus.values() for pod in dict.fromkeys(pods))
    offered = _BY_CLASS if state.devices.extended_resources else _ONLY_CLAIMS
    notes = offered, _INCOMPLETE * incomplete, _UNREAD_CLAIM * _may_be_held(state, on_node)
    note, free = "; ".join(filter(None, notes)), {gpu: min(left[gpu], 1 - used[gpu]) for gpu in gpus}
    if len(gpus) < (count := state.nodes.unoffered.get(name, 0)):
        note = f"{note}; ResourceSlices have {len(gpus)} of its {count} GPUs"
    count = max(len(gpus), count)
    in_use, held_by, whole = round(sum(used.values()), 3), tuple(by_pod.items()), len(gpus) - len(taken)
    free_mib = sum(mib[gpu] * part for gpu, part in free.items())
    memory = sum(mib.values()), int(free_mib)
    return Unoffered(
        count, _model(product), in_use, held_by, round(sum(free.values()), 3), whole, note, True, *memory
    )
