"""The devices of a node with another MIG layout: a layout of the MIG manager's ConfigMap, otherwise one of
those that every version of it has (NVIDIA/mig-parted, deployments/gpu-operator): ``all-disabled``, and
``all-`` with each profile of the GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from extender.dialects.shared_gpus import MIG_PREFIX
from extender.inventory.devices import LAYOUT_LABEL, STATE_LABEL, instances_by_gpu
from extender.inventory.gpu_labels import PREFIX, PRODUCT
from extender.inventory.node_state import MIG_CHANGE, NodeLayout
from extender.k8s.objects import MigLayout, MigLayouts, Node
from extender.untrusted.limits import LABEL
from packing.model.gpu_catalog import (
    MigPlacement,
    Model,
    Profile,
    named_model,
    parse_product,
    parse_profile,
    placement_of,
    profile_names,
)
from packing.model.node_spec import NodeSpec
from packing.plan.mig_layouts import layouts

WHOLE = "nvidia.com/gpu"
DISABLED = "all-disabled"
_STRATEGY, _CAPABLE = "nvidia.com/mig.strategy", "nvidia.com/mig.capable"


def can_change(node: Node, spec: NodeSpec) -> bool:
    """Whether a MIG manager could divide the GPUs of the node in another way: NVIDIA's device plugin
    advertises them as whole GPUs or MIG instances, their model can be divided, and no sharing system divides
    them."""
    model = named_model(spec.model)
    if not (model and model.geometry and spec.pools) or spec.sharing_resource:
        return False
    if not all(pool.profile or (pool.resource == WHOLE and pool.is_whole) for pool in spec.pools):
        return False
    return (
        any(pool.profile for pool in spec.pools)
        or LAYOUT_LABEL in node.labels
        or node.labels.get(_CAPABLE) == "true"
    ) and node.labels.get(_STRATEGY) != "none"


def today(node: Node, spec: NodeSpec) -> NodeLayout:
    single = next((pool.profile for pool in spec.pools if pool.resource == WHOLE), "")
    devices = {pool.resource: pool.total for pool in spec.pools if pool.total}
    return NodeLayout(node.labels.get(LAYOUT_LABEL, ""), devices, single)


def named_layouts(node: Node, spec: NodeSpec, known: MigLayouts | None) -> list[NodeLayout]:
    """The named layouts of the node's MIG manager, the same objects for nodes of one kind. Layouts with an
    uncertain result are omitted: an entry of a ConfigMap may apply to GPUs with certain PCI ids, which are in
    no label."""
    kind = spec.model or "", len(spec.gpus), is_single(node, spec)
    if not (known and known.layouts):
        return _standard(*kind)
    found = (_of_configmap(name, layout, *kind) for name, layout in known.layouts.items())
    return [layout for layout in found if layout]


def is_single(node: Node, spec: NodeSpec) -> bool:
    """Whether the node advertises, or would advertise, its instances as ``nvidia.com/gpu``."""
    whole = (pool for pool in spec.pools if pool.resource == WHOLE)
    return node.labels.get(_STRATEGY) == "single" or any(pool.profile for pool in whole)


def all_layouts(spec: NodeSpec, resources: Collection[str]) -> list[NodeLayout]:
    """Every uniform layout of these resources, and whole GPUs; without names."""
    model = named_model(spec.model)
    placements = dict(_placements(model, resources)) if model else {}
    of_gpu = [*layouts(placements), {WHOLE: 1}]
    return [NodeLayout("", {name: n * len(spec.gpus) for name, n in layout.items()}) for layout in of_gpu]


def _placements(model: Model, resources: Collection[str]) -> Iterator[tuple[str, MigPlacement]]:
    """The possible placements of the instances of these resources, if a GPU of the model can have them."""
    for resource in sorted(resources):
        profile = parse_profile(resource.removeprefix(MIG_PREFIX))
        if profile and (placement := placement_on(model, profile)):
            yield resource, placement


def placement_on(model: Model, profile: Profile) -> MigPlacement | None:
    """The possible placements of instances of this profile on a GPU of the model; None if it has no such
    profile. The memory in a name is rounded, and profiles of other models differ by more."""
    geometry = model.geometry
    if geometry is None or (placement := placement_of(geometry, profile, model.memory_mib)) is None:
        return None
    slices = profile.memory_gb * 1024 * geometry.memory_slices / model.memory_mib
    return placement if abs(placement.size - slices) < placement.size / 5 else None


_Instances = tuple[Mapping[Profile | None, int], ...]
"""For each GPU, the number of its instances by profile; None stands for the whole GPU."""


@lru_cache(maxsize=256)
def _standard(name: str, gpus: int, single: bool) -> list[NodeLayout]:
    model = named_model(name)
    if model is None or model.geometry is None:
        return []
    of_model = profile_names(model.geometry, -(-model.memory_mib // 1024))
    uniform = [(parse_profile(of), layouts({of: placement})[0][of]) for of, placement in of_model.items()]
    named: dict[str, Mapping[Profile | None, int]] = {DISABLED: {None: 1}}
    named |= {f"all-{profile}": {profile: n} for profile, n in uniform if profile and not profile.attribute}
    shown = (_shown(of, (on_gpu,) * gpus, single) for of, on_gpu in named.items())
    return [layout for layout in shown if layout]


@lru_cache(maxsize=4096)
def _of_configmap(of: str, layout: MigLayout, name: str, gpus: int, single: bool) -> NodeLayout | None:
    """A layout of a ConfigMap; None if GPUs of the model cannot have it, its result is uncertain, or its name
    is not a valid label value."""
    if not re.fullmatch(LABEL, of):
        return None
    model = named_model(name)
    found = list(instances_by_gpu(layout, gpus)) if model else []
    able = [on_gpus for on_gpus in found if model and all(_is_able(model, on_gpu) for on_gpu in on_gpus)]
    # A layout that names models leaves all others whole, but no administrator would assign it to those.
    able = [on_gpus for on_gpus in able if any(map(any, on_gpus))] or able
    certain = bool(able) and all(on_gpus == able[0] for on_gpus in able)
    return _shown(of, able[0], single) if certain else None


def _is_able(model: Model, instances: Mapping[Profile | None, int]) -> bool:
    """Whether one GPU can have all these instances, and has at least one."""
    placements = {profile: placement_on(model, profile) for profile in instances if profile}
    if not instances or None in placements.values():
        return False
    names = {str(profile): found for profile, found in placements.items() if found}
    asked = {str(profile): n for profile, n in instances.items() if profile}
    return not asked or any(all(got.get(name, 0) >= n for name, n in asked.items()) for got in layouts(names))


def _shown(name: str, instances: _Instances, single: bool) -> NodeLayout | None:
    """The layout as the device plugin advertises it; None if its strategy forbids it."""
    counts: Counter[Profile | None] = Counter()
    for on_gpu in instances:
        counts.update(on_gpu)
    if not (single and counts):
        named = ((f"{MIG_PREFIX}{profile}" if profile else WHOLE, n) for profile, n in counts.items())
        return NodeLayout(name, dict(named))
    (profile, number), *others = counts.items()
    return None if others else NodeLayout(name, {WHOLE: number}, str(profile) if profile else "")


def with_layout(node: Node, layout: NodeLayout) -> Node:
    """The node after the MIG manager and the device plugin have applied the layout."""
    product = parse_product(node.labels.get(PRODUCT, ""))
    of_instances = (f"{WHOLE}.count", f"{WHOLE}.memory") if product.profile or layout.profile else ()
    old = (LAYOUT_LABEL, f"{PREFIX}mig-", *of_instances)
    labels = {key: text for key, text in node.labels.items() if not key.startswith(old)}
    if layout.name:
        labels |= {LAYOUT_LABEL: layout.name, STATE_LABEL: "success"}
    if product.base:
        labels[PRODUCT] = product.base + (f"-MIG-{layout.profile}" if layout.profile else "")
    kept = {name: text for name, text in node.allocatable.items() if not _is_of_mig(name)}
    devices = {name: str(count) for name, count in layout.devices.items()}
    annotations = {key: text for key, text in node.annotations.items() if key != MIG_CHANGE}
    allocatable = {**kept, WHOLE: "0", **devices}
    return replace(node, labels=labels, annotations=annotations, allocatable=allocatable, capacity={})


def _is_of_mig(resource: str) -> bool:
    return resource == WHOLE or resource.startswith(MIG_PREFIX)


def shows(node: Node, layout: NodeLayout) -> bool:
    """Whether the MIG manager is done, and kubelet and GPU feature discovery show this layout. Unhealthy
    devices count only in ``capacity``."""
    product = parse_product(node.labels.get(PRODUCT, ""))
    if node.labels.get(STATE_LABEL) != "success" or (product.profile or "") != layout.profile:
        return False
    names = {name for name in (*node.allocatable, *layout.devices) if _is_of_mig(name)}
    has = {name: node.allocatable.get(name, "0") for name in names}
    return all(str(layout.devices.get(name, 0)) in (has[name], node.capacity.get(name)) for name in names)
