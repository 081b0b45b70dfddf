"""Objects that describe the GPUs of nodes: Koordinator's Device, and the ConfigMap of NVIDIA's MIG manager.

Facts about MIG layouts (NVIDIA/mig-parted at bd7160f4): the format is ``api/spec/v1/spec.go``. GPUs are named
by their index in NVML's order, ``device-filter`` by PCI device and vendor id. If two entries apply to a GPU,
the later one counts (``cmd/nvidia-mig-parted/assert/assert.go``). The ConfigMap of a single node names it in
the label ``nvidia.com/node-name`` (``cmd/nvidia-mig-manager/main.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from extender.k8s.manifest import Manifest, Pairs, Texts
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import (
    GPUS_PER_NODE,
    LISTED_NAMES,
    MIG_CONFIG,
    MIG_LAYOUTS,
    MIG_PROFILES,
    NAME,
    YAML_NODES,
    quoted,
    shorten,
)
from extender.untrusted.yaml_reader import TextError, yaml_documents

CONFIG_KEY = "config.yaml"
NO_LAYOUTS = f"{CONFIG_KEY} has no mig-configs"
"""The problem of a ConfigMap with other data."""
NODE_LABEL = "nvidia.com/node-name"
PER_NODE_SELECTOR = f"app.kubernetes.io/component=nvidia-mig-manager,{NODE_LABEL}"
"""Label selector of the ConfigMaps that the MIG manager writes itself, one for each node."""


@dataclass(frozen=True, slots=True)
class KoordinatorGpu:
    """One GPU of a ``KoordinatorDevice``."""

    minor: int
    uuid: str
    healthy: bool
    resources: Pairs = ()


@dataclass(frozen=True, slots=True)
class KoordinatorDevice:
    """Koordinator's ``Device``: lists the GPUs of the node with the same name."""

    kind: ClassVar[Literal["Device"]] = "Device"
    name: str
    gpus: tuple[KoordinatorGpu, ...] = ()

    @property
    def key(self) -> str:
        """The name of the node."""
        return self.name


@dataclass(frozen=True, slots=True)
class MigGroup:
    """An entry of a MIG layout: the GPUs that it applies to, and the MIG instances on each of them.

    ``indices`` None means every GPU. ``models`` are PCI device ids in lower case; empty means any model.
    ``instances`` pairs a profile, as it was written, with a number; None means that MIG is off.
    """

    indices: tuple[int, ...] | None
    models: tuple[str, ...]
    instances: tuple[tuple[str, int], ...] | None


MigLayout: TypeAlias = tuple[MigGroup, ...]
"""The MIG instances of a node's GPUs. If two entries apply to a GPU, the later one counts."""


@dataclass(frozen=True, slots=True)
class MigLayouts:
    """A ConfigMap of NVIDIA's MIG manager: layouts by name, for one node or for all.

    ``problem`` says which layouts could not be read, "" for none.
    """

    kind: ClassVar[Literal["ConfigMap"]] = "ConfigMap"
    name: str
    node: str = ""  # "" for all nodes without a ConfigMap of their own
    layouts: Mapping[str, MigLayout] = field(default_factory=dict)
    problem: str = ""

    @property
    def key(self) -> str:
        """``namespace/name`` of the ConfigMap."""
        return self.name


class _Device(Struct, frozen=True, gc=False):
    type: str = ""
    id: str = ""
    minor: int | None = None
    health: bool = False
    resources: Texts = {}


class _DeviceSpec(Struct, frozen=True, gc=False):
    devices: tuple[_Device, ...] = ()


class KoordinatorDeviceManifest(Manifest, frozen=True, gc=False):
    """A ``Device`` of ``scheduling.koordinator.sh/v1alpha1``."""

    spec: _DeviceSpec = _DeviceSpec()

    def record(self) -> KoordinatorDevice:
        """The GPUs of the node. A GPU without minor number is left out, because no pod can name it."""
        gpus = [
            KoordinatorGpu(one.minor, one.id, one.health, tuple(sorted(one.resources.items())))
            for one in self.spec.devices
            if one.type == "gpu" and one.minor is not None
        ]
        return KoordinatorDevice(self.metadata.name, tuple(gpus))


