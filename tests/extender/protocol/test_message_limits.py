"""Limits of messages: only what is read of a large one becomes values."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from extender.protocol.codec import parse_bind, parse_filter, parse_preempt
from extender.protocol.messages import BadMessage
from extender.untrusted.limits import MESSAGE_NAMES, MESSAGE_POD, NODE_VICTIMS

POD = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}


def dump(**fields: object) -> bytes:
    return json.dumps({"Pod": POD, **fields}).encode()


@pytest.mark.parametrize(
    ("parse", "body", "text"),
    [
        (parse_filter, lambda: dump(NodeNames=["n"] * (MESSAGE_NAMES + 1)), "NodeNames: more than"),
        (parse_filter, lambda: dump(NodeNames=["\u00e9"] * (MESSAGE_NAMES + 1)), "NodeNames: more than"),
        (
            parse_filter,
            lambda: dump(Nodes={"items": [{"metadata": {"name": "n"}}] * (MESSAGE_NAMES + 1)}),
            "items: Expected array of length <=",
        ),
        (
            parse_preempt,
            lambda: dump(NodeNameToMetaVictims={f"n{n}": None for n in range(MESSAGE_NAMES + 1)}),
            f"more than {MESSAGE_NAMES} nodes",
        ),
        (
            parse_preempt,
            lambda: dump(NodeNameToMetaVictims={"n": {"Pods": [{"UID": "u"}] * (NODE_VICTIMS + 1)}}),
            f"more than {NODE_VICTIMS} victims on a node",
        ),
        (parse_filter, lambda: dump(Pod=POD | {"x": "y" * MESSAGE_POD}, NodeNames=[]), "Pod: more than"),
        (
            parse_bind,
            lambda: json.dumps({"PodName": "x" * 5000}).encode(),
            "PodName: Expected str of length <=",
        ),
    ],
)
def test_a_message_beyond_a_limit_is_refused(
    parse: Callable[[bytes], object], body: Callable[[], bytes], text: str
) -> None:
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
    parse_filter(b'{"Pod":{},"NodeNames":["n"]}')  # loads the kernels, which take memory, too
    tracemalloc.start()
    try:
        with suppress(BadMessage):  # what another verb has there does not matter
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)
