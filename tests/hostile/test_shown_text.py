"""What strangers write, wherever people read it: nothing that acts on a terminal, a log or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import logging
import shlex
from pathlib import Path

import pytest

from extender import logs
from extender.cli import main as cli
from extender.protocol.messages import bind_error, filter_error
from extender.untrusted.visible import csv_text, visible

ACTS = "\x1b]0;x\x07\x9b31m\u202e\u2066\u200f\u061c\u2028\u2029\x85\u200b\ufeff\u2060\r\b\x7f\U000e0041"
"""Control sequences of seven and eight bits, bidirectional marks, line separators, and what has no width."""
ODD = f"h100{ACTS}\nnode-9  H100  8  8"
RESOURCES = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}


def labelled(name: str, **more: str) -> dict[str, object]:
    return {"name": name, "labels": {"nvidia.com/gpu.product": ODD, "nvidia.com/gpu.memory": "81920", **more}}


def pod(name: str, node: str = "", **metadata: object) -> dict[str, object]:
    owner = [{"kind": "Job", "name": ODD, "uid": "j", "controller": True}]
    container = {"name": ODD, "resources": {"limits": {"nvidia.com/gpu": "1", f"example.com/{ODD}": "1"}}}
    claims = [{"name": ODD, "resourceClaimName": ODD}] if not node else []
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": ODD, "uid": name, "ownerReferences": owner, **metadata},
        "spec": {"nodeName": node, "containers": [container], "resourceClaims": claims, "priority": 5},
        "status": {"phase": "Running" if node else "Pending"},
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A snapshot in which every text that can be odd is odd."""
    node = {"kind": "Node", "metadata": labelled(ODD), "status": {"allocatable": RESOURCES}}
    taints = [{"key": ODD, "value": ODD, "effect": "NoSchedule"}]
    tainted = {"kind": "Node", "metadata": labelled(f"{ODD}2"), "spec": {"taints": taints}}
    broken = {"kind": "Node", "metadata": {"name": ODD, "labels": 7}}
    queue = {"stowage.dev/queue": ODD, "kueue.x-k8s.io/queue-name": ODD}
    waiting = pod("=cmd", labels=queue, annotations={"stowage.dev/gpu-model": ODD, "stowage.dev/queue": ODD})
    items = [node, tainted | {"status": {"allocatable": RESOURCES}}, broken, waiting]
    items += [pod(f"p{i}", ODD, labels=queue, annotations={"hami.io/vgpu": ODD}) for i in range(3)]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def hidden(text: str) -> set[str]:
    return {char for char in text if not (char.isprintable() or char == "\n")}


COMMANDS = [
    *("top", "top -o wide", "top --url http://\x1b"),
    *("explain KEY", "explain KEY --all", "explain KEY -v", "explain p0", "explain p9\x1b"),
    *("plan", "plan drain", "plan drain -o csv", "plan moves", "plan slices", "plan mig -o csv"),
    *("audit", "audit -o md", "audit -o html --by pool"),
    *("plan change --add 1xNODE", "plan change --remove NODE", "replay", "replay --output csv"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_gets_nothing_hidden(
    cluster: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = [word.replace("KEY", f"{ODD}/=cmd").replace("NODE", ODD) for word in shlex.split(command)]
    source = [] if "--url" in words else ["--snapshot", str(cluster)]
    assert cli.main([*words, *source]) in (0, 1, 2)
    captured = capsys.readouterr()
    assert hidden(captured.out) == set()
    assert hidden(captured.err) == set()
    assert not any(line.startswith("node-9") for line in f"{captured.out}\n{captured.err}".splitlines())


@pytest.mark.parametrize("command", ["top -o json", "explain --output json KEY", "plan drain -o json"])
def test_json_stays_exact(cluster: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = [word.replace("KEY", f"{ODD}/=cmd") for word in shlex.split(command)]
    assert cli.main([*words, "--snapshot", str(cluster)]) in (0, 1)
    out = capsys.readouterr().out
    assert hidden(out) == set()
    assert ODD in texts(json.loads(out))


def texts(value: object) -> str:
    """All texts in a JSON value, one after the other."""
    if isinstance(value, dict):
        return "".join([*value, *map(texts, value.values())])
    return "".join(map(texts, value)) if isinstance(value, list) else str(value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "people"])
def test_a_log_has_one_line_for_each_message(stream: io.StringIO) -> None:
    logs.configure("info", stream)
    logging.getLogger("extender.cluster").warning("node %s: \ud800", ODD)
    [line] = stream.getvalue().splitlines()
    assert hidden(line) == set()
    if not stream.isatty():
        assert json.loads(line)["msg"] == f"node {ODD}: \ud800"


def test_an_event_of_kube_scheduler_has_nothing_hidden() -> None:
    for reply in (filter_error(f"odd {ODD} \ud800"), bind_error(ODD)):
        assert hidden(json.loads(reply)["Error"]) == set()


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"),
        ("a\nb", "a\\nb"),
        ("-", "-"),
        ("-2.5", "-2.5"),
        ("h100-01", "h100-01"),
        (-2.5, "-2.5"),
        (None, ""),
    ],
)
def test_a_cell_is_no_formula(text: object, cell: str) -> None:
    [[_, found]] = csv.reader(io.StringIO(csv_text([["x", text]])))
    assert found == cell


def test_what_people_read_stays_as_it_is() -> None:
    for text in ("h100-01", "Zürich ± 3 ×", "東京", "a b", "🙂", r"C:\u"):
        assert visible(text) == text
    assert visible("a\nb\x1b") == "a\\nb\\u001b"
