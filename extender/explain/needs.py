"""Resources that a pod requests, and those that it lacks on a node where it does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from extender.cluster.other_resources import PODS, Lack, asked_by
from extender.cluster.state import State
from extender.dialects import gpushare
from extender.dialects.pod_request import DEVICE_MEMORY
from extender.dialects.shared_gpus import MIG_PREFIX, is_nvidia
from extender.dra.pod_claims import class_resources, devices_asked
from extender.explain.answers import Need, NeedKind
from extender.explain.words import Said, Word
from extender.k8s.objects import Pod
from extender.k8s.resource_claims import DeviceSubRequest
from extender.untrusted.limits import KEY, LISTED_NAMES, NAME, shorten
from extender.untrusted.visible import listed, many
from packing.fleet.feasibility import idle_gpus, largest_device, separation
from packing.fleet.fleet import Fleet
from packing.fleet.permitted import permitted_on
from packing.fleet.placement import fitting_gpus, share_mib
from packing.model.node_spec import NodeSpec, Pool, resolve_on
from packing.model.request import Request, Shares

_TENTH_OF_A_GIB = 103  # MiB
_NAMED = 4
"""Maximum number of claims, and of requests of each, that are named."""


def asks(request: Request) -> dict[str, int | str]:
    """A pod's request, by resource and unit."""
    asked: dict[str, int | str] = {"cpuMilli": request.cpu_milli, "memoryMib": request.memory_mib}
    asked |= {shorten(name, KEY): count for name, count in request.devices[:LISTED_NAMES]}
    if part := request.shares:
        asked["gpus"] = part.count
        asked |= {"eachComputeMilli": part.compute_milli} if part.compute_milli else {}
        unit = "eachMemoryUnits" if part.resource == gpushare.RESOURCE else "eachMemoryMib"
        asked |= {unit: part.memory_mib} if part.memory_mib else {}
        asked |= {"eachMemoryMilli": part.memory_milli} if part.memory_milli else {}
    if request.models is not None:
        asked["models"] = shorten(", ".join(sorted(request.models)))
    if request.device_mib:
        asked["gpuMinMib"] = request.device_mib
    asked |= {"wholeGpus": "required"} if request.whole else {}
    return asked | ({"nvlinkIsland": "required"} if request.island else {})


def asked_text(request: Request, others: Mapping[str, str]) -> str:
    """The request in one line; ``others``: amounts that Stowage does not place by."""
    texts: list[object] = []
    if cpu := request.cpu_milli:
        texts.append(cpus_said(cpu))
    if request.memory_mib:
        texts.append(memory_said(request.memory_mib))
    texts += [
        Word.DEVICES(count=n, what=shorten(name, KEY)) for name, n in request.devices[:LISTED_NAMES] if n
    ]
    if part := request.shares:
        parts = [Word.PART_COMPUTE(percent=f"{part.compute_milli / 10:g}")] if part.compute_milli else []
        if part.memory_mib and part.resource == gpushare.RESOURCE:
            parts.append(Word.DEVICES(count=part.memory_mib, what=part.resource))
        elif part.memory_mib:
            parts.append(_size(part.memory_mib, Word.PART_MIB, Word.PART_GIB))
        parts += [Word.PART_MEMORY(percent=f"{part.memory_milli / 10:g}")] if part.memory_milli else []
        gpus, of = many(part.count, "GPU"), " and ".join(map(str, parts))
        each = Word.OF_GPU(parts=of) if part.count == 1 else Word.OF_EACH(parts=of, gpus=gpus)
        texts.append(each if parts else gpus)
    if request.models:
        texts.append(Word.MODELS(names=shorten(", ".join(sorted(request.models)))))
    if request.device_mib:
        texts.append(Word.GIB_EACH(count=f"{request.device_mib / 1024:g}"))
    texts += [Word.ONLY_WHOLE()] if request.whole else []
    texts += [Word.ISLAND()] if request.island else []
    texts += [f"{n} {name}" if n[:1].isdigit() else f"{name} {n}" for name, n in others.items() if n]
    return ", ".join(map(str, texts))


