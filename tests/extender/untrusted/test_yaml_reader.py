"""The reader of foreign YAML and JSON: plain values, or the one error, whatever the text."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.data import CLUSTER
from extender.untrusted.limits import YAML_DEPTH, YAML_NODES
from extender.untrusted.yaml_reader import TextError, bounded_json, yaml_documents
from tests.examples import examples

ALIASES = (
    "a0: &a0 ["
    + "x, " * 60
    + "x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 60)}]\n" for n in range(1, 8))
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: " + "[" * 1_000_000, "deep"),
        ("{a: " * 300_000, "deep"),
        ("- " * 500_000, "deep"),
        ("? " * 500_000, "a key is not a string"),
        ("[" * (YAML_DEPTH + 1) + "]" * (YAML_DEPTH + 1), "deep"),
        (ALIASES, "too many values"),
        ("a: 1\nb: *a", r"an alias to an incomplete value \(line 2\)"),
        ("a: &a [*a]", "incomplete value"),
        ("{&a <<: {}, b: *a}", "incomplete value"),
        ("a: &a [1]\n*a : 2", "a key is not a string"),
        ("<<: 1", "a merge key"),
        ("<<: [[]]", "a merge key"),
        ("x: &a0 []\n" + "".join(f"y{n}: &a{n + 1} [*a{n}]\n" for n in range(YAML_DEPTH)), "deep"),
        ("".join(f"%TAG !a{n}! x\n" for n in range(80_000)) + "--- a", "directives"),
        ("a\n---\n%YAML 1.1\n", "directives"),
        ("a: !!python/object/apply:os.system [id]", "tag"),
        ("a: !!python/name:os.system b", "tag"),
        ("a: !!set {b}", "tag"),
        ("? [a]\n: b", "a key is not a string"),
        ("[1," + "1," * (YAML_NODES + 1) + "1]", "too many values"),
        ("---\n" * (YAML_NODES + 1), "too many values"),
        ("a: [b", r"did not find expected .* \(line 1\)"),
        ("a:\n\tb", r"\(line 2\)"),
        ("\0", "character"),
        ("\ud800", "character"),
    ],
    ids=str,
)
def test_a_refused_text_has_one_short_error(text: str, problem: str) -> None:
    with pytest.raises(TextError, match=problem) as caught:
        yaml_documents(text, nodes=YAML_NODES)
    assert len(str(caught.value)) <= 100


@pytest.mark.parametrize("text", [ALIASES, "a: &b 1", "a: 1\nb: *a", "<<: {a: 1}"])
def test_without_a_limit_there_are_no_aliases(text: str) -> None:
    with pytest.raises(TextError, match="not allowed"):
        yaml_documents(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[&a x, *a, {*a : *a}]", ["x", "x", {"x": "x"}]),
        ("a: &m {x: 1, y: 2}\nb: {<<: *m, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("{y: 3, <<: [{x: 1, y: 2}, {x: 2, z: 4}]}", {"y": 3, "x": 1, "z": 4}),
        ("&a {b: &a [1], c: *a}", {"b": [1], "c": [1]}),
        ('{"<<": 1}', {"<<": 1}),
    ],
)
def test_aliases_and_merge_keys(text: str, value: object) -> None:
    assert yaml_documents(text, nodes=YAML_NODES) == [value]


@settings(max_examples=examples(100))
@given(st.integers(0, 6), st.integers(1, 4))
def test_an_alias_costs_as_much_as_what_it_stands_for(levels: int, width: int) -> None:
    lines = ["- &a0 [x]"] + [f"- &a{n + 1} [{', '.join([f'*a{n}'] * width)}]" for n in range(levels)]
    sizes = [2]
    for _ in range(levels):
        sizes.append(1 + width * sizes[-1])
    needed = 1 + sum(sizes)
    assert len(yaml_documents("\n".join(lines), nodes=needed)[0]) == levels + 1
    with pytest.raises(TextError, match="too many values"):
        yaml_documents("\n".join(lines), nodes=needed - 1)


def test_aliases_are_refused_before_they_cost_anything() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TextError):
            yaml_documents(ALIASES, nodes=YAML_NODES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, -7, 0x1f, 017, 0b11, 1_000, 08]", [1, -7, 31, 15, 3, 1000, "08"]),
        ("[1.5, .5, -2., 1.0e+3, 1e3]", [1.5, 0.5, -2.0, 1000.0, "1e3"]),
        ("[yes, Off, TRUE, ~, null, NULL, nULL]", [True, False, True, None, None, None, "nULL"]),
        ("['1', \"yes\", !!str 5, !!int '5']", ["1", "yes", "5", 5]),
        ("[2026-01-02, 2026-01-02T03:04:05Z]", ["2026-01-02", "2026-01-02T03:04:05Z"]),
        ("[1_000:59, 190:20:30, 0x_, +, -, .]", ["1_000:59", "190:20:30", "0x_", "+", "-", "."]),
        ("{1: a, yes: b, ~: c, '<<': d}", {"1": "a", "yes": "b", "~": "c", "<<": "d"}),
        ("{a: 1, a: 2}", {"a": 2}),
        ("a: " + "9" * 1_000_000, {"a": "9" * 1_000_000}),
        ("a: 1." + "9" * 1_000_000, {"a": "1." + "9" * 1_000_000}),
        ("[" * YAML_DEPTH + "]" * YAML_DEPTH, None),
    ],
    ids=lambda one: str(one)[:30],
)
def test_values(text: str, value: Any) -> None:
    [document] = yaml_documents(text)
    assert value is None or document == value


def test_documents() -> None:
    assert yaml_documents("a\n---\n...\n---\n[b]\n") == ["a", None, ["b"]]
    assert yaml_documents("# nothing\n") == []
    assert yaml_documents("a: 1.30", plain=str) == [{"a": "1.30"}]


def test_a_real_file_is_read_as_by_the_yaml_loader() -> None:
    cluster = json.loads(CLUSTER.read_text())
    assert yaml_documents(yaml.safe_dump(cluster)) == [cluster]


def test_the_hook_replaces_each_map() -> None:
    [found] = yaml_documents("[{a: {b: 1}}]", hook=lambda made: tuple(made))
    assert found == [("a",)]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 1_000_000,
        "[" * (YAML_DEPTH + 1) + "]" * (YAML_DEPTH + 1),
        "[1" + ",1" * YAML_NODES + "]",
        "9" * 1_000_000,
        '"\\ud800"',
        "{} {}",
        "",
        "{a: 1}",
    ],
    ids=lambda text: text[:20],
)
def test_refused_json_of_a_request(text: str) -> None:
    with pytest.raises(TextError) as caught:
        bounded_json(text, YAML_NODES)
    assert len(str(caught.value)) <= 100


SYNTAX = st.sampled_from(
    [
        *"[]{},%>#\t\r\u2028\ufeff\0\\a1_.'\"",
        *["&a ", "*a ", ": ", "- ", "? ", "!!int ", "!x ", "<<", "---", "...", "0x", "e+9", "\n", "\n  "],
    ]
)
TEXTS = st.lists(SYNTAX, max_size=60).map("".join) | st.text(max_size=60) | st.binary().map(bytes.hex)


@given(TEXTS)
@example('"\n\\%')
@example("!<a b")
@example("&\n*")
def test_any_text_gives_values_or_an_error(text: str) -> None:
    for read in (lambda: yaml_documents(text, nodes=50), lambda: [bounded_json(text, 50)]):
        try:
            value = read()
        except TextError as error:
            value = str(error)
        check(value)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    PLAIN | st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text("abc~1", max_size=5), inner, max_size=5)
    ),
)


@given(VALUES)
def test_dumped_values_are_read_back(value: Any) -> None:
    assert bounded_json(json.dumps(value), 1000) == value
    [found] = yaml_documents(yaml.safe_dump(value))
    assert as_text(found) == as_text(value)


def check(value: Any) -> None:
    """Nothing but plain values."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            check(one)
    else:
        assert value is None or type(value) in (str, int, float, bool)


def as_text(value: Any) -> Any:
    """Floats as YAML 1.1 writes them may come back as text: 1e-05."""
    if isinstance(value, dict):
        return {key: as_text(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_text(one) for one in value]
    if isinstance(value, str) and re.fullmatch(r"-?[0-9.]+e[-+][0-9]+", value):
        return float(value)
    return value
