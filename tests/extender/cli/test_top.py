"""``stowage top``, with the bundled example and with a live API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.cli import top
from extender.cli.top_text import _age
from extender.source.apiserver import from_kubeconfig
from tests.extender import apiserver
from tests.extender.builders import make_state


def test_nodes_and_waiting_pods(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "--waiting", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "NODE",
        "MODEL",
        "GPUS",
        "WHOLE",
        "FREE",
        "FREE",
        "MEMORY",
        "FREE",
        "PODS",
        "NOTE",
    ]
    assert lines[1].startswith("a100-01      A100 SXM4 80GB  8     6           6.0   480 of 640 GiB  1")
    free = "154 GPUs and 19 nodes entirely free; 8 GPUs on 1 closed node"
    assert f"36 nodes with 228 GPUs: 14 % in use, {free}; 5 pods wait" in lines
    assert lines[-1] == "and 3 more pods wait"


def test_wide_shows_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "-o", "wide"]) == 0
    head, first = capsys.readouterr().out.splitlines()[:2]
    assert head.split("NOTE")[1].split() == [
        "GPU",
        "USE",
        "%",
        "ISLANDS",
        "CPU",
        "FREE",
        "HOST",
        "MEMORY",
        "FREE",
    ]
    assert "100 100 0 0 0 0 0 0" in first


def test_json_has_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--example", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(line["gpus"] for line in found["nodes"]) == 228
    assert len(found["waiting"]) == 5


def test_an_error_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--snapshot", "nowhere.json"]) == 1
    assert "stowage top: nowhere.json: cannot be read" in capsys.readouterr().err


@pytest.fixture
def api(tmp_path: Path) -> Iterator[apiserver.ApiServer]:
    server = apiserver.ApiServer()
    server.put(apiserver.node("node-a"))
    server.start()
    apiserver.source_of(server, tmp_path)
    yield server
    server.stop()


def test_a_watch_shows_what_changes(api: apiserver.ApiServer, tmp_path: Path) -> None:
    state = make_state(synced=False)
    source = from_kubeconfig(tmp_path / "kubeconfig")
    seen = []
    for _ in top._states(state, source, watch=True, sleep=lambda _: time.sleep(0.05)):
        seen.append(sorted(state.nodes))
        if len(seen) == 1:
            api.put(apiserver.node("node-b"))
        if len(state.nodes) == 2 or len(seen) == 400:
            break
    assert (seen[0], seen[-1]) == (["node-a"], ["node-a", "node-b"])


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (1e6, "11d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert _age(seconds) == text


@pytest.mark.parametrize(
    ("created", "age"),
    [
        (None, "unknown"),
        ("1970-01-01T00:00:00Z", "unknown"),
        ("nonsense", "unknown"),
        ("2199-01-01T00:00:00Z", "0s"),
    ],
)
def test_the_age_of_a_pod_whose_creation_is_not_known(
    created: str | None, age: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    pod = {"kind": "Pod", "metadata": {"name": "p", "creationTimestamp": created}}
    path = tmp_path / "pods.json"
    path.write_text(json.dumps(pod | {"spec": {"containers": [{"resources": limits}]}}))
    assert cli.main(["top", "--snapshot", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        *("default/p", "0", age, "1", "nvidia.com/gpu", "there", "is", "no", "node"),
    ]
