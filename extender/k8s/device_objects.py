"""Records of objects that describe the GPUs of nodes: Koordinator's Device, MIG layouts of a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class KoordinatorGpu:
    """One GPU of a ``KoordinatorDevice``."""

    minor: int
    uuid: str
    healthy: bool
    resources: tuple[tuple[str, str], ...] = ()


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
