"""Resources that a pod lacks on a node where it does not fit, as numbers and as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from extender.cluster.other_resources import left_text
from extender.dialects import gpushare
from extender.dialects.shared_gpus import MIG_PREFIX, is_nvidia
from extender.explain.answers import Need
from extender.untrusted.limits import KEY, LISTED_NAMES, NAME, shorten
from packing.fleet.feasibility import idle_gpus, largest_device, separation
from packing.fleet.fleet import Fleet
from packing.fleet.placement import fitting_gpus, share_mib
from packing.model.node_spec import NodeSpec, Pool, resolve_on
from packing.model.request import Request, Shares

GPU_MEMORY = "memory of a GPU (MiB)"
EACH_GPU = "memory of each GPU (MiB)"
NO_DEVICES = "node does not have the devices that the pod's claims request"


def missing_needs(fleet: Fleet, row: int, request: Request) -> Iterator[Need]:
    """Resources of which the node has too little for the request; none for an unknown node (row -1)."""
    spec = fleet.specs[row] if row >= 0 else None
    if spec is None:
        return
    request = resolve_on(spec, request)
    if request.shares and request.stacked and len(spec.gpus) < request.shares.count:
        request = request.stacked
    cpu = max(0, int(fleet.arrays.free_cpu[row]))
    memory_mib = max(0, -(-int(fleet.arrays.free_memory[row]) >> 20))
    if cpu < request.cpu_milli:
        asked, free, total = (f"{milli / 1000:g}" for milli in (request.cpu_milli, cpu, spec.cpu_milli))
        text = f"needs {asked} CPUs, {free} of {total} are free"
        yield Need("cpu (milli)", request.cpu_milli, cpu, spec.cpu_milli, text)
    if memory_mib < request.memory_mib:
        asked, free, total = _gib(request.memory_mib, memory_mib, spec.memory_mib)
        text = f"needs {asked} GiB of memory, {free} of {total} are free"
        yield Need("memory (MiB)", request.memory_mib, memory_mib, spec.memory_mib, text)
    for name, count in request.devices[:LISTED_NAMES]:
        resource, name = fleet.names.resources.get(name), shorten(name, KEY)
        devices = 0 if resource is None else int(fleet.arrays.free_devices[resource, row])
        all_devices = 0 if resource is None else int(fleet.arrays.total_devices[resource, row])
        if devices < count:
            text = f"needs {count} {name}, {left_text(max(0, devices), all_devices)}"
            yield Need(name, count, max(0, devices), all_devices, text)
        elif resource is not None and count > 1 and separation(fleet, request) == "require":
            yield from _missing_separate_gpus(fleet, row, request, resource, count)
    yield from _missing_memory(fleet, row, request)
    if request.shares and (need := _missing_gpus(fleet, row, request, request.shares)):
        yield need
    if request.island:
        yield from _missing_peers(fleet, row, request, spec)


def _missing_memory(fleet: Fleet, row: int, request: Request) -> Iterator[Need]:
    """Missing memory of the GPUs or shares."""
    if request.device_mib > (largest := int(largest_device(fleet, request)[row])):
        asked, has = _gib(request.device_mib, largest)
        has = f"the largest here has {has}" if largest else "their size here is unknown"
        text = f"needs {asked} GiB on each GPU or share, {has}"
        yield Need(EACH_GPU, request.device_mib, largest, largest, text)


def _missing_peers(fleet: Fleet, row: int, request: Request, spec: NodeSpec) -> Iterator[Need]:
    """Missing NVLink peers among free GPUs."""
    if part := request.shares:
        free = fitting_gpus(fleet, row, request)
        peers = max((sum(gpu in free for gpu in island) for island in spec.peers), default=0)
        if peers < part.count <= len(free):
            most = max(map(len, spec.peers))
            text = f"needs {part.count} NVLink peers, {peers} of its {len(free)} free GPUs are"
            yield Need("NVLink peers", part.count, peers, most, text)
    for name, count in request.devices[:LISTED_NAMES]:
        resource = fleet.names.resources.get(name)
        if resource is None or fleet.arrays.free_devices[resource, row] < count:
            continue
        peers, most = (int(of[resource, row]) for of in (fleet.arrays.free_peers, fleet.arrays.total_peers))
        if peers < count:
            free_devices = int(fleet.arrays.free_devices[resource, row])
            text = f"needs {count} NVLink peers, {peers} of its {free_devices} free GPUs are sure to be"
            yield Need("NVLink peers", count, peers, most, text)


def _missing_separate_gpus(
    fleet: Fleet, row: int, request: Request, resource: int, count: int
) -> Iterator[Need]:
    """Missing GPUs if each device must be on a different GPU."""
    idle = max(0, int(idle_gpus(fleet.arrays, resource)[row]))
    if idle < count:
        gpus = int((fleet.arrays.total_devices - fleet.arrays.surplus_devices)[resource, row])
        text = f"needs {count} different GPUs, would get {replicas_given(fleet, row, request)}"
        yield Need("different GPUs", count, idle, gpus, text)


def _missing_gpus(fleet: Fleet, row: int, request: Request, part: Shares) -> Need | None:
    """Missing GPUs of the node for shares of GPUs."""
    spec = fleet.specs[row]
    assert spec is not None
    gpus = range(len(spec.gpus))
    asked_mib = [share_mib(fleet, row, gpu, part) for gpu in gpus]
    usable = [
        gpu for gpu in gpus if fleet.arrays.divisible[gpu, row] and spec.gpus[gpu].permits(request, part)
    ]
    compute = {gpu: int(fleet.arrays.compute[gpu, row]) for gpu in usable}
    memory = {gpu: int(fleet.arrays.memory[gpu, row]) for gpu in usable}
    milli, mib = part.compute_milli, max(asked_mib, default=0)
    enough = sum(compute[gpu] >= milli and memory[gpu] >= asked_mib[gpu] for gpu in usable)
    if enough >= part.count:
        return None
    largest = max((spec.gpus[gpu].memory_mib for gpu in gpus if fleet.arrays.shareable[gpu, row]), default=0)
    if 0 < largest < mib:
        what, asked, has = GPU_MEMORY, f"{_gib(mib)[0]} GiB", f"{largest >> 10} GiB"
        if part.resource == gpushare.RESOURCE:  # it counts units
            what, asked, has = part.resource, f"{mib} {part.resource}", str(largest)
        text = f"needs a GPU with {asked}, the largest GPU has {has}"
        return Need(what, mib, max(memory.values(), default=0), largest, text)
    free_milli, free_mib = max(compute.values(), default=0), max(memory.values(), default=0)
    asked_gib, free_gib = _gib(mib, free_mib)
    amounts = [f"{milli / 10:g} % of its compute"] * bool(milli) + [f"{asked_gib} GiB"] * bool(mib)
    size = f" with {' and '.join(amounts)} free" if amounts else ""
    if part.count > 1:
        text = f"needs {part.count} GPUs{size.replace('its', 'their')}, {enough} of {len(gpus)} have that"
    elif len(amounts) == 1 and usable:
        freest = f"{free_milli / 10:g} %" if milli else f"{free_gib} GiB"
        text = f"needs one GPU{size}, the largest of {len(gpus)} has {freest}"
    else:
        text = f"needs one GPU{size}, none of {len(gpus)} has that"
    return Need(f"GPUs with {milli} milli and {mib} MiB", part.count, enough, len(gpus), text)


def _gib(*amounts_mib: int) -> list[str]:
    """Amounts in GiB, with the fewest decimal places that distinguish them."""
    for places in (1, 2, 3):
        texts = [f"{round(mib / 1024, places):g}" for mib in amounts_mib]
        if len({*texts}) == len({*amounts_mib}):
            break
    return texts


def reduced(request: Request, needs: Iterable[Need]) -> Request | None:
    """The request reduced to the totals of these needs; None if that is impossible."""
    devices, part = dict(request.devices), request.shares
    for need in needs:
        if need.what == "cpu (milli)":
            request = replace(request, cpu_milli=need.total)
        elif need.what == "memory (MiB)":
            request = replace(request, memory_bytes=need.total << 20)
        elif need.what == EACH_GPU:
            request = replace(request, device_mib=need.total)
        elif need.what in devices:
            devices[need.what] = need.total
        elif part and need.what in (GPU_MEMORY, part.resource):
            part = replace(part, memory_mib=need.total)
        else:
            return None
    return replace(request, devices=tuple(devices.items()), shares=part and replace(part, stacked=None))


def replicas_given(fleet: Fleet, row: int, request: Request) -> str:
    """The devices that this node would allocate to the request; "" if it requests whole GPUs or names the
    instances. With several GPUs, includes whether the device plugin is certain to choose different GPUs."""
    spec = fleet.specs[row] if row >= 0 else None
    asked, texts = dict(request.devices), []
    for pool in spec.pools if spec else ():
        count = asked.get(pool.resource, 0)
        if not count or not spec or pool.separate is None or not pool.gpus:
            continue
        gpus = len(pool.gpus)
        model = shorten(spec.model or spec.product or "GPU" + "s" * (gpus > 1), NAME)
        text = f"{count} of {pool.total} {kind_of(pool)} of {'one' if gpus == 1 else gpus} {model}"
        if gpus > 1 and count > 1:
            certain = int(idle_gpus(fleet.arrays, fleet.names.resources[pool.resource])[row]) >= count
            text += ", of different GPUs" if certain else ", perhaps of the same GPU"
        texts.append(text)
    return "; ".join(texts)


def kind_of(pool: Pool) -> str:
    """Kind of the devices in a pool."""
    if pool.resource.startswith(MIG_PREFIX) or (is_nvidia(pool.resource) and pool.separate == 0):
        return "MIG instances"
    return "GPUs" if pool.separate is None else "replicas" if pool.separate else "parts"