class MigLayoutsManifest(Manifest, frozen=True, gc=False):
    """A ConfigMap of NVIDIA's MIG manager."""

    data: Texts = {}  # noqa: RUF012 (a new one for each)

    def record(self) -> MigLayouts:
        """The layouts that could be read, with the problem of the others."""
        name = f"{self.metadata.namespace or 'default'}/{self.metadata.name}"
        node = self.metadata.labels.get(NODE_LABEL, "")
        return MigLayouts(name, node, *parse_layouts(self.data.get(CONFIG_KEY, "")))


class _Malformed(ValueError):
    """The MIG manager would not accept this entry."""


@bounded_cache(16, weigh=lambda text: len(text))
def parse_layouts(text: str) -> tuple[Mapping[str, MigLayout], str]:
    """The readable layouts of a ``config.yaml`` by name, and the problem of the others ("" for none).

    Cached because nodes of one kind have ConfigMaps with equal texts.
    """
    if len(text) > MIG_CONFIG:
        return {}, f"{CONFIG_KEY} has more than {MIG_CONFIG} characters"
    if "mig-configs" not in text:
        return {}, NO_LAYOUTS
    try:
        documents = yaml_documents(text, nodes=YAML_NODES)
    except TextError as error:
        return {}, f"{CONFIG_KEY} is not YAML: {error}"
    content = documents[0] if len(documents) == 1 else None
    configs = content.get("mig-configs") if isinstance(content, dict) else None
    if not isinstance(configs, dict):
        return {}, NO_LAYOUTS
    if len(configs) > MIG_LAYOUTS:
        return {}, f"{CONFIG_KEY} has {len(configs)} layouts: at most {MIG_LAYOUTS} are read"
    layouts, problems = {}, []
    for name, entries in configs.items():
        try:
            layouts[_name(name)] = tuple([_group(entry) for entry in _list(entries, GPUS_PER_NODE)])
        except _Malformed as error:
            problems.append(f"layout {quoted(name)} is left out: {error}")
    return layouts, shorten("; ".join(problems[:3]))


def _group(entry: object) -> MigGroup:
    if not isinstance(entry, dict):
        raise _Malformed("an entry is not a map")
    enabled, instances = entry.get("mig-enabled"), entry.get("mig-devices") or {}
    if not isinstance(enabled, bool) or not isinstance(instances, dict):
        raise _Malformed("mig-enabled must be true or false, mig-devices a map")
    if len(instances) > MIG_PROFILES:
        raise _Malformed(f"mig-devices has {len(instances)} entries: at most {MIG_PROFILES} are read")
    counts = {_name(name): _number(n, MIG_PROFILES, _shown(name)) for name, n in instances.items()}
    if counts and not enabled:
        raise _Malformed("mig-devices while mig-enabled is false")
    device_filter = entry.get("device-filter") or []
    models = [device_filter] if isinstance(device_filter, str) else _list(device_filter, LISTED_NAMES)
    return MigGroup(
        _indices(entry.get("devices")),
        tuple(_name(model).lower() for model in models),
        tuple(counts.items()) if enabled else None,
    )


def _indices(devices: object) -> tuple[int, ...] | None:
    if devices == "all":
        return None
    listed = _list(devices, GPUS_PER_NODE)
    return tuple([_number(index, GPUS_PER_NODE - 1, "the index of a GPU") for index in listed])


def _list(value: object, most: int) -> list[object]:
    if not isinstance(value, list):
        raise _Malformed(f"{quoted(_shown(value))} is not a list")
    if len(value) > most:
        raise _Malformed(f"a list has {len(value)} entries: at most {most} are read")
    return value


def _name(value: object) -> str:
    text = _shown(value)
    if len(text) > NAME:
        raise _Malformed(f"a name has more than {NAME} characters")
    return text


def _number(value: object, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        number = shorten(_shown(value), 63)
        raise _Malformed(f"{shorten(what, 63)} must be a whole number from 0 to {most}, not {number}")
    return value


def _shown(value: object) -> str:
    """A value as text. For a list, a map or a large number its type, because the text may be very long."""
    if isinstance(value, int) and abs(value) < 1 << 63:
        return str(value)
    return value if isinstance(value, str) else f"a {type(value).__name__}"
