"""Which GPU of a node has which MIG instances: the layout that NVIDIA's MIG manager applied.

Facts (NVIDIA/mig-parted at bd7160f4): the node label ``nvidia.com/mig.config`` names a layout, and
``nvidia.com/mig.config.state`` is ``success`` once it is applied (``pkg/mig/reconfigure/reconfigure.go``).
Profiles are named as the driver names them; in resource names ``.`` replaces ``+``
(NVIDIA/k8s-device-plugin, internal/rm). ``device-filter`` selects GPU models by PCI ids, which are in no
label. So a layout is expanded for each model that it names, and the expansion that matches ``allocatable`` is
used. This does not work for a node with GPUs of several models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from extender.dialects.shared_gpus import is_nvidia
from extender.inventory.devices import CountedDevices
from extender.k8s.objects import MigLayout, MigLayouts, Node
from extender.untrusted.limits import GPUS_PER_NODE
from packing.model.gpu_catalogue import Profile, parse_profile
from packing.model.request import WHOLE

LAYOUT_LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"


DevicesByGpu: TypeAlias = tuple[Mapping[str, int], ...]
"""For each GPU of a node, the number of its devices by resource; () if it is not known."""


def applied_layout(node: Node, layouts: MigLayouts | None) -> MigLayout | None:
    """The layout that the MIG manager applied to the node, None if it is not known."""
    if layouts is None or node.labels.get(STATE_LABEL) != "success":
        return None
    return layouts.layouts.get(node.labels.get(LAYOUT_LABEL, ""))


def devices_by_gpu(
    node: Node, gpu_count: int, layouts: MigLayouts | None, devices: Mapping[str, CountedDevices]
) -> tuple[DevicesByGpu, str]:
    """NVIDIA's ``devices`` by GPU, if the applied layout results in exactly these; else a problem, or "".

    ``gpu_count`` is the label of GPU feature discovery, 0 if there is none.
    """
    devices = {name: one for name, one in devices.items() if is_nvidia(name)}
    has_instances = any(one.profile for one in devices.values())
    layout = applied_layout(node, layouts)
    if layouts is None or layout is None:
        return (), _unknown_layout(node, layouts) if has_instances else ""
    if not devices or not (has_instances or any(group.instances for group in layout)):
        return (), ""  # whole GPUs, or none
    single_strategy = any(one.profile for name, one in devices.items() if name == "nvidia.com/gpu")
    count = 0 if single_strategy or gpu_count > GPUS_PER_NODE else gpu_count  # else it counts instances
    if gpus := _matching_expansion(layout, tuple(sorted(devices.items())), count):
        return gpus, ""
    name = node.labels[LAYOUT_LABEL]
    return (), f"allocatable does not match MIG layout {name} of configmap {layouts.name}, which is ignored"


def _unknown_layout(node: Node, layouts: MigLayouts | None) -> str:
    """The problem if the ConfigMap should have the node's layout and does not, else ""."""
    name = node.labels.get(LAYOUT_LABEL, "")
    if not name or not layouts or not layouts.layouts or node.labels.get(STATE_LABEL) != "success":
        return ""
    return f"configmap {layouts.name} has no MIG layout {name}"


@lru_cache(maxsize=1024)
def _matching_expansion(
    layout: MigLayout, devices: tuple[tuple[str, CountedDevices], ...], count: int
) -> DevicesByGpu:
    """The devices on each GPU, () if no expansion matches or several different ones do.

    Cached because nodes of one kind have equal arguments.
    """
    expansions = (_expand(groups, dict(devices), count) for groups in _groups_by_model(layout))
    first, *others = [*filter(None, expansions)] or [()]
    return first if all(other == first for other in others) else ()


def _groups_by_model(layout: MigLayout) -> Iterator[MigLayout]:
    """The groups that apply to a node, for each GPU model that it may have."""
    models = dict.fromkeys(model for group in layout for model in group.models)
    of_model = [tuple(g for g in layout if not g.models or model in g.models) for model in (*models, "")]
    yield from dict.fromkeys(of_model)


def _expand(groups: MigLayout, devices: Mapping[str, CountedDevices], count: int) -> DevicesByGpu:
    """The devices on each of ``count`` GPUs (0: as many as needed), () if they are not ``devices``."""
    left = {name: one.count for name, one in devices.items()}
    gpus: list[Mapping[str, int]] = []
    for index in range(count or GPUS_PER_NODE):
        on_gpu = _devices_on_gpu(groups, index, devices)
        if on_gpu is None or sum(n * devices[name].compute_milli for name, n in on_gpu.items()) > WHOLE:
            return ()
        gpus.append(on_gpu)
        left |= {name: left[name] - n for name, n in on_gpu.items()}
        if min(left.values()) < 0:
            return ()
        if not (count or any(left.values())):
            break
    return () if any(left.values()) else tuple(gpus)


def _devices_on_gpu(
    groups: MigLayout, index: int, devices: Mapping[str, CountedDevices]
) -> dict[str, int] | None:
    """How many devices of each resource are on one GPU; None if it has some that are not advertised."""
    on_gpu: dict[str, int] = {}
    for profile, n in _instances_on_gpu(groups, index).items():
        name = _resource_of(profile, devices)
        if name is None:
            return None
        on_gpu[name] = on_gpu.get(name, 0) + n * devices[name].replicas
    return on_gpu


def _resource_of(profile: Profile | None, devices: Mapping[str, CountedDevices]) -> str | None:
    """The resource that counts instances of this profile. Older device plugins count those with an attribute
    (``1g.10gb+me``) with those without."""
    by_profile = {one.profile: name for name, one in devices.items()}
    if profile in by_profile or profile is None:
        return by_profile.get(profile)
    return by_profile.get(replace(profile, attribute=""))


def _instances_on_gpu(groups: MigLayout, index: int) -> Mapping[Profile | None, int]:
    """How many instances of each profile are on one GPU; one of None if MIG is off."""
    group = next((g for g in reversed(groups) if g.indices is None or index in g.indices), None)
    if group is None or group.instances is None:
        return {None: 1}
    instances: Counter[Profile | None] = Counter()
    for name, n in group.instances:
        instances[parse_profile(name.replace("+", ".")) or Profile(0, 0, name)] += n
    return +instances
