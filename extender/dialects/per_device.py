"""The common notation of HAMi, Volcano and vgpu-manager: a container requests n devices, and an amount of
each.

A container requests a number of devices, and memory (MiB or percent) and cores (percent) of *each* device.
The systems choose devices for one container after another, and several containers may share a GPU. Stowage
combines them into one request: as many different GPUs as the containers use at the same time, each with the
largest share of any container. A node that cannot satisfy it may satisfy the ``stacked`` form: as many GPUs
as the largest container requests, each with the sum of the shares. Each container that runs at the same time
takes one of the slots for pods of a GPU (Fit in ``pkg/device/nvidia/device.go`` of Project-HAMi/HAMi,
ReducePodFootprint in ``pkg/device/types.go`` of vgpu-manager, TryAddPod in ``devices/nvidia/vgpu`` of
Volcano). HAMi allocates no full GPU to a container without cores (also in Fit). Stowage may reject a node on
which the system would place the pod, but accepts no node on which it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from extender.dialects.dialect import Claim, Claims, check_limits, parse_number, validate_claims
from extender.dialects.pod_resources import RequestError, parse_quantities
from extender.k8s.objects import Container, PodSpec, peak_usage
from extender.untrusted.limits import quoted
from packing.model.request import WHOLE, Shares, whole_gpus

PERCENT = 10
"""Thousandths in one percent."""
_NO_DEVICE = ("", ",,0,0")
_PARTS = attrgetter("memory_milli"), attrgetter("compute_milli")


@dataclass(frozen=True, slots=True)
class PerDeviceResources:
    """The extended resources of one dialect.

    ``count`` is the number of devices. ``memory`` (MiB), ``memory_percent`` and ``cores`` (percent) are
    amounts of each device. ``memory_implies_one``: memory without a count requests one device.
    ``all_cores``: a container that does not request cores has all of them, also if it requests memory.
    """

    count: str
    memory: str
    memory_percent: str
    cores: str
    memory_implies_one: bool = False
    all_cores: bool = False

    def uses(self, spec: PodSpec) -> bool:
        """Whether any container requests memory or cores of its devices."""
        names = {self.memory, self.memory_percent, self.cores}
        return any(name in names for c in spec.all_containers for name, _ in c.requests)

    def of_pod(self, spec: PodSpec) -> Shares | None:
        """The pod's request (see the module), None without devices. Raises RequestError."""
        shares = list(filter(None, map(self.of_container, spec.all_containers)))
        if not shares:
            return None
        memory_milli, compute_milli = (max(map(part, shares)) for part in _PARTS)
        count = peak_usage(spec, lambda container: {self.count: self.count_of(container)})[self.count]
        if compute_milli == WHOLE:  # exclusive use: the GPU accepts no other pod, even if memory is left
            return whole_gpus(count, self.count)
        return Shares(
            count,
            compute_milli,
            max(share.memory_mib for share in shares) if memory_milli < WHOLE else 0,  # all of it covers any
            memory_milli,
            self.count,
            len(shares),
            self._stacked(spec, shares),
        )

    def _stacked(self, spec: PodSpec, shares: list[Shares]) -> Shares | None:
        """The pod's request if its containers share GPUs, None if that exceeds a GPU."""
        used = peak_usage(spec, self._parts)
        compute, mib, milli = used["compute"], used["MiB"], used["memory"]
        full_and_more = compute == WHOLE and not all(share.compute_milli for share in shares)
        if len(shares) == 1 or max(compute, milli) > WHOLE or full_and_more:
            return None
        count = max(share.count for share in shares)
        return Shares(count, compute, mib, milli, self.count, slots=used["slots"])

    def _parts(self, container: Container) -> dict[str, int]:
        if (share := self.of_container(container)) is None:
            return {}
        parts = {"compute": share.compute_milli, "MiB": share.memory_mib, "memory": share.memory_milli}
        return parts | {"slots": 1}

    def of_container(self, container: Container) -> Shares | None:
        """The request of one container, None without devices. Raises RequestError."""
        amounts = parse_quantities(container.requests)
        memory, percent, cores = amounts[self.memory], amounts[self.memory_percent], amounts[self.cores]
        count = amounts[self.count] or int(self.memory_implies_one and memory > 0)
        if not count:
            if name := next((n for n in (self.memory, self.memory_percent, self.cores) if amounts[n]), None):
                raise RequestError(f"{name} requires {self.count}")
            return None
        if memory and percent:
            raise RequestError(f"{self.memory} and {self.memory_percent} are mutually exclusive")
        for name in (self.memory_percent, self.cores):
            if amounts[name] > 100:
                raise RequestError(f"{name}: {amounts[name]} is more than 100 % of a GPU")
        cores = cores or 100 * self.all_cores
        if memory or percent:
            return Shares(count, cores * PERCENT, memory, percent * PERCENT, self.count)
        return Shares(count, cores * PERCENT if cores else WHOLE, 0, WHOLE, self.count)

    def count_of(self, container: Container) -> int:
        """Number of devices that one container requests. Raises RequestError."""
        shares = self.of_container(container)
        return shares.count if shares else 0

    def claims(
        self, claimed: Iterable[tuple[Container | None, int, list[Claim]]], *, node: str, exact: bool = True
    ) -> Claims:
        """Claims from tuples of a container (None if unknown), its stage, and the devices that it claims."""
        claims: list[Claim] = []
        first_problem = ""
        for container, stage, devices in claimed:
            requested: Shares | None = None
            with suppress(RequestError):
                requested = self.of_container(container) if container else None
            checked, problem = validate_claims(devices, requested, stage)
            claims += checked
            first_problem = first_problem or problem
        return Claims(self.count, tuple(claims), first_problem, node, exact)


def per_container_gpus(
    spec: PodSpec, gpus: tuple[int, ...], count: Callable[[Container], int]
) -> list[tuple[int, ...]]:
    """Divide the GPUs of a pod among its containers, init containers first.

    Containers and sidecars run at the same time and share no GPU, unless there are too few. An init container
    ends before the containers and later sidecars start, so it uses their GPUs, those of containers first.
    """
    if len(gpus) < peak_usage(spec, lambda container: {"": count(container)})[""]:  # the stacked form
        return [gpus[: count(container)] for container in spec.all_containers]
    sidecars = sum(count(container) for container in spec.init_containers if container.sidecar)
    of_sidecars, others, per_container = gpus[:sidecars], gpus[sidecars:], []
    for container in spec.init_containers:
        free = of_sidecars if container.sidecar else others + of_sidecars
        per_container.append(free[: count(container)])
        if container.sidecar:
            of_sidecars = of_sidecars[count(container) :]
    for container in spec.containers:
        per_container.append(others[: count(container)])
        others = others[count(container) :]
    return per_container


def parse_devices(text: str) -> list[list[Claim]]:
    """The devices of each container in ``UUID,type,MiB,cores:...;...``. Raises ValueError.

    ``:`` ends a device, ``;`` a container. A MIG instance in brackets after the GPU's UUID is dropped, as is
    ``,,0,0``, which is not a device.
    """
    check_limits(text.count(":"), text.count(";"))
    containers = text.split(";")
    if containers[-1] == "":
        containers.pop()
    return [
        [_parse_device(part) for part in container.split(":") if part not in _NO_DEVICE]
        for container in containers
    ]


def _parse_device(text: str) -> Claim:
    fields = text.split(",", 4)
    gpu = fields[0].partition("[")[0]
    if not gpu or len(fields) < 4:
        raise ValueError(f"{quoted(text)} is not a device")
    return Claim(gpu, parse_number(fields[3]) * PERCENT, parse_number(fields[2]))
