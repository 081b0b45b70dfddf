"""GPUs that a node has and that Stowage cannot place pods on: those of a node that offers none of them (its
device plugin or driver is gone), whose inventory cannot be read, or that are in ResourceSlices only.

No GPU vanishes from a table or a sum because of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.cluster.state import State
from extender.dialects.pod_request import bound_request
from extender.explain.closed import closed_text
from extender.inventory.devices import is_gpu_resource
from extender.inventory.gpu_labels import read_gpu_labels
from packing.model.gpu_catalogue import find_model

_GPU_DRIVER = "gpu."
ONLY_CLAIMS = "only claims get its GPUs"


@dataclass(frozen=True, slots=True)
class Unoffered:
    """``gpus``: how many; 0 is not known. ``held``: by pod, how many it has, if it has any still. ``free``:
    those that claims can get. ``note``: what is the matter; ``closed``: why the node takes no pods whatever
    it offers, "" if nothing says so."""

    gpus: int
    model: str
    held: tuple[tuple[str, int], ...]
    free: int
    note: str
    closed: str

    @property
    def used(self) -> int:
        """How many pods have."""
        return min(sum(count for _, count in self.held), self.gpus)


def unoffered(state: State, name: str) -> Unoffered | None:
    """The GPUs of a node, None where it offers some, or has none as far as is known."""
    row = state.fleet.rows.get(name)
    spec = state.fleet.specs[row] if row is not None else None
    if row is None or spec is None or spec.gpus:
        return None
    if devices := _in_slices(state, name, row):
        return devices
    count = state.nodes.unoffered.get(name)
    if count is None:
        return None
    held = tuple(_held(state, name))
    gpus = max(count, sum(number for _, number in held))
    note, closed = f"offers none of its {gpus} GPUs", closed_text(state, name, row)
    note += "" if closed else ": its device plugin or driver may be down"
    product = read_gpu_labels(state.nodes.labels_of(name)).product
    model = find_model(product)
    problem = state.nodes.problems.get(name, "")
    return Unoffered(gpus, model.name if model else product, held, 0, problem or note, closed)


def _held(state: State, name: str) -> Iterator[tuple[str, int]]:
    for pod in state.pods.on_node(name):
        request = bound_request(pod).request
        counted = sum(count for resource, count in request.devices if is_gpu_resource(resource))
        if number := counted + (request.shares.count if request.shares else 0):
            yield pod.key, number


def _in_slices(state: State, name: str, row: int) -> Unoffered | None:
    """A GPU is all devices with one UUID, such as its MIG instances."""
    on_node = state.devices.on_node(name, state.nodes.labels_of(name))
    gpus: dict[str, list[str]] = {}
    taken: set[str] = set()
    model = ""
    for index in range(len(on_node.devices)):
        id, device = on_node.device_id(index), on_node.device(index)
        if not id.driver.startswith(_GPU_DRIVER):
            continue
        gpu = device.attribute_text("parentUUID") or device.attribute_text("uuid") or id.device
        model = model or device.attribute_text("productName")
        holders = [state.devices.claims[key] for key in state.devices.pools.holders(id)]
        pods = [f"{claim.namespace}/{pod}" for claim in holders for pod in claim.reserved_for]
        gpus.setdefault(gpu, []).extend(pods)
        if holders or not on_node.available.is_available(index):
            taken.add(gpu)
    if not gpus:
        return None
    by_pod: dict[str, int] = {}
    for pods in gpus.values():
        for pod in dict.fromkeys(pods):
            by_pod[pod] = by_pod.get(pod, 0) + 1
    closed = closed_text(state, name, row)
    return Unoffered(len(gpus), model, tuple(by_pod.items()), len(gpus) - len(taken), ONLY_CLAIMS, closed)
