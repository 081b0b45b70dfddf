"""Golden messages: the cases of kube-scheduler's ``extender/v1/types_test.go``, and our own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.protocol import codec as wire
from extender.protocol.messages import bind_error
from extender.protocol.node_names import NodeNames

POD: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    "status": {},
}

of = NodeNames.of


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


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


def test_a_bound_pod_has_no_version():
    bound = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}}
    assert PodManifest.from_value(bound).record().version == ""
