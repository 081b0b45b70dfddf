"""Golden messages: the cases of kube-scheduler's ``extender/v1/types_test.go``, and our own."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.protocol import codec as wire
from extender.protocol.messages import BadMessage, bind_error
from extender.protocol.node_names import NodeNames

POD: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    "status": {},
}

of = NodeNames.of


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


def test_filter_arguments_with_names() -> None:
    args = wire.parse_filter(dump({"Pod": POD, "Nodes": None, "NodeNames": ["node-2", "node-1"]}))
    assert (args.pod.key, args.pod.uid) == ("team/train", "u1")
    assert args.pod.spec.containers[0].requests == (("nvidia.com/gpu", "2"),)
    assert (list(args.names), args.nodes) == (["node-2", "node-1"], None)


def test_filter_arguments_with_whole_nodes() -> None:
    items = [
        {"metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.0.0.0/24"}},
        {"metadata": {"name": "node-2"}},
    ]
    args = wire.parse_filter(dump({"Pod": POD, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}))
    assert list(args.names) == ["node-1", "node-2"]
    assert [json.loads(bytes(node)) for node in args.nodes or ()] == items


@pytest.mark.parametrize("items", [None, []])
def test_a_list_without_nodes_is_empty(items: object) -> None:
    args = wire.parse_filter(dump({"Pod": POD, "Nodes": {"items": items}, "NodeNames": None}))
    assert (list(args.names), args.nodes) == ([], [])


def test_a_pod_may_hold_nulls_everywhere() -> None:
    pod = {"metadata": {"name": "p", "creationTimestamp": None}, "spec": {"containers": None}, "status": None}
    assert wire.parse_filter(dump({"Pod": pod, "Nodes": None, "NodeNames": []})).pod.spec.containers == ()


FILTER = {"Pod": POD, "Nodes": None, "NodeNames": ["node-1"]}
PREEMPT_META = {
    "Pod": POD,
    "NodeNameToVictims": None,
    "NodeNameToMetaVictims": {
        "node-1": {"Pods": [{"UID": "u2"}, {"UID": "u3"}], "NumPDBViolations": 1},
        "node-2": {"Pods": [], "NumPDBViolations": 0},
    },
}
PREEMPT_WHOLE = {
    "Pod": POD,
    "NodeNameToVictims": {
        "node-1": {"Pods": [{"metadata": {"uid": "u2"}}, {"metadata": {"uid": "u3"}}], "NumPDBViolations": 1},
        "node-2": {"Pods": None, "NumPDBViolations": 0},
    },
    "NodeNameToMetaVictims": None,
}
BIND = {"PodName": "train", "PodNamespace": "team", "PodUID": "u1", "Node": "node-1"}
CANDIDATES = {"node-1": wire.ProposedVictims(["u2", "u3"], 1), "node-2": wire.ProposedVictims([])}


def test_victims_are_read_in_either_form() -> None:
    assert wire.parse_preempt(dump(PREEMPT_META)).candidates == CANDIDATES
    assert wire.parse_preempt(dump(PREEMPT_WHOLE)).candidates == CANDIDATES


def test_bind_arguments() -> None:
    assert wire.parse_bind(dump(BIND)) == wire.ExtenderBindingArgs("train", "team", "u1", "node-1")


def test_missing_fields_are_null() -> None:
    assert list(wire.parse_filter(dump({"Pod": POD, "NodeNames": ["node-1"]})).names) == ["node-1"]
    assert wire.parse_preempt(dump({"Pod": POD})).candidates == {}


@pytest.mark.parametrize(
    ("parse", "body", "text"),
    [
        (wire.parse_filter, b"", "Invalid JSON"),
        (wire.parse_filter, dump(FILTER)[:-20], "Invalid JSON"),
        (wire.parse_filter, b"\xff\xfe", "Invalid JSON"),
        (wire.parse_filter, b"[]", "Expected object"),
        (wire.parse_filter, b"null", "Expected object"),
        (wire.parse_filter, b"{}", "Pod is missing"),
        (wire.parse_filter, dump({"Pod": POD}), "expected NodeNames or Nodes"),
        (wire.parse_filter, dump({**FILTER, "NodeNames": ["node-1", 7]}), "1: Expected str"),
        (wire.parse_filter, dump({**FILTER, "Pod": "train"}), "Pod: Expected object"),
        (
            wire.parse_filter,
            dump({**FILTER, "NodeNames": None, "Nodes": {"items": [{}]}}),
            "items.0: Object missing required field metadata",
        ),
        (wire.parse_filter, b'{"Pod":' + b"[" * 100_000, "Invalid JSON"),
        (
            wire.parse_filter,
            b'{"Pod":{"metadata":{"name":"\\ud800"}},"NodeNames":[],"Nodes":null}',
            "Invalid JSON",
        ),
        (
            wire.parse_preempt,
            dump({"Pod": POD, "NodeNameToMetaVictims": []}),
            "NodeNameToMetaVictims: Expected object",
        ),
        (
            wire.parse_preempt,
            dump({"Pod": POD, "NodeNameToMetaVictims": {"n": {"Pods": [{}]}}}),
            "0: Object missing required field UID",
        ),
        (wire.parse_preempt, dump({"Pod": None}), "Pod is missing"),
        (wire.parse_bind, dump({**BIND, "Node": ""}), "Node: Expected str of length >= 1"),
        (wire.parse_bind, dump({**BIND, "PodUID": None}), "PodUID: Expected str, got null"),
        (wire.parse_bind, b"{}", "missing required field PodName"),
    ],
)
def test_an_invalid_message_names_the_problem(parse: Any, body: bytes, text: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parse(body)
    assert text in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_an_error_does_not_quote_the_pod() -> None:
    pod = {"spec": {"containers": [{"resources": "hunter2"}]}}
    with pytest.raises(BadMessage) as caught:
        wire.parse_filter(dump({**FILTER, "Pod": pod}))
    assert "hunter2" not in str(caught.value)


def test_a_filter_reply_with_names() -> None:
    result = wire.FilterResult(of(["n1"]), {"not enough free GPUs": of(["n2"])}, {"no GPU": of(["n3"])})
    assert wire.encode_filter(result) == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":{"n2":"not enough free GPUs"},'
        b'"FailedAndUnresolvableNodes":{"n3":"no GPU"},"Error":""}'
    )


def test_a_filter_reply_contains_every_field() -> None:
    assert wire.encode_filter(wire.FilterResult(of(["n1"]))) == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )
    assert wire.encode_filter(wire.FilterResult()) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )


@pytest.mark.parametrize("nodes", [None, [{"metadata": {"name": "n1"}}]])
def test_a_filter_reply_with_an_error_has_no_nodes(nodes: list[dict[str, Any]] | None) -> None:
    assert wire.encode_filter(wire.FilterResult(error="unsure"), nodes) == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":"unsure"}'
    )


def test_whole_nodes_are_returned_unchanged() -> None:
    items = [
        {"metadata": {"name": name}, "status": {"images": [{"sizeBytes": 1 << 60}], "x": None}}
        for name in "abc"
    ]
    body = dump({"Pod": POD, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
    result = wire.FilterResult(of(["a", "c"]), which=np.array([True, False, True]))
    reply = json.loads(wire.encode_filter(result, wire.parse_filter(body).nodes))
    assert reply["Nodes"] == {"metadata": {}, "items": [items[0], items[2]]}
    assert reply["NodeNames"] is None


def test_priorities_are_integers_in_the_order_of_the_request() -> None:
    reply = wire.encode_priorities(of(["n2", "n1"]), np.array([10, 0], np.uint8))
    assert reply == b'[{"Host":"n2","Score":10},{"Host":"n1","Score":0}]'
    assert wire.encode_priorities(of([]), np.zeros(0, np.uint8)) == b"[]"


# Names as they are, and names that must be escaped, which Kubernetes allows nowhere.
names_of_nodes = st.text(st.sampled_from("abc-.09")) | st.text().map(
    lambda text: text.encode(errors="replace").decode()
)


@given(st.lists(names_of_nodes, max_size=30), st.randoms(use_true_random=False))
def test_priorities_are_equal_to_plain_json(names: list[str], rng: random.Random) -> None:
    scores = [rng.randrange(11) for _ in names]
    expected = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    assert json.loads(wire.encode_priorities(of(names), np.array(scores, np.uint8))) == expected


@given(
    st.dictionaries(
        names_of_nodes, st.sampled_from(["not enough free GPUs", 'a "quoted", text']), max_size=30
    )
)
def test_reasons_are_equal_to_plain_json(reasons: dict[str, str]) -> None:
    refused: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        refused.setdefault(reason, []).append(name)
    nodes = {reason: of(names) for reason, names in refused.items()}
    reply = json.loads(wire.encode_filter(wire.FilterResult(of(reasons), nodes, nodes)))
    assert reply["NodeNames"] == list(reasons)
    assert (reply["FailedNodes"] or {}) == (reply["FailedAndUnresolvableNodes"] or {}) == reasons


def test_a_preempt_reply_is_always_the_short_form() -> None:
    assert wire.encode_preempt({"n1": wire.ProposedVictims(["u3", "u2"], 1)}) == (
        b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u3"},{"UID":"u2"}],"NumPDBViolations":1}}}'
    )
    assert wire.encode_preempt({}) == b'{"NodeNameToMetaVictims":{}}'


def test_a_bind_reply() -> None:
    assert bind_error("") == b'{"Error":""}'
    assert bind_error('node "n1" is gone') == b'{"Error":"node \\"n1\\" is gone"}'


def test_a_pod_of_the_same_version_is_the_one_of_the_watch():
    manifest = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}, "spec": {}}
    watched = PodManifest.from_value(manifest | {"status": {"nominatedNodeName": "n"}}).record()

    def read(**metadata: str) -> Pod:
        pod = {"metadata": manifest["metadata"] | metadata, "spec": {}}
        message = {"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}
        args = wire.parse_filter(json.dumps(message, separators=(",", ":")).encode(), {"u": watched}.get)
        assert list(args.names) == ["a", "b"]
        return args.pod

    assert read() is watched
    assert read(resourceVersion="8") is not watched
    assert read(resourceVersion="") is not watched
    assert read(uid="other") is not watched
    assert read(uid="other").uid == "other"


nasty = st.text('"uid:\\{},resourceVersion17-.') | st.sampled_from(["p", "u", "v", "7", "8"])


@given(st.permutations(("name", "generateName", "namespace", "uid", "resourceVersion")), st.data())
def test_what_names_a_pod_is_what_a_parser_finds(order: list[str], data: st.DataObject) -> None:
    """Whatever the author of a pod writes into it, and whatever comes first."""
    watched = {
        (uid, version): PodManifest.from_value(
            {"metadata": {"name": "p", "uid": uid, "resourceVersion": version}}
        ).record()
        for uid in "uv"
        for version in "78"
    }
    metadata = {key: data.draw(nasty) for key in data.draw(st.just(order) | st.just(sorted(order)))}
    if data.draw(st.booleans()):
        metadata = {"name": "p", **{key: metadata[key] for key in ("uid", "resourceVersion")}}
    pod = {"metadata": metadata | {"annotations": {data.draw(nasty): data.draw(nasty)}}}
    message = json.dumps({"Pod": pod, "Nodes": None}, separators=(",", ":")).encode()
    for version in "78":
        same = metadata["resourceVersion"] == version
        expected = watched.get((metadata["uid"], version)) if same else None
        assert wire.watched_pod(message, lambda uid, version=version: watched.get((uid, version))) is expected


def test_a_bound_pod_has_no_version():
    bound = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}}
    assert PodManifest.from_value(bound).record().version == ""