def others_asked(state: State, pod: Pod) -> dict[str, str]:
    """Requests of the pod that Stowage does not place by, with their amounts as text."""
    requests = dict(pod.spec.container_requests)
    classes = {name: requests.get(name, "") for name in class_resources(pod.spec)[:LISTED_NAMES]}
    asked = uncounted_resources(pod) | {name: shorten(text, KEY) for name, text in classes.items()}
    return {shorten(name, KEY): text for name, text in (asked | _claims_asked(state, pod)).items()}


def uncounted_resources(pod: Pod) -> dict[str, str]:
    """Resources of device plugins that the pod requests and only kube-scheduler counts, with an amount;
    including unknown ones in the domain of a sharing system (``nvidia.com/gpus``) and of Kubernetes."""
    requests, asked = dict(pod.spec.container_requests), asked_by(pod)
    shown = sorted(name for name in asked if "/" in name)[:LISTED_NAMES]
    return {name: shorten(requests.get(name, ""), KEY) for name in shown}


def _claims_asked(state: State, pod: Pod) -> dict[str, str]:
    """Requests of the pod's claims, as far as they are known: numbers, classes, and first selectors."""
    texts = []
    for entry in pod.spec.claims:
        devices = devices_asked(state.devices, pod, entry)
        requests = devices.requests[:_NAMED] if devices else ()
        asked = ", ".join(" or ".join(map(_devices, request.subrequests[:_NAMED])) for request in requests)
        texts.append(shorten(entry.name, KEY) + (f" ({asked})" if asked else ""))
    return {"claims": shorten(listed(texts, _NAMED))} if texts else {}


def _devices(asked: DeviceSubRequest) -> str:
    count = "all" if asked.count is None else asked.count
    where = f" where {shorten(asked.expressions[0], KEY)}" if asked.expressions else ""
    return f"{count} {shorten(asked.device_class, KEY)}{where}"


def need_of(lack: Lack) -> Need:
    """What Stowage does not place by, as a need."""
    name, asked, left, total = shorten(lack.name, KEY), lack.asked, max(0, lack.left), lack.total
    if lack.name == PODS:
        said, kind = Word.RUNS_PODS(pods=total - lack.left, total=total), NeedKind.COUNT
    elif "/" in lack.name:
        said, kind = Word.NEEDS_DEVICES(asked=asked, what=name, left=_left(left, total)), NeedKind.COUNT
    else:
        unit, size = ("GiB", 1 << 30) if min(asked, total) >= 1 << 30 or not total else ("MiB", 1 << 20)
        texts = [f"{round(amount / size, 2):g}" for amount in (asked, left, total)]
        free = _left(*texts[1:])
        said, kind = Word.NEEDS_BYTES(asked=texts[0], unit=unit, what=name, left=free), NeedKind.BYTES
    return Need(name, asked, lack.left, total, str(said), kind)


def _left(left: object, total: object) -> Said:
    """The free amount. A node with a total of 0 may have the resource without reporting it."""
    return Word.LEFT(free=left, total=total) if str(total) != "0" else Word.REPORTS_NONE()


def at_most(need: Need) -> Said | None:
    """All that the node has, rounded down; None if that is next to nothing."""
    match need.kind:
        case NeedKind.CPU:
            return cpus_said(need.total) if need.total else None
        case NeedKind.EACH_GPU:
            return Word.MIB_IN(count=need.total, annotation=DEVICE_MEMORY) if need.total else None
        case NeedKind.MEMORY | NeedKind.GPU_MEMORY | NeedKind.BYTES:
            mib = need.total >> 20 if need.kind is NeedKind.BYTES else need.total
            size = f"{mib >> 10} GiB" if mib >= 10 << 10 or not mib % 1024 else f"{mib} MiB"
            of_gpu = need.kind is NeedKind.GPU_MEMORY
            what = "memory" if need.kind is NeedKind.MEMORY else need.what.removesuffix(" (MiB)")
            said = Word.SIZE_OF_GPU(size=size) if of_gpu else Word.SIZE_OF(size=size, what=what)
            return said if mib else None
        case NeedKind.GPUS:
            return Word.DEVICES(count=need.total, what="GPU" + "s" * (need.total > 1)) if need.total else None
    return Word.DEVICES(count=need.total, what=need.what) if need.total else None


