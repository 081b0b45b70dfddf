"""The catalog: names as labels write them, and MIG geometry checked by enumeration."""

from __future__ import annotations

import pytest

from packing.model import gpu_catalog
from packing.model.gpu_catalog import (
    find_model,
    models,
    parse_product,
    parse_profile,
    placement_of,
    unknown_model,
)


@pytest.mark.parametrize(
    ("label", "base", "profile", "shared"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3", None, False),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA-A100-SXM4-40GB", "1g.5gb", True),
        ("Tesla-T4-SHARED", "Tesla-T4", None, True),
        ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "NVIDIA-H100-80GB-HBM3", "INVALID", False),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me", "NVIDIA-H100-80GB-HBM3", "1g.10gb.me", False),
        ("", "", None, False),
    ],
)
def test_product_labels(label, base, profile, shared):
    product = parse_product(label)
    assert (product.base, product.profile, product.shared) == (base, profile, shared)


@pytest.mark.parametrize(
    "name", ["NVIDIA-H100-80GB-HBM3", "Tesla-T4", "NVIDIA-GB200", "NVIDIA-H200", "NVIDIA-H200-NVL"]
)
def test_each_product_has_exactly_one_model(name):
    assert [m.name for m in models() if m.product.match(name)] == [find_model(name).name]


def test_an_unknown_product_is_none():
    assert find_model("Frobnicator-9000") is None


@pytest.mark.parametrize("name", ["1c.3g.40gb", "3g", "", "xg.10gb", "1g.10g"])
def test_what_is_no_profile(name):
    assert parse_profile(name) is None


@pytest.mark.parametrize(
    ("product", "profile", "size", "starts"),
    [
        ("NVIDIA-A100-SXM4-40GB", "1g.5gb", 1, 7),
        ("NVIDIA-A100-SXM4-40GB", "1g.10gb", 2, 4),
        ("NVIDIA-H100-80GB-HBM3", "1g.10gb", 1, 7),
        ("NVIDIA-H100-80GB-HBM3", "1g.20gb", 2, 4),
        ("NVIDIA-H100-80GB-HBM3", "3g.40gb", 4, 2),
        ("NVIDIA-H200", "1g.35gb", 2, 4),
        ("NVIDIA-GB200", "1g.24gb", 1, 7),  # the name of an earlier driver
        ("NVIDIA-A30", "2g.12gb", 2, 2),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb", 3, 4),
    ],
)
def test_profiles_find_their_placements(product, profile, size, starts):
    model = find_model(product)
    placement = placement_of(model.geometry, parse_profile(profile), model.memory_mib)
    assert (placement.size, len(placement.starts)) == (size, starts)


def legal_states(geometry: gpu_catalog.Geometry) -> list[tuple[tuple[int, int, int], ...]]:
    """Every set of instances with windows that do not overlap, as (compute, start, size)."""
    options = [(p.compute, start, p.size) for p in geometry.placements for start in p.starts]
    states, grow = [()], [()]
    while grow:
        grow = [
            (*state, option)
            for state in grow
            for option in options
            if (not state or option > state[-1])
            and all(option[1] >= s + z or option[1] + option[2] <= s for _, s, z in state)
        ]
        states += grow
    return states


def test_the_seven_slice_geometry_has_the_known_number_of_states():
    geometry = find_model("NVIDIA-H100-80GB-HBM3").geometry
    states = legal_states(geometry)
    assert len(states) == 723
    assert len({sum(1 << i for _, s, z in state for i in range(s, s + z)) for state in states}) == 192
    assert max(sum(compute for compute, _, _ in state) for state in states) == geometry.compute_slices


@pytest.mark.parametrize(
    ("memory_mib", "profiles", "slices"),
    [
        (143771, {"1g.18gb", "2g.35gb"}, (7, 8)),
        (97887, {"1g.24gb", "2g.48gb"}, (4, 4)),
        (48935, {"1g.24gb"}, (2, 2)),
        (48935, {"1g.24gb", "1g.12gb"}, None),
    ],
)
def test_a_model_that_is_not_known_has_a_geometry_by_the_names_of_its_profiles(memory_mib, profiles, slices):
    geometry = unknown_model(memory_mib, frozenset(profiles)).geometry
    assert (geometry and (geometry.compute_slices, geometry.memory_slices)) == slices


def test_without_memory_or_profiles_nothing_is_known_of_a_model():
    assert unknown_model(0, frozenset({"1g.10gb"})) is None
    assert unknown_model(81559, frozenset()) is None
