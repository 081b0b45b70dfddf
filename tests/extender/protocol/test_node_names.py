"""Node names in bulk, compared with Python's json module."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.protocol.node_names import NameTable, NodeNames

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


@given(st.dictionaries(any_name, st.integers(0, 1 << 40)), st.lists(any_name))
def test_a_table_finds_its_names_and_no_others(numbers: dict[str, int], others: list[str]) -> None:
    asked = [*others, *numbers, *others]
    found = NameTable(numbers).find(NodeNames.of(asked))
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
