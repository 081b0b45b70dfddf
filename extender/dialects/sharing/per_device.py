"""The way of asking that HAMi, Volcano and vgpu-manager share: per container, n devices with so much of each.

A container asks for a number of devices, and for memory (MiB or per cent) and cores (per cent) of *each* of
them. Containers choose their devices independently; as one request the pod asks for as many different GPUs
as its containers hold at once, each with the largest share of any, which fits a little less often than it
could and never too often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from extender.dialects.dialect import Claim, Claims, compared, number
from extender.dialects.pod_resources import RequestError, amounts, peak_usage
from extender.k8s.objects import Container, PodSpec
from extender.untrusted.limits import CLAIMED_DEVICES, CONTAINERS, quoted
from packing.model.request import WHOLE, Shares, whole_gpus

PERCENT = 10
"""Thousandths in a per cent."""


@dataclass(frozen=True, slots=True)
class PerDevice:
    """The resource names of one vocabulary. ``memory_means_one``: memory without a count is one device."""

    count: str
    memory: str
    percent: str
    cores: str
    memory_means_one: bool = False

    def speaks(self, spec: PodSpec) -> bool:
        """Whether any container asks for memory or cores by these names."""
        names = {self.memory, self.percent, self.cores}
        return any(name in names for c in (*spec.init_containers, *spec.containers) for name, _ in c.requests)

    def of_pod(self, spec: PodSpec) -> Shares | None:
        """The pod's request (see above). Raises RequestError."""
        asks = [self.of_container(c) for c in (*spec.init_containers, *spec.containers)]
        parts = [ask for ask in asks if ask]
        if not parts:
            return None
        memory_milli = max(part.memory_milli for part in parts)
        return Shares(
            peak_usage(spec, lambda c: Counter({self.count: self.count_of(c)}))[self.count],
            max(part.compute_milli for part in parts),
            max(part.memory_mib for part in parts) if memory_milli < WHOLE else 0,  # all has any amount in it
            memory_milli,
            self.count,
        )

    def grantable(self, spec: PodSpec, resources: Mapping[str, int]) -> Shares | None:
        """See ``Dialect.grantable``: whole GPUs where the amounts contradict each other."""
        if not (resources.get(self.count) or resources.get(self.memory)):
            return None  # as of most pods
        try:
            return self.of_pod(spec)
        except ValueError:
            count = peak_usage(spec, lambda c: Counter({self.count: self._most_of(c)}))[self.count]
            return whole_gpus(count, self.count) if count else None

    def _most_of(self, container: Container) -> int:
        asked = amounts(container.requests)
        return asked[self.count] or int(self.memory_means_one and asked[self.memory] > 0)

    def count_of(self, container: Container) -> int:
        """How many devices one container asks for. Raises RequestError."""
        ask = self.of_container(container)
        return ask.count if ask else 0

    def memory_of(self, container: Container) -> int:
        """The MiB of each device that one container asks for, 0 where it names none. Raises RequestError."""
        return amounts(container.requests)[self.memory]

    def of_container(self, container: Container) -> Shares | None:
        """What one container asks for. Raises RequestError."""
        asked = amounts(container.requests)
        count, memory, percent, cores = (
            asked[name] for name in (self.count, self.memory, self.percent, self.cores)
        )
        if not count and memory and self.memory_means_one:
            count = 1
        if not count:
            if memory or percent or cores:
                given = self.memory if memory else self.percent if percent else self.cores
                raise RequestError(f"{given} without {self.count}: of how many GPUs?")
            return None
        if memory and percent:
            raise RequestError(f"{self.memory} and {self.percent} contradict each other: ask for one of them")
        for name, value in ((self.percent, percent), (self.cores, cores)):
            if value > 100:
                raise RequestError(f"{name}: {value} is more than 100 % of a GPU")
        if (
            cores == 100
        ):  # all cores are exclusive use: nobody else gets onto the GPU, whatever memory is left
            return whole_gpus(count, self.count)
        if memory or percent:
            return Shares(count, cores * PERCENT, memory, percent * PERCENT, self.count)
        return Shares(count, cores * PERCENT if cores else WHOLE, 0, WHOLE, self.count)

    def claims(
        self,
        found: Iterable[tuple[Container | None, int, list[Claim]]],
        *,
        node: str,
        complaint: str = "",
        exact: bool = True,
    ) -> Claims:
        """Claims from (container or None, its stage, the devices that it is said to have)."""
        claims: list[Claim] = []
        for container, stage, named in found:
            more, wrong = compared(named, self._asked(container) if container else None, stage)
            claims += more
            complaint = complaint or wrong
        return Claims(self.count, tuple(claims), complaint, node, exact)

    def _asked(self, container: Container) -> Shares | None:
        try:
            return self.of_container(container)
        except RequestError:
            return None


def per_container_gpus(
    spec: PodSpec, chosen: tuple[int, ...], count: Callable[[Container], int]
) -> list[tuple[int, ...]]:
    """The GPUs of each container, init containers first, out of those chosen for the pod.

    Containers and sidecars, which run together, share none; an init container, which ends before the others
    begin, takes from what the sidecars leave. Raises RequestError where the sidecars leave too few.
    """
    sidecars = sum(count(c) for c in spec.init_containers if c.sidecar)
    hands, next_sidecar, next_one = [], 0, sidecars
    for container in spec.init_containers:
        first = next_sidecar if container.sidecar else sidecars
        next_sidecar += count(container) if container.sidecar else 0
        hands.append(chosen[first : first + count(container)])
    for container in spec.containers:
        hands.append(chosen[next_one : next_one + count(container)])
        next_one += count(container)
    if list(map(len, hands)) != [count(c) for c in (*spec.init_containers, *spec.containers)]:
        raise RequestError("an init container would need a GPU of a sidecar that starts after it")
    return hands


def devices(text: str) -> list[list[Claim]]:
    """Decode ``UUID,type,MiB,cores:...;...``: devices end in ``:``, containers are parted by ``;``.

    Raises ValueError. A MIG slice's name in brackets after the UUID is left out: the GPU is what it is on.
    """
    check_size(text.count(":"), text.count(";"))
    containers = text.split(";")
    if containers[-1] == "":
        containers.pop()
    return [[_device(part) for part in container.split(":") if part] for container in containers]


def check_size(devices: int, containers: int) -> None:
    """Raises ValueError where annotations name more devices, or containers, than are read."""
    if devices > CLAIMED_DEVICES:
        raise ValueError(f"{devices} devices are more than {CLAIMED_DEVICES}")
    if containers > 2 * CONTAINERS:
        raise ValueError(f"{containers} containers are more than {2 * CONTAINERS}")


def _device(text: str) -> Claim:
    fields = text.split(",", 4)
    gpu = fields[0].partition("[")[0]
    if not gpu or len(fields) < 4:
        raise ValueError(f"{quoted(text)} is not a device")
    return Claim(gpu, number(fields[3]) * PERCENT, number(fields[2]))
