"""Reads objects that describe the GPUs of nodes: Koordinator's Device, and the MIG manager's ConfigMap.

Facts about MIG layouts (NVIDIA/mig-parted at bd7160f4): the format is ``api/spec/v1/spec.go``. GPUs are
identified by their index in NVML's order, ``device-filter`` by PCI device and vendor id. If two entries apply
to a GPU, the later one wins (``cmd/nvidia-mig-parted/assert/assert.go``). The ConfigMap of a single node has
its name in the label ``nvidia.com/node-name`` (``cmd/nvidia-mig-manager/main.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert, field

from extender.k8s.manifest import Int, Manifest, Texts, Unreadable, decoding_problem
from extender.k8s.objects import KoordinatorDevice, KoordinatorGpu, MigGroup, MigLayout, MigLayouts
from extender.untrusted import limits
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import quoted, shorten
from extender.untrusted.yaml_reader import TextError, yaml_documents

CONFIG_KEY = "config.yaml"
NO_LAYOUTS = f"{CONFIG_KEY} has no mig-configs"
"""The problem of a ConfigMap with other data."""
NODE_LABEL = "nvidia.com/node-name"
PER_NODE_SELECTOR = f"app.kubernetes.io/component=nvidia-mig-manager,{NODE_LABEL}"
"""Label selector of the ConfigMaps that the MIG manager writes itself, one for each node."""


class _Device(Struct, frozen=True, gc=False):
    type: str = ""
    id: str = ""
    minor: Int | None = None
    health: bool = False
    resources: Texts = {}


class _DeviceSpec(Struct, frozen=True, gc=False):
    devices: tuple[_Device, ...] = ()


class KoordinatorDeviceManifest(Manifest, frozen=True, gc=False):
    """A ``Device`` of ``scheduling.koordinator.sh/v1alpha1``."""

    spec: _DeviceSpec = _DeviceSpec()

    def record(self) -> KoordinatorDevice:
        """The GPUs of the node. A GPU without a minor number is omitted: no pod can refer to it."""
        gpus = [
            KoordinatorGpu(d.minor, d.id, d.health, tuple(sorted(d.resources.items())))
            for d in self.spec.devices
            if d.type == "gpu" and d.minor is not None
        ]
        return KoordinatorDevice(self.metadata.name, tuple(gpus))


class MigLayoutsManifest(Manifest, frozen=True, gc=False):
    """A ConfigMap of NVIDIA's MIG manager."""

    data: Texts = {}  # noqa: RUF012 (a new one for each)

    def record(self) -> MigLayouts:
        """The readable layouts, with the problem of the others."""
        name = f"{self.metadata.namespace or 'default'}/{self.metadata.name}"
        node = self.metadata.labels.get(NODE_LABEL, "")
        return MigLayouts(name, node, *parse_layouts(self.data.get(CONFIG_KEY, "")))


_Name: TypeAlias = Annotated[str, Meta(max_length=limits.NAME)]
_Index: TypeAlias = Annotated[int, Meta(ge=0, lt=limits.GPUS_PER_NODE)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=limits.MIG_PROFILES)]


class _Group(Struct, frozen=True, gc=False):
    enabled: bool = field(name="mig-enabled")
    devices: Literal["all"] | Annotated[list[_Index], Meta(max_length=limits.GPUS_PER_NODE)]
    instances: Annotated[dict[_Name, _Count], Meta(max_length=limits.MIG_PROFILES)] | None = field(
        name="mig-devices", default=None
    )
    models: _Name | Annotated[list[_Name], Meta(max_length=limits.LISTED_NAMES)] | None = field(
        name="device-filter", default=None
    )

    def record(self) -> MigGroup:
        if self.instances and not self.enabled:
            raise Unreadable("mig-devices while mig-enabled is false")
        models = [self.models] if isinstance(self.models, str) and self.models else self.models or []
        return MigGroup(
            None if self.devices == "all" else tuple(self.devices),
            tuple(model.lower() for model in models),
            tuple((self.instances or {}).items()) if self.enabled else None,
        )


_Layout: TypeAlias = Annotated[list[_Group], Meta(max_length=limits.GPUS_PER_NODE)]


@bounded_cache(16, weigh=lambda text: len(text))
def parse_layouts(text: str) -> tuple[Mapping[str, MigLayout], str]:
    """The readable layouts of a ``config.yaml`` by name, and the problem of the others ("" for none).

    Cached because nodes of one kind have ConfigMaps with equal texts.
    """
    if len(text) > limits.MIG_CONFIG:
        return {}, f"{CONFIG_KEY} has more than {limits.MIG_CONFIG} characters"
    if "mig-configs" not in text:
        return {}, NO_LAYOUTS
    try:
        documents = yaml_documents(text, nodes=limits.YAML_NODES)
    except TextError as error:
        return {}, f"{CONFIG_KEY} is not YAML: {error}"
    content = documents[0] if len(documents) == 1 else None
    configs = content.get("mig-configs") if isinstance(content, dict) else None
    if not isinstance(configs, dict):
        return {}, NO_LAYOUTS
    if len(configs) > limits.MIG_LAYOUTS:
        return {}, f"{CONFIG_KEY} has {len(configs)} layouts: at most {limits.MIG_LAYOUTS} are read"
    layouts, problems = {}, []
    for name, entries in configs.items():
        try:
            if len(name) > limits.NAME:
                raise Unreadable(f"its name has more than {limits.NAME} characters")
            layouts[name] = tuple([group.record() for group in convert(entries, _Layout)])
        except Unreadable as error:
            problems.append(f"layout {quoted(name)} is left out: {error}")
        except ValidationError as error:
            problems.append(f"layout {quoted(name)} is left out: {decoding_problem(error)}")
    return layouts, shorten("; ".join(problems[:3]))
