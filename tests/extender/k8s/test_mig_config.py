"""The config.yaml of the MIG manager is parsed into layouts, whatever it contains."""

from __future__ import annotations

import pytest

from extender.k8s.device_objects import parse_layouts
from extender.untrusted.limits import MIG_CONFIG, MIG_LAYOUTS, PROBLEM


@pytest.mark.parametrize(
    "text", ["", "mig-configs", "mig-configs: 3", "[", "- a", "a: *b", "[" * 100_000, "\0"]
)
def test_an_invalid_configuration_has_no_layouts(text: str) -> None:
    found, problem = parse_layouts(text)
    assert (dict(found), bool(problem)) == ({}, True)


@pytest.mark.parametrize(
    "entry",
    [
        "{devices: some, mig-enabled: true}",
        "{devices: [64], mig-enabled: true}",
        "{devices: [-1], mig-enabled: true}",
        "{devices: [true], mig-enabled: true}",
        "{mig-enabled: true}",
        "{devices: all}",
        "{devices: all, mig-enabled: 1}",
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 1000000000000}}',
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": -1}}',
        '{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": many}}',
        '{devices: all, mig-enabled: true, mig-devices: ["1g.10gb"]}',
        '{devices: all, mig-enabled: false, mig-devices: {"1g.10gb": 1}}',
        "{device-filter: 7, devices: all, mig-enabled: true}",
        "all",
    ],
)
def test_only_invalid_layouts_are_left_out(entry: str) -> None:
    found, problem = parse_layouts(f"mig-configs:\n  broken: [{entry}]\n  all-disabled: [{WHOLE}]")
    assert list(found) == ["all-disabled"]
    assert problem.startswith("layout 'broken' is left out: ")


WHOLE = "{devices: all, mig-enabled: false}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mig-configs: " + "[" * 60_000, "deep"),
        ("a: &a [x]\nmig-configs: *a", "no mig-configs"),
        ("mig-configs: {a: [" + "x," * (MIG_CONFIG // 2 - 20) + "]}", "too many values"),
        ("#" * (MIG_CONFIG + 1), "characters"),
        ("mig-configs: {" + "".join(f"l{n}: []," for n in range(MIG_LAYOUTS + 1)) + "}", "layouts"),
        ("mig-configs: {}\n---\nmig-configs: {}", "no mig-configs"),
    ],
)
def test_a_configuration_beyond_a_limit_has_one_short_problem(text: str, problem: str) -> None:
    found, said = parse_layouts(text)
    assert not found
    assert problem in said
    assert len(said) < 150


def test_a_layout_beyond_a_limit_is_left_out_with_a_short_problem() -> None:
    long = [
        f"{'n' * 1000}: [7]",
        "many: [" + f"{WHOLE}," * 65 + "]",
        f"index: [{{devices: {[0] * 65}, mig-enabled: true}}]",
        f"model: [{{devices: all, device-filter: {['x'] * 65}, mig-enabled: true}}]",
    ]
    found, problem = parse_layouts("mig-configs:\n  " + "\n  ".join([*long, f"good: [{WHOLE}]"]))
    assert list(found) == ["good"]
    assert len(problem) <= PROBLEM


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("mig-configs: {a: &a [1, 1], b: &b [*a, *a], c: [*b, *b], d: {x: *b}}", set()),
        ("x" * (65 << 10), set()),
        ("mig-configs: {" + ", ".join(f"l{i}: []" for i in range(300)) + "}", set()),
        ("mig-configs: {0x" + "f" * 5000 + ": []}", set()),
        ("mig-configs: {a: [{devices: 0x" + "f" * 5000 + ", mig-enabled: true}]}", set()),
        ("mig-configs: {a: [{devices: [0x" + "f" * 5000 + "], mig-enabled: true}]}", set()),
        ("mig-configs: {a: [" + "{devices: all, mig-enabled: false}, " * 65 + "]}", set()),
        ("mig-configs: {" + "n" * 5000 + ": []}", set()),
    ],
)
def test_a_configuration_of_the_mig_manager_is_bounded(config: str, found: set[str]):
    layouts, problem = parse_layouts(config)
    assert set(layouts) == found
    assert len(problem) <= PROBLEM
    assert problem