def cpus_said(milli: int) -> Said:
    """So many CPUs."""
    return Word.CPUS(count=f"{milli / 1000:,.3f}".rstrip("0").rstrip("."), s="s" * (milli > 1000))


def memory_said(mib: int) -> Said:
    """So much memory."""
    return _size(mib, Word.MEMORY_MIB, Word.MEMORY_GIB)


def _size(mib: int, small: Word, large: Word) -> Said:
    if mib < _TENTH_OF_A_GIB:
        return small(count=mib)
    return large(count=f"{mib / 1024:,.2f}".rstrip("0").rstrip("."))


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
        text = str(Word.NEEDS_CPU(asked=asked, s="s" * (request.cpu_milli > 1000), free=free, total=total))
        yield Need("cpuMilli", request.cpu_milli, cpu, spec.cpu_milli, text, NeedKind.CPU)
    if memory_mib < request.memory_mib:
        asked, free, total = _gib(request.memory_mib, memory_mib, spec.memory_mib)
        text = str(Word.NEEDS_MEMORY(asked=asked, free=free, total=total))
        yield Need("memoryMib", request.memory_mib, memory_mib, spec.memory_mib, text, NeedKind.MEMORY)
    for name, count in request.devices[:LISTED_NAMES]:
        resource, name = fleet.names.resources.get(name), shorten(name, KEY)
        devices = 0 if resource is None else int(fleet.arrays.free_devices[resource, row])
        all_devices = 0 if resource is None else int(fleet.arrays.total_devices[resource, row])
        if devices < count:
            text = str(Word.NEEDS_DEVICES(asked=count, what=name, left=_left(max(0, devices), all_devices)))
            yield Need(name, count, max(0, devices), all_devices, text)
        elif resource is not None and count > 1 and separation(fleet, request) == "require":
            yield from _missing_separate_gpus(fleet, row, request, resource, count)
    yield from _missing_memory(fleet, row, request)
    if request.shares and (need := _missing_gpus(fleet, row, request, request.shares)):
        yield need
    if request.island:
        yield from _missing_peers(fleet, row, request, spec)


def _missing_memory(fleet: Fleet, row: int, request: Request) -> Iterator[Need]:
    if request.device_mib > (largest := int(largest_device(fleet, request)[row])):
        asked, has = _gib(request.device_mib, largest)
        said = Word.LARGEST_HERE(size=has) if largest else Word.SIZE_UNKNOWN()
        text, kind = str(Word.NEEDS_EACH(asked=asked, has=said)), NeedKind.EACH_GPU
        yield Need("gpuMinMib", request.device_mib, largest, largest, text, kind)


def _missing_peers(fleet: Fleet, row: int, request: Request, spec: NodeSpec) -> Iterator[Need]:
    if part := request.shares:
        free = fitting_gpus(fleet, row, request)
        peers = max((sum(gpu in free for gpu in island) for island in spec.peers), default=0)
        if peers < part.count <= len(free):
            most = max(map(len, spec.peers))
            text = str(Word.NEEDS_PEERS(asked=part.count, peers=peers, free=len(free)))
            yield Need("NVLink peers", part.count, peers, most, text, NeedKind.PEERS)
    for name, count in request.devices[:LISTED_NAMES]:
        resource = fleet.names.resources.get(name)
        if resource is None or fleet.arrays.free_devices[resource, row] < count:
            continue
        peers, most = (int(of[resource, row]) for of in (fleet.arrays.free_peers, fleet.arrays.total_peers))
        if peers < count:
            free_devices = int(fleet.arrays.free_devices[resource, row])
            text = str(Word.NEEDS_SURE_PEERS(asked=count, peers=peers, free=free_devices))
            yield Need("NVLink peers", count, peers, most, text, NeedKind.PEERS)


def _missing_separate_gpus(
    fleet: Fleet, row: int, request: Request, resource: int, count: int
) -> Iterator[Need]:
    idle = max(0, int(idle_gpus(fleet.arrays, resource)[row]))
    if idle < count:
        gpus = int((fleet.arrays.total_devices - fleet.arrays.surplus_devices)[resource, row])
        text = str(Word.NEEDS_SEPARATE(asked=count, given=replicas_given(fleet, row, request)))
        yield Need("different GPUs", count, idle, gpus, text, NeedKind.SEPARATE_GPUS)


