"""JSON read piece by piece is the JSON that it is as a whole."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.untrusted.json_stream import members
from extender.untrusted.yaml_reader import TextError

MOST = 10_000


class Slow(io.StringIO):
    """Gives a few characters at a time."""

    def read(self, size: int | None = -1) -> str:
        return super().read(3)


def whole(text: str, most: int = MOST) -> Any:
    """The value of a text, put together from its parts."""
    found: dict[str, Any] = {}
    for name, value, is_item in members(Slow(text), most):
        if is_item:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found.get("", []) if text.lstrip().startswith("[") else found


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
NOT_EMPTY = st.recursive(
    PLAIN, lambda inner: st.lists(inner, min_size=1) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(st.lists(VALUES) | st.dictionaries(st.text(min_size=1), NOT_EMPTY), st.sampled_from([None, 2]))
def test_the_parts_are_the_whole(value: Any, indent: int | None) -> None:
    assert whole(json.dumps(value, indent=indent)) == value


@given(st.text('[]{},:"1. tru\\\n'))
@example('{"a":1,}')
@example("[1,]")
@example("[1 2]")
@example('{"a" 1}')
@example("{1: 2}")
@example("[1")
def test_a_text_is_refused_exactly_if_json_refuses_it(text: str) -> None:
    text = f"[{text}"
    try:
        value = json.loads(text)
    except ValueError:
        with pytest.raises(TextError):
            whole(text)
    else:
        assert whole(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 9_000, "nested too deep"),
        ("[" + "9" * 5000 + "]", "too many digits"),
        ("[{}, {}] {}", r"expected the end \(character 9\)"),
        ("[1, 2", "the end of a value is missing"),
        (f'[{{"a": "{"x" * MOST}"}}]', f"more than {MOST} characters"),
        ("", "expected {"),
    ],
)
def test_what_is_refused_says_why(text: str, problem: str) -> None:
    with pytest.raises(TextError, match=problem):
        whole(text)
