"""A large message is split into its parts, and only what is read of them becomes values."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.protocol import message_parser
from extender.protocol.codec import parse_bind, parse_filter, parse_preempt
from extender.protocol.message_parser import Value, whole
from extender.protocol.messages import BadMessage

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
POD = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}


@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, 1]), st.booleans())
def test_the_members_of_an_object_are_what_a_parser_says(
    value: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    try:
        found = whole(b" \n" + text + b"\t").members(100)
    except BadMessage:
        assert "\\ud" in text.decode()  # half a surrogate pair in a key
        return
    assert [(key, json.loads(one.json)) for key, one in found] == list(value.items())


@given(st.lists(VALUES), st.sampled_from([None, 1]))
def test_the_elements_of_a_list_are_what_a_parser_says(value: list[Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert [json.loads(one.json) for one in whole(text).elements(100)] == value
    assert whole(text).count(100) == len(value)


@given(st.binary(max_size=40), st.sampled_from([b"{", b"[", b'{"a":', b"[1,"]))
def test_any_bytes_are_split_or_refused(data: bytes, begins: bytes) -> None:
    for split in (lambda one: one.members(3), lambda one: one.elements(3)):
        try:
            parts = split(whole(begins + data))
        except BadMessage:
            continue
        assert len(parts) <= 3


@pytest.mark.parametrize(
    "text", ["", "{", "[1", "[1,]", "{1:2}", '{"a"}', '{"a":}', '{"a":1,}', "[1] 2", "{}}", '{"a" 1}', "[,]"]
)
def test_what_is_not_json_is_refused(text: str) -> None:
    value = whole(text.encode())
    for split in (value.members, value.elements):
        with pytest.raises(BadMessage):
            split(10)


def test_no_more_members_than_allowed() -> None:
    assert len(whole(b"[1,2,3]").elements(3)) == 3
    for split in (whole(b"[1,2,3]").elements, whole(b'{"a":1,"b":2,"c":3}').members):
        with pytest.raises(BadMessage, match="more than 2 members"):
            split(2)


def test_the_rest_of_a_text_is_not_looked_at() -> None:
    assert Value(b"[[1,2],3]", 1, 6).elements(5) == [Value(b"[[1,2],3]", 2, 3), Value(b"[[1,2],3]", 4, 5)]


def dump(**fields: object) -> bytes:
    return json.dumps({"Pod": POD, **fields}).encode()


@pytest.mark.parametrize(
    ("parse", "body", "text"),
    [
        (parse_filter, lambda: dump(NodeNames=["n"] * 11), "NodeNames: more than 10 members"),
        (parse_filter, lambda: dump(NodeNames=["\u00e9"] * 11), "NodeNames: more than 10 members"),
        (
            parse_filter,
            lambda: dump(Nodes={"items": [{"metadata": {"name": "n"}}] * 11}),
            "Nodes.items: more",
        ),
        (
            parse_preempt,
            lambda: dump(NodeNameToMetaVictims={f"n{n}": None for n in range(11)}),
            "more than 10",
        ),
        (
            parse_preempt,
            lambda: dump(NodeNameToMetaVictims={"n": {"Pods": [{"UID": "u"}] * 5}}),
            "more than 4",
        ),
        (
            parse_preempt,
            lambda: dump(NodeNameToMetaVictims={f"n{n}": {"Pods": [{"UID": "u"}] * 4} for n in range(3)}),
            "more than 8 victims",
        ),
        (parse_filter, lambda: dump(Pod=POD | {"x": "y" * 2000}, NodeNames=[]), "Pod: more than 2000 bytes"),
        (
            parse_bind,
            lambda: json.dumps({"PodName": "x" * 5000}).encode(),
            "PodName: Expected a string",
        ),
    ],
)
def test_a_message_beyond_a_limit_is_refused(
    parse: Callable[[bytes], object], body: Callable[[], bytes], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in (
        ("MESSAGE_NAMES", 10),
        ("NODE_VICTIMS", 4),
        ("MESSAGE_VICTIMS", 8),
        ("MESSAGE_POD", 2000),
    ):
        monkeypatch.setattr(message_parser, name, limit)
    with pytest.raises(BadMessage) as caught:
        parse(body())
    assert text in str(caught.value)


HOSTILE = {
    "candidates": b'{"Pod":{},"NodeNameToMetaVictims":{' + b'"a":null,' * 400_000 + b'"b":null}}',
    "victims": b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":['
    + b'{"UID":"a"},' * 300_000
    + b'{"UID":"b"}]}}}',
    "names": b'{"Pod":{},"NodeNames":[' + b'"a",' * 900_000 + b'"b"]}',
    "nodes": b'{"Pod":{},"Nodes":{"items":[' + b"{}," * 900_000 + b"{}]}}",
    "a pod": b'{"Pod":{"x":[' + b"[]," * 1_200_000 + b'[]]},"NodeNames":[]}',
    "fields": b"{" + b'"a":0,' * 600_000 + b'"Pod":null}',
    "depth": b'{"Pod":' + b"[" * 3_600_000,
    "other fields": b'{"Pod":null,"x":[' + b"[]," * 1_200_000 + b"[]]}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("parse", [parse_filter, parse_preempt, parse_bind])
def test_a_hostile_message_takes_no_more_memory_than_its_text(
    body: bytes, parse: Callable[[bytes], object]
) -> None:
    tracemalloc.start()
    try:
        with suppress(BadMessage):  # what another verb has there does not matter
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)
