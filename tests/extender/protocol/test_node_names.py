"""Node names in bulk, compared with Python's json module."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from extender.protocol.node_names import NO_NAMES, NameTable, NodeNames

# As they may be in a cluster, and as they may be in a snapshot file or in a request of somebody's.
plain = st.text("abc-.09", min_size=1, max_size=300)
any_name = plain | st.text().map(lambda text: text.encode(errors="replace").decode())


def at_the_end(array: str) -> NodeNames | None:
    message = f'{{"Pod":null,"NodeNames":{array}}}'.encode()
    return NodeNames.at_the_end(message, message.index(b'["') + 2)


@given(st.lists(plain, min_size=1))
def test_plain_names_are_found_in_the_text(names: list[str]) -> None:
    found = at_the_end(json.dumps(names, separators=(",", ":")))
    assert found is not None
    assert list(found) == [found[i] for i in range(len(found))] == names


@pytest.mark.parametrize(
    "array",
    [
        *('["a", "b"]', '["a" ]', '["a",]', '["a"', '["a', '["a"]]', '["a"],"Pod":{}', '["a",1]', '["a"],'),
        *('["a\\u0062"]', '["a\\""]', '["ü"]', '["a\n"]', '["a""b"]', '["a",["b"]]', '["', '["]'),
    ],
)
def test_anything_else_needs_a_parser(array: str) -> None:
    assert at_the_end(array) is None


@given(st.text('",[]{}\\ab ', max_size=30))
def test_found_names_are_those_of_the_array(array: str) -> None:
    if found := at_the_end('["' + array):
        assert list(found) == json.loads('["' + array)


@given(st.lists(any_name), st.data())
def test_names_come_back_as_json(names: list[str], data: st.DataObject) -> None:
    held = NodeNames.of(names)
    assert json.loads(held.json()) == list(held) == names
    which = np.array([data.draw(st.booleans()) for _ in names], np.bool_)
    assert list(held.where(which)) == [name for name, picked in zip(names, which, strict=True) if picked]


@given(st.lists(any_name), st.data())
def test_each_name_is_followed_by_its_text(names: list[str], data: st.DataObject) -> None:
    texts = (b"", b'":1,"', b"a longer text that follows a name")
    which = np.array([data.draw(st.integers(0, 2)) for _ in names], np.uint8)
    expected = [to_json(name)[1:-1] + texts[w] for name, w in zip(names, which, strict=True)]
    assert NodeNames.of(names).interleave(texts, which) == b"".join(expected)


@given(st.dictionaries(any_name, st.integers(0, 1 << 40)), st.lists(any_name))
def test_a_table_finds_its_names_and_no_others(numbers: dict[str, int], others: list[str]) -> None:
    asked = [*others, *numbers, *others]
    found = NameTable(numbers).find(NodeNames.of(asked))
    assert found.tolist() == [numbers.get(name, -1) for name in asked]


@given(
    st.lists(plain, unique=True, max_size=40),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.permutations(range(6)))),
)
def test_a_table_that_has_learned_an_order_finds_the_same(
    names: list[str], requests: list[tuple[int, int, list[int]]]
) -> None:
    numbers = {name: number for number, name in enumerate(names)}
    table = NameTable(numbers)
    for first, dropped, order in requests:
        asked = names[first:] + names[:first]
        asked[:6] = [asked[i] for i in order if i < len(asked)]
        asked[dropped : dropped + 2] = ["unknown"]
        found = table.find(NodeNames.of(asked))
        assert found.tolist() == [numbers.get(name, -1) for name in asked]


@given(st.lists(plain | st.text("-a", max_size=2), min_size=1), st.data())
def test_names_that_are_parts_of_other_lists_come_back_as_json(names: list[str], data: st.DataObject) -> None:
    """Names are copied together where the text between them allows it."""
    held = at_the_end(json.dumps(names, separators=(",", ":")))
    assert held is not None
    which = np.array([data.draw(st.booleans()) for _ in names], np.bool_)
    assert json.loads(held.where(which).json()) == [n for n, w in zip(names, which, strict=True) if w]


def test_names_with_the_same_hash_are_distinguished() -> None:
    names = [f"{'x' * 300}{i}" for i in range(500)]  # they differ beyond what decides about the place
    table = NameTable({name: i for i, name in enumerate(names)})
    assert table.find(NodeNames.of(names)).tolist() == list(range(500))
    assert table.find(NodeNames.of(["x" * 300])).tolist() == [-1]


def test_no_names() -> None:
    assert (len(NO_NAMES), list(NO_NAMES), NO_NAMES.json()) == (0, [], b"[]")
    assert NameTable({}).find(NodeNames.of(["a"])).tolist() == [-1]
    assert NameTable({"a": 1}).find(NO_NAMES).tolist() == []
