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
from extender.protocol.codec import parse_filter
from extender.untrusted.limits import PROBLEM
from tests.extender.builders import GPU
from tests.extender.k8s.test_object_limits import MODELS, container, manifest, pod_of

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
