"""Errors and log lines about pods are short and quote little."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from extender.dialects import pod_request
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.protocol import messages
from extender.protocol.codec import FilterArgs, parse_filter
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import PROBLEM
from tests.extender.builders import GPU
from tests.extender.k8s.test_object_limits import MODELS, container, manifest, pod_of


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_a_name_longer_than_the_api_allows_is_refused(field: str) -> None:
    with pytest.raises(messages.BadMessage, match=rf"^Pod: metadata.{field}: Expected str of length <="):
        filter_message(manifest() | {"metadata": {"name": "p"} | {field: "x" * 1000}})


HOSTILE = "<script>\x1b[31m" * 20_000
TEXTS: dict[str, dict[str, Any]] = {
    "a quantity": manifest(containers=[container(**{GPU: HOSTILE})]),
    "a quantity within a limit": manifest(containers=[container(**{GPU: "\x1b" * 60})]),
    "a resource": manifest(containers=[container(**{f"{'x' * 300}/y": "-1"})]),
    "two kinds": manifest(
        annotations={"stowage.dev/gpus": "1"},
        containers=[container(**{f"nvidia.com/mig-{n}g.5gb.{'x' * 40}": "1" for n in range(60)})],
    ),
    "cuda": manifest(annotations={pod_request.CUDA: HOSTILE[:10_000]}),
    "nvlink": manifest(annotations={pod_request.NVLINK: HOSTILE[:10_000]}),
    "a model": manifest(annotations={MODELS: HOSTILE[:10_000]}),
    "a list": manifest(annotations={MODELS: "a," * 5000}),
    "the ways to divide": manifest(annotations={"nvidia.com/vgpu-mode": HOSTILE[:10_000]}),
    "an own annotation": manifest(annotations={"stowage.dev/gpu-memory": HOSTILE[:10_000]}),
}


@pytest.mark.parametrize("pod_manifest", TEXTS.values(), ids=TEXTS.keys())
def test_an_error_quotes_little_of_the_pod(pod_manifest: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        request_of(pod_of(pod_manifest))
    assert len(str(caught.value)) <= PROBLEM
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        {"metadata": {"labels": {HOSTILE: []}}},
        {"metadata": {"labels": {f"{n}{HOSTILE[:100]}": [] for n in range(1000)}}},
        {"spec": {"containers": [1] * 10_000}},
        {"spec": {"priority": HOSTILE}},
    ],
)
def test_the_error_of_a_bad_message_is_short(message: dict[str, Any]) -> None:
    with pytest.raises(messages.BadMessage) as caught:
        filter_message(message)
    assert 0 < len(str(caught.value)) <= PROBLEM


def test_log_lines_of_the_watch_are_short(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="extender"):
        lines = [
            {"type": "MODIFIED", "object": {"metadata": {"labels": {HOSTILE: []}}}},
            {"type": "ERROR", "object": {"code": 410, "message": HOSTILE}},
        ]
        for line in lines:
            following = ListWatch(WATCHED_KINDS["Pod"])
            following.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
            following.next_request()
            assert not following.chunk(json.dumps(line).encode() + b"\n")
    assert len(caplog.messages) == 2
    assert all(len(text) < PROBLEM + 100 for text in caplog.messages)


def test_thousands_of_errors_take_little_memory() -> None:
    body = json.dumps({"Pod": None, "Nodes": None, "NodeNames": [1] * 200_000}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(messages.BadMessage):
            parse_filter(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(body)


def filter_message(pod: dict[str, Any]) -> FilterArgs:
    return parse_filter(json.dumps({"Pod": pod, "Nodes": None, "NodeNames": []}).encode())
