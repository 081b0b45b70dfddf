"""GPU models and MIG geometry, read from ``data/gpus.json`` (each entry names its sources).

The catalog provides properties that a node's labels omit; labels override it. For an unknown model the answer
is ``None``, never an error. The catalog also gives the value of a GPU relative to an A100 with 80 GB
(``GpuValues``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from statistics import geometric_mean

_PROFILE = re.compile(r"(\d{1,2})g\.(\d{1,4})gb([\w.+-]{0,32})", re.ASCII)
_PRODUCT_PROFILE = re.compile(r"INVALID|\d{1,2}g\.\d{1,4}gb[A-Za-z0-9.-]{0,32}", re.ASCII)
_LONGEST = 128
"""Characters of a product label that are parsed. The API server allows 63."""


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """The positions on the axis of memory slices where instances of one size may start. ``attributes``: those
    of its profiles, with "" for the profile without one."""

    compute: int
    size: int
    starts: tuple[int, ...]
    attributes: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The division of a GPU into MIG instances: slices and valid placements.

    A set of instances is valid if their windows ``[start, start + size)`` do not overlap. For the 7/8
    geometry the seven compute slices are then always sufficient (the tests enumerate all sets).
    """

    compute_slices: int
    memory_slices: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """One GPU model with its name in node labels. ``fp16_tflops``: dense. ``island``: number of GPUs of one
    node that are all-pairs NVLink peers. ``names_gib``: other sizes by which drivers have named its MIG
    profiles."""

    name: str
    product: re.Pattern[str]
    memory_mib: int
    fp16_tflops: int
    island: int
    geometry: Geometry | None
    names_gib: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The parts of a MIG profile name: ``1g.10gb.me`` is compute 1, memory 10 GB, attribute ``.me``."""

    compute: int
    memory_gb: int
    attribute: str

    def __str__(self) -> str:
        return f"{self.compute}g.{self.memory_gb}gb{self.attribute}"


@dataclass(frozen=True, slots=True)
class Product:
    """The parts of the label ``nvidia.com/gpu.product``.

    ``profile`` is set with the single MIG strategy (``INVALID`` for an inconsistent layout), ``shared`` if
    the device plugin replicates the device without renaming the resource.
    """

    base: str
    profile: str | None
    shared: bool


def parse_product(label: str) -> Product:
    """Split a product label into model, MIG profile and sharing (GFD, internal/lm/resource.go)."""
    label = label[:_LONGEST]
    rest = label.removesuffix("-SHARED")
    base, mig, profile = rest.rpartition("-MIG-")
    if mig and _PRODUCT_PROFILE.fullmatch(profile):
        return Product(base, profile, rest != label)
    return Product(rest, None, rest != label)


def parse_profile(name: str) -> Profile | None:
    """Parse a profile name, None if it is not one. Names differ between drivers, so they are not
    enumerated."""
    match = _PROFILE.fullmatch(name)
    return Profile(int(match[1]), int(match[2]), match[3]) if match else None


def placement_of(geometry: Geometry, profile: Profile, memory_mib: int) -> MigPlacement | None:
    """The valid placements of ``profile`` on a GPU of ``memory_mib``; ``None`` if the geometry has none.

    Profiles of equal compute differ in memory slices (1g.10gb and 1g.20gb on an 80 GB GPU): the size nearest
    to the memory in the name is returned.
    """
    of_compute = [p for p in geometry.placements if p.compute == profile.compute]
    if not of_compute or memory_mib <= 0:
        return None
    slices = profile.memory_gb * 1024 * geometry.memory_slices / memory_mib
    return min(of_compute, key=lambda p: abs(p.size - slices))


def profile_names(geometry: Geometry, gib: int) -> dict[str, MigPlacement]:
    """The MIG profiles of a GPU of this many GiB, named as by drivers: the memory is that of whole eighths of
    the GPU (NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go)."""
    found: dict[str, MigPlacement] = {}
    for placement in geometry.placements:
        eighths = -(-8 * placement.size // geometry.memory_slices)
        size = f"{placement.compute}g.{(eighths * gib + 4) // 8}gb"
        found |= {size + attribute: placement for attribute in placement.attributes}
    return found


@lru_cache(maxsize=1024)
def unknown_model(memory_mib: int, profiles: frozenset[str]) -> Model | None:
    """A model for a GPU that is not in the catalog, with the first geometry that has all these profiles on a
    GPU of this size; None if the size is 0 or there are no profiles."""
    able = (m.geometry for m in models() if m.geometry)
    geometry = next((g for g in able if profiles <= profile_names(g, -(-memory_mib // 1024)).keys()), None)
    return Model("", re.compile("$^"), memory_mib, 0, 0, geometry) if memory_mib and profiles else None


@lru_cache(maxsize=1024)
def find_model(product: str) -> Model | None:
    """The model whose pattern matches a product label stripped of its MIG and sharing suffixes."""
    return next((m for m in models() if m.product.match(product)), None)


@lru_cache(maxsize=1024)
def named_model(name: str | None) -> Model | None:
    """The model of this name, None if there is none."""
    return next((model for model in models() if model.name == name), None)


@cache
def models() -> tuple[Model, ...]:
    """All models of the catalog, in file order."""
    data = json.loads(resources.files("packing").joinpath("data/gpus.json").read_text())
    geometries = dict[str, Geometry]()
    for name, entry in data["geometries"].items():
        placements = tuple(
            MigPlacement(p["compute"], p["size"], tuple(p["starts"]), ("", *p.get("attributes", ())))
            for p in entry["placements"]
        )
        geometries[name] = Geometry(entry["compute_slices"], entry["memory_slices"], placements)
    return tuple(
        Model(
            m["name"],
            re.compile(m["product"]),
            m["memory_mib"],
            m["fp16_tflops"],
            m["island"],
            geometries.get(m["mig"]),
            tuple(m.get("names_gib", ())),
        )
        for m in data["models"]
    )


_FP16, _MIB = 312.0, 81920.0
"""Dense FP16 rate in TFLOPS and memory of an A100 with 80 GB."""
UNKNOWN_VALUE = 1.0
"""The value of a GPU of an unknown model."""


def catalog_value(model: Model) -> float:
    """The mean of dense FP16 rate and memory, relative to an A100 with 80 GB; this ranks models roughly by
    price."""
    return (model.fp16_tflops / _FP16 + model.memory_mib / _MIB) / 2


def number_for(numbers: Mapping[str, float], model: str | None, product: str) -> float | None:
    """The number of the longest name whose words are all among the words of the model and the product label;
    None if there is none. Case, hyphens and spaces are ignored."""
    words = set(_words(f"{model or ''} {product}"))
    found = [name for name in numbers if (wanted := _words(name)) and set(wanted) <= words]
    return numbers[max(found, key=len)] if found else None


def _words(text: str) -> list[str]:
    return text.lower().replace("-", " ").split()


@dataclass(frozen=True, slots=True)
class GpuValues:
    """``given`` numbers by name, such as prices (above 0), in any unit; other models have the catalog's
    values."""

    given: Mapping[str, float] = field(default_factory=dict)

    def of(self, model: str | None, product: str) -> float:
        """The value of one GPU, above 0, about 1 for an A100 with 80 GB; ``UNKNOWN_VALUE`` if neither the
        given names nor the catalog include the model."""
        if (number := number_for(self.given, model, product)) is not None:
            return number / _unit(tuple(self.given.items()))
        known = named_model(model)
        return catalog_value(known) if known else UNKNOWN_VALUE


@lru_cache(maxsize=16)
def _unit(given: tuple[tuple[str, float], ...]) -> float:
    """The given number that corresponds to a value of 1: the mean ratio to the catalog's values, so that
    models without a given number keep their relation to those with one."""
    named = [(number_for(dict(given), model.name, ""), catalog_value(model)) for model in models()]
    ratios = [number / value for number, value in named if number is not None]
    return geometric_mean(ratios) if ratios else 1.0