def _missing_gpus(fleet: Fleet, row: int, request: Request, part: Shares) -> Need | None:
    """Missing GPUs of the node for shares of GPUs."""
    spec = fleet.specs[row]
    assert spec is not None
    gpus = range(len(spec.gpus))
    asked_mib = [share_mib(fleet, row, gpu, part) for gpu in gpus]
    usable = [gpu for gpu in permitted_on(fleet, request, row) if fleet.arrays.divisible[gpu, row]]
    compute = {gpu: int(fleet.arrays.compute[gpu, row]) for gpu in usable}
    memory = {gpu: int(fleet.arrays.memory[gpu, row]) for gpu in usable}
    milli, mib = part.compute_milli, max(asked_mib, default=0)
    enough = sum(compute[gpu] >= milli and memory[gpu] >= asked_mib[gpu] for gpu in usable)
    if enough >= part.count:
        return None
    largest = max((spec.gpus[gpu].memory_mib for gpu in gpus if fleet.arrays.shareable[gpu, row]), default=0)
    if 0 < largest < mib:
        what, kind = "gpuMemoryMib", NeedKind.GPU_MEMORY
        asked, has = f"{_gib(mib)[0]} GiB", f"{largest >> 10} GiB"
        if part.resource == gpushare.RESOURCE:  # it counts units
            what, kind, asked, has = (
                part.resource,
                NeedKind.GPUSHARE_UNITS,
                f"{mib} {part.resource}",
                str(largest),
            )
        text = str(Word.NEEDS_LARGER(asked=asked, largest=has))
        return Need(what, mib, max(memory.values(), default=0), largest, text, kind)
    free_milli, free_mib = max(compute.values(), default=0), max(memory.values(), default=0)
    asked_gib, free_gib = _gib(mib, free_mib)
    its, several = "their" if part.count > 1 else "its", part.count > 1
    amounts = [str(Word.PERCENT_COMPUTE(percent=f"{milli / 10:g}", its=its))] * bool(milli)
    amounts += [f"{asked_gib} GiB"] * bool(mib)
    size, count = Word.WITH_FREE(amounts=" and ".join(amounts)) if amounts else "", len(gpus)
    said = Word.NEEDS_ONE(size=size, gpus=count)
    if several:
        said = Word.NEEDS_GPUS(asked=part.count, size=size, enough=enough, gpus=count)
    elif len(amounts) == 1 and usable:
        freest = f"{free_milli / 10:g} %" if milli else f"{free_gib} GiB"
        said = Word.NEEDS_ONE_OF(size=size, gpus=count, largest=freest)
    what = f"GPUs with {milli} milli and {mib} MiB"
    return Need(what, part.count, enough, count, str(said), NeedKind.GPUS)


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
        match need.kind:
            case NeedKind.CPU:
                request = replace(request, cpu_milli=need.total)
            case NeedKind.MEMORY:
                request = replace(request, memory_bytes=need.total << 20)
            case NeedKind.EACH_GPU:
                request = replace(request, device_mib=need.total)
            case NeedKind.DEVICES:
                devices[need.what] = need.total
            case NeedKind.GPU_MEMORY | NeedKind.GPUSHARE_UNITS if part:
                part = replace(part, memory_mib=need.total)
            case _:
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
        certain = int(idle_gpus(fleet.arrays, fleet.names.resources[pool.resource])[row]) >= count
        sure = Word.DIFFERENT_GPUS if certain else Word.PERHAPS_ONE_GPU
        word, where = Word.GIVEN_OF_ONE if gpus == 1 else Word.GIVEN, sure() if gpus > 1 and count > 1 else ""
        given = word(count=count, total=pool.total, kind=kind_of(pool), gpus=gpus, model=model, where=where)
        texts.append(str(given))
    return "; ".join(texts)


def kind_of(pool: Pool) -> str:
    """Kind of the devices in a pool."""
    if pool.resource.startswith(MIG_PREFIX) or (is_nvidia(pool.resource) and pool.separate == 0):
        return "MIG instances"
    return "GPUs" if pool.separate is None else "replicas" if pool.separate else "parts"
