"""Selectors of devices: every answer here is what kube-scheduler's CEL gives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.cel.program import EvaluationFailed, MatchUnknown, Unsupported
from extender.dra.cel.selector import compile_selector, device_variables
from extender.k8s.resource_slices import parse_amount, parse_version

DEVICE = device_variables(
    "gpu.nvidia.com",
    {
        "gpu.nvidia.com": {
            "type": "gpu",
            "productName": "NVIDIA A100-SXM4-40GB",
            "index": 3,
            "healthy": True,
            "driverVersion": parse_version("570.86.15"),
            "cudaComputeCapability": parse_version("8.0.0"),
        },
        "resource.kubernetes.io": {"pcieRoot": "pci0000:65"},
    },
    {"gpu.nvidia.com": {"memory": parse_amount("40Gi"), "multiprocessors": parse_amount("108")}},
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
        ("semver('v1', true) == semver('1.0.0')", True),
        ("semver('v01.002.00-rc.1', true) == semver('1.2.0-rc.1')", True),
        ("semver('1.2.3', false) == semver('1.2.3')", True),
        ("isSemver('v1.0.0') || isSemver('v1.0.0', false)", False),
        ("isSemver('v1.0.0', true) && isSemver('0', true)", True),
        ("isSemver('1.0-rc.1', true) || isSemver('vv1.0.0', true) || isSemver('', true)", False),
        ("-7 / 2 == -3 && -7 % 2 == -1 && 7 / -2 == -3 && 7 % -2 == 1", True),
        (f"{A}.index % 2 == 1 && 7.5 / 2.5 == 3.0", True),
        ("int('12'.split('').size() == 2 ? '8' : 'x') + 1 == 9", True),
        (f"int({A}.productName.split('-')[2].split('G')[0]) >= 40", True),
        (f"{C}.memory.sub(quantity('39Gi')).add(1).compareTo(quantity('1073741825')) == 0", True),
        (f"{C}.memory.isInteger() && sign({C}.memory) == 1 && !isSemver('1.2')", True),
        (f"string({A}.index) + string(true) == '3true' && ['a'] + ['b'] == ['a', 'b']", True),
        # Macros: what decides outweighs errors, as with the operators; of one item they all count.
        (f"['A100', 'H100'].exists(model, {A}.productName.contains(model))", True),
        (f"['A100', 'NVIDIA'].all(part, {A}.productName.contains(part))", True),
        (f"[0, 3].exists(i, i == 3 || {A}.nothing == 1)", True),
        (f"[0, 3].all(i, i == 3 && {A}.nothing == 1)", False),
        ("[].all(x, x) && ![].exists(x, x) && ![].exists_one(x, x)", True),
        ("[1, 2, 2].exists_one(x, x == 1) && ![1, 2, 2].existsOne(x, x == 2)", True),
        ("[1, 2, 3].filter(x, x > 1).map(x, x * x) == [4, 9]", True),
        ("[1, 2].filter(x, x > 1) == [true] || [1] == [true]", False),
        ("device.attributes.exists(domain, domain.endsWith('.io'))", True),
        (f"{A}.exists(name, name == 'type') && [1].all(x, [2].exists(y, x + 1 == y))", True),
        ("[1].exists(device, device == 1) && device.driver == 'gpu.nvidia.com'", True),
    ],
)
def test_expressions(expression, expected):
    assert compile_selector(expression)(DEVICE) is expected


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
        "1 / 0 == 1",
        "1 % 0 == 1",
        "-9223372036854775807 / 1 - 2 < 0",
        "int('many') == 1",
        "[1, 2].all(x, x)",
        "[true, 1].exists_one(x, x)",
        f"[1, 2].exists_one(x, {A}.nothing == x)",
        f"[1, 2].filter(x, {A}.nothing == x) == []",
        f"[1, 2].exists(x, {A}.nothing == x)",
        f"{A}.type.exists(x, x == 'g')",
        "isSemver(1)",
    ],
)
def test_evaluations_that_fail_in_kube_scheduler(expression):
    with pytest.raises(EvaluationFailed):
        compile_selector(expression)(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "device.driver ==",
        "device.driver = 'x'",
        "(device.driver == 'x'",
        "['a'].exists('a', true)",
        "['a'].exists(x)",
        "[1, 2, 3].map(x, x > 1, x * x) == [4, 9]",
        "{'a': 1}.all(i, v, true)",
        "[1].all(x, [1].all(y, [1].all(z, true)))",
        f"[{', '.join('1' * 65)}].all(x, true)",
        "int(1.5) == 1",
        "string(1.5) == '1.5'",
        "1.0 / 0.0 > 1.0",
        "dyn(device.driver) == 'x'",
        "{'a': 1} == {'a': 1}",
        f"{A}.type.matches('(?=a)')",
        f"{A}.type.matches('{'a' * 257}')",
        f"{A}.type.matches('a{{1001}}')",
        f"{A}.type.matches('[')",
        "'\ud800'.matches('a')",
        f"{A}.type.matches('\ud800')",
        f"{A}.?type == {A}.?type",
        "true && " * 5000 + "true",
        "(" * 3000 + "true" + ")" * 3000,
        "cel.bind(a, [1], " + "cel.bind(a, a + a, " * 40 + "1 in a" + ")" * 41,
        "cel.bind(a, 'a', " + "cel.bind(a, a + a, " * 40 + "'a' in [a]" + ")" * 41,
    ],
)
def test_unsupported_expressions(expression):
    with pytest.raises(Unsupported):
        compile_selector(expression)(DEVICE)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*"()[]!&|?:.,'\"", "&&", "in", "device", "1", " "])).map("".join)
)
def test_any_text_is_handled(text):
    with suppress(MatchUnknown):
        compile_selector(text)(DEVICE)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^a*.*a$", "a" * 64, True),
        (".*.*.*x", "a" * 9000, False),
        ("(a|a|a|a|aa)(a|aa|a)(a|aa)(a|a)a*a*b", "a" * 64, False),
        ("a?" * 30 + "a" * 30, "a" * 30, True),
        ("(.*)(.*)(.*)(.*)(.*)x", "a" * 64, False),
        ("^(?:H100|H200)(-[A-Z0-9]+)*$", "H100-SXM5-80GB", True),
        ("(?i)^nvidia [^a-c]{4}$", "NVIDIA H200", True),
        (r"^\\d+$", "\u0661", False),  # in Python a digit
        ("a$", "a\\n", False),  # in Python a match
        (r"\\pL", "\u00e9", True),
    ],
)
def test_patterns_are_those_of_re2(pattern, text, expected):
    """As Go's package regexp has them."""
    assert compile_selector(f"'{text}'.matches('{pattern}')")(DEVICE) is expected
