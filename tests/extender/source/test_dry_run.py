"""Dry runs of pods; tests/e2e/test_dry_run.py asks the real API server."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from extender.cluster.factory import state_of
from extender.k8s.objects import Upserted
from extender.source import dry_run
from extender.source.workloads import parse_templates
from tests.extender import apiserver
from tests.extender.builders import make_node, make_settings

PODS = "\n---\n".join(
    f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{resources: {{limits: "
    "{nvidia.com/gpu: 1}}}]}"
    for name in "ab"
)


def test_an_api_server_that_does_not_answer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "DRY_RUN_SECONDS", 1)
    server = apiserver.ApiServer()
    server.script["/api/v1"] = deque(["headless"])
    server.start()
    try:
        rest = apiserver.source_of(server, tmp_path).rest
        manifest, outcomes = dry_run.dry_run(rest, PODS, "pods")
    finally:
        server.stop()
    assert [outcome.unknown for outcome in outcomes] == ["the API server did not answer in time"] * 2
    assert [path for path, _ in server.requests if path == "/api/v1"] == ["/api/v1"]
    assert [template.pod.name for template in parse_templates(manifest, "pods")] == ["a", "b"]


def test_nothing_is_added_to_a_complete_pod() -> None:
    state = state_of(make_settings())
    state.apply([Upserted(make_node("n", labels={"eks.amazonaws.com/nodegroup": "gpu"}))])
    complete, other = parse_templates(PODS, "pods", complete=[0])
    assert state.admission.as_created(complete.pod) == (complete.pod, "")
    assert "a toleration for nvidia.com/gpu" in state.admission.as_created(other.pod)[1]
