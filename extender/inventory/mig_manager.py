"""Which GPU of a node has which MIG instances: the layout that NVIDIA's MIG manager has applied to it.

Facts (NVIDIA/mig-parted at bd7160f4): the node label ``nvidia.com/mig.config`` names a layout, and
``nvidia.com/mig.config.state`` is ``success`` once it is applied (``pkg/mig/reconfigure/reconfigure.go``).
The names of profiles are the driver's, and those in resource names the same with ``.`` for ``+``
(NVIDIA/k8s-device-plugin, internal/rm). ``device-filter`` tells models apart by PCI ids, which are in no
label: a layout is read for each model that it names, and the one that agrees with ``allocatable`` is the
node's. GPUs of several models on one node cannot be told apart so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from extender.inventory import gfd_labels as gfd
from extender.k8s.objects import MigLayout, MigLayouts, Node
from extender.untrusted.limits import GPUS_PER_NODE
from packing.model.gpu_catalogue import Profile, parse_profile
from packing.model.request import WHOLE

LAYOUT, APPLIED = "nvidia.com/mig.config", "nvidia.com/mig.config.state"


@dataclass(frozen=True, slots=True)
class Advertised:
    """What ``allocatable`` has of one resource: so many devices of this size, ``parts`` of them to a MIG
    instance (or, without ``profile``, to a GPU)."""

    total: int
    profile: Profile | None
    compute_milli: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Partition:
    """The devices of each resource on each GPU of a node, () where no layout says so; ``doubt`` is why one
    that should say so does not."""

    gpus: tuple[Mapping[str, int], ...] = ()
    doubt: str = ""


def named(node: Node, layouts: MigLayouts | None) -> MigLayout | None:
    """The layout that the node's GPUs have been given, None where it is not known."""
    if layouts is None or node.labels.get(APPLIED) != "success":
        return None
    return layouts.layouts.get(node.labels.get(LAYOUT, ""))


def partition(node: Node, layouts: MigLayouts | None, advertised: Mapping[str, Advertised]) -> Partition:
    """How the node's GPUs are divided, if its layout has exactly what ``advertised`` has (by resource)."""
    instances = any(one.profile for one in advertised.values())
    layout = named(node, layouts)
    if layouts is None or layout is None:
        return Partition(doubt=_unknown(node, layouts) if instances else "")
    if not advertised or not (instances or any(group.instances for group in layout)):
        return Partition()  # whole GPUs, or none
    mixed = not any(one.profile for name, one in advertised.items() if name == "nvidia.com/gpu")
    count = gfd.gpu_count(node.labels) if mixed else 0  # under the single strategy it counts instances
    if gpus := _read(layout, tuple(sorted(advertised.items())), count if count <= GPUS_PER_NODE else 0):
        return Partition(gpus)
    name = node.labels[LAYOUT]
    return Partition(
        doubt=f"allocatable is not what MIG layout {name} of configmap {layouts.name} has, and counts"
    )


def _unknown(node: Node, layouts: MigLayouts | None) -> str:
    """Why a node with instances has a layout that is not known, "" where that is no wonder."""
    name = node.labels.get(LAYOUT, "")
    if not name or not layouts or not layouts.layouts or node.labels.get(APPLIED) != "success":
        return ""
    return f"configmap {layouts.name} has no MIG layout {name}"


@lru_cache(maxsize=1024)
def _read(
    layout: MigLayout, advertised: tuple[tuple[str, Advertised], ...], count: int
) -> tuple[Mapping[str, int], ...]:
    """The devices on each GPU, () unless one reading has those advertised. Nodes of one kind ask the same."""
    divided = (_divided(groups, dict(advertised), count) for groups in _readings(layout))
    first, *others = [*filter(None, divided)] or [()]
    return first if all(other == first for other in others) else ()


def _readings(layout: MigLayout) -> Iterator[MigLayout]:
    """The entries that count on a node, for each model that its GPUs may be."""
    models = dict.fromkeys(model for group in layout for model in group.models)
    of_model = [tuple(g for g in layout if not g.models or model in g.models) for model in (*models, "")]
    yield from dict.fromkeys(of_model)


def _divided(
    groups: MigLayout, advertised: Mapping[str, Advertised], count: int
) -> tuple[Mapping[str, int], ...]:
    """The devices on each of ``count`` GPUs (0: as many as it takes), () if they are not those advertised."""
    left = {name: one.total for name, one in advertised.items()}
    gpus: list[Mapping[str, int]] = []
    for index in range(count or GPUS_PER_NODE):
        devices = _on(groups, index, advertised)
        if devices is None or sum(n * advertised[name].compute_milli for name, n in devices.items()) > WHOLE:
            return ()
        gpus.append(devices)
        left |= {name: left[name] - n for name, n in devices.items()}
        if min(left.values()) < 0:
            return ()
        if not (count or any(left.values())):
            break
    return () if any(left.values()) else tuple(gpus)


def _on(groups: MigLayout, index: int, advertised: Mapping[str, Advertised]) -> dict[str, int] | None:
    """The devices on one GPU; None if it has some that are not advertised."""
    devices: dict[str, int] = {}
    for profile, n in _instances(groups, index).items():
        name = next((name for name, one in advertised.items() if one.profile == profile), None)
        if name is None:
            return None
        devices[name] = n * advertised[name].parts
    return devices


def _instances(groups: MigLayout, index: int) -> Mapping[Profile | None, int]:
    """How many instances of each profile are on a GPU; one of ``None`` where MIG is off."""
    group = next((g for g in reversed(groups) if g.indices is None or index in g.indices), None)
    if group is None or group.instances is None:
        return {None: 1}
    instances: Counter[Profile | None] = Counter()
    for name, n in group.instances:
        instances[parse_profile(name.replace("+", ".")) or Profile(0, 0, name)] += n
    return +instances
