"""Selectors of devices: every answer here is what kube-scheduler's CEL gives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.cel import Failed, NotUnderstood, Unclear, compiled, subject
from extender.dra.values import amount, version

DEVICE = subject(
    "gpu.nvidia.com",
    {
        "gpu.nvidia.com": {
            "type": "gpu",
            "productName": "NVIDIA A100-SXM4-40GB",
            "index": 3,
            "healthy": True,
            "driverVersion": version("570.86.15"),
            "cudaComputeCapability": version("8.0.0"),
        },
        "resource.kubernetes.io": {"pcieRoot": "pci0000:65"},
    },
    {"gpu.nvidia.com": {"memory": amount("40Gi"), "multiprocessors": amount("108")}},
)
A = "device.attributes['gpu.nvidia.com']"
C = 'device.capacity["gpu.nvidia.com"]'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # As in the classes and examples of NVIDIA's driver.
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ('device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"', False),
        (f"{A}.productName.lowerAscii().matches('^.*a100.*$')", True),
        (f"{A}.productName.lowerAscii().matches('^.*(h100|b200).*$')", False),
        (f"{A}.driverVersion.isGreaterThan(semver('560.0.0'))", True),
        (f"{C}.memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"{C}.memory.isGreaterThan(quantity('40Gi'))", False),
        (f"{C}.memory == quantity('40960Mi')", True),
        (f"{C}.multiprocessors.asInteger() > 100", True),
        # Lookups.
        ("device.attributes['other.example.com'] == device.attributes['other.example.com'] || true", True),
        ("'gpu.nvidia.com' in device.attributes", True),
        ("'other.example.com' in device.attributes", False),
        (f"has({A}.index) && !has({A}.nothing)", True),
        ("has(device.attributes['other.example.com'].x)", False),
        (f"{A}.?nothing.orValue('none') == 'none'", True),
        (f"{A}[?'type'].orValue('none') == 'gpu'", True),
        ("'pcieRoot' in device.attributes['resource.kubernetes.io']", True),
        (f"cel.bind(dra, {A}, dra.healthy && dra.index == 3)", True),
        # Values of different types are never equal, and 1 is no true.
        (f"{A}.healthy == 1", False),
        (f"{A}.index == '3'", False),
        (f"{A}.index == 3.0", True),
        (f"{A}.type in ['mig', 'gpu']", True),
        (f"{A}.driverVersion != '570.86.15'", True),
        (f"{A}.driverVersion in ['570.86.15']", False),
        # An error counts only where the other side does not decide.
        (f"{A}.nothing == 1 || true", True),
        (f"true || {A}.nothing == 1", True),
        (f"{A}.nothing == 1 && false", False),
        (f"{A}.index > 5 ? {A}.nothing : {A}.healthy", True),
        # Precedence, strings, numbers.
        ("!false && 1 + 2 * 3 == 7 && -1 < 0", True),
        (r"'a\'b' == \"a'b\"".replace('\\"', '"'), True),
        (r"r'\d' == '\\d'", True),
        ("device.allowMultipleAllocations == false // as of now", True),
        (f"{A}.cudaComputeCapability.major() >= 8 && size({A}.type) == 3", True),
        ("semver('1.2.3-rc.2').isLessThan(semver('1.2.3-rc.10'))", True),
        ("semver('1.2.3-rc.2').isLessThan(semver('1.2.3'))", True),
    ],
)
def test_expressions(expression, expected):
    assert compiled(expression)(DEVICE) is expected


@pytest.mark.parametrize(
    "expression",
    [
        f"{A}.nothing == 'x'",
        "device.attributes['other.example.com'].x == 1",
        f"{A}.driverVersion == '570.86.15'",
        f"{A}.index > '3'",
        f"{A}.index && true",
        f"!{A}.index",
        f"{A}.index",
        f"{C}.nothing.compareTo(quantity('1')) > 0",
        f"{C}.memory.compareTo(semver('1.0.0')) > 0",
        "semver('1.2') == semver('1.2.0')",
        f"{A}.nothing == 1 || false",
        "9223372036854775807 + 1 > 0",
        "nobody.knows == 1",
    ],
)
def test_what_fails_for_kube_scheduler_fails_here(expression):
    with pytest.raises(Failed):
        compiled(expression)(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "device.driver ==",
        "device.driver = 'x'",
        "(device.driver == 'x'",
        "['a'].exists(x, x == device.driver)",
        "dyn(device.driver) == 'x'",
        "{'a': 1} == {'a': 1}",
        f"{A}.type.matches('(a*)*b')",
        f"{A}.type.matches('(?=a)')",
        f"{A}.type.matches('a*a*a*a*a*a*b')",
        f"{A}.type.matches('[')",
        f"{A}.?type == {A}.?type",
        "true && " * 5000 + "true",
        "(" * 3000 + "true" + ")" * 3000,
    ],
)
def test_what_is_not_understood_says_so(expression):
    with pytest.raises(NotUnderstood):
        compiled(expression)(DEVICE)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*"()[]!&|?:.,'\"", "&&", "in", "device", "1", " "])).map("".join)
)
def test_no_text_breaks_it(text):
    with suppress(Unclear):
        compiled(text)(DEVICE)


@pytest.mark.parametrize(
    "pattern", ["(a|a|a|a|aa)(a|aa|a)(a|aa)(a|a)a*a*b", "a?" * 30 + "a" * 30, "(.*)(.*)(.*)(.*)(.*)x"]
)
def test_a_pattern_that_could_take_for_ever_is_not_tried(pattern):
    with pytest.raises(NotUnderstood):
        compiled(f"'{'a' * 64}'.matches('{pattern}')")(DEVICE)
