"""The example of docs/checkpointing.md: interrupted in any way, it ends as if it had never been."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import certifi
import pytest
import yaml

from extender.queues.disruptions import CHECKPOINT_INTERVAL, CHECKPOINTED_AT, lost_seconds
from extender.queues.queue import RESTARTABLE
from extender.settings import DEFAULT_QUEUES, Queue
from tests.extender.builders import make_pod

EXAMPLE = Path(__file__).parents[1] / "deploy" / "examples" / "checkpointing"
STEPS = 3000


def command(directory: Path, *options: str) -> list[str]:
    program = [sys.executable, str(EXAMPLE / "train.py"), "--directory", str(directory)]
    return [*program, "--steps", str(STEPS), *options]


def run(directory: Path, *options: str) -> list[str]:
    """The lines that an uninterrupted run prints."""
    done = subprocess.run(command(directory, *options), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def interrupt(directory: Path, number: signal.Signals, lines: int, *options: str) -> tuple[int, list[str]]:
    """Send a signal after so many lines; the exit code and all that was printed."""
    process = subprocess.Popen(command(directory, *options), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = [process.stdout.readline().strip() for _ in range(lines)]
    process.send_signal(number)
    rest, _ = process.communicate()
    return process.returncode, printed + rest.splitlines()


@pytest.fixture(name="expected", scope="module")
def _expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("whole"))[-1]


@pytest.fixture(name="train")
def _train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_saves_on_sigterm_and_ends_with_the_same_result(tmp_path, expected):
    code, printed = interrupt(tmp_path, signal.SIGTERM, 1, "--every", "5", "--sleep", "0.05")
    assert code == 143
    assert printed[-1].startswith("terminated after step ")
    stopped = int(printed[-1].split()[-1])
    assert stopped < STEPS
    resumed = run(tmp_path)
    assert resumed[0] == f"resumed from step {stopped}"  # also between two regular checkpoints
    assert resumed[-1] == expected


def test_it_may_be_killed_at_any_moment(tmp_path, expected):
    saved = 0
    for lines in (1, 7, 20):
        code, printed = interrupt(tmp_path, signal.SIGKILL, lines, "--every", "1", "--sleep", "0.001")
        assert code == -signal.SIGKILL
        if saved:
            assert int(printed[0].removeprefix("resumed from step ")) >= saved
        saved = max(int(line.split()[1].rstrip(":")) for line in printed if line.startswith("step "))
    assert run(tmp_path)[-1] == expected


def test_the_interval_of_checkpoints_does_not_change_the_result(tmp_path, expected):
    assert run(tmp_path, "--every", "7")[-1] == expected


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_is_cut_off_keeps_the_last_checkpoint(train, tmp_path, monkeypatch, fails):
    train.save(tmp_path, {"step": 1})

    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(train.os if fails == "fsync" else train.Path, fails, fail)
    with pytest.raises(OSError, match="no space"):
        train.save(tmp_path, {"step": 2})
    (tmp_path / "checkpoint.json.new").write_text('{"crc": 1, "bo')
    monkeypatch.undo()
    assert train.load(tmp_path) == {"step": 1}
    train.save(tmp_path, {"step": 3})
    assert train.load(tmp_path) == {"step": 3}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"crc": 1, "body": "{}"}', '{"crc": 1}'])
def test_a_damaged_checkpoint_is_not_silently_forgotten(train, tmp_path, text):
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(SystemExit, match="is damaged"):
        train.load(tmp_path)


def test_every_bit_of_a_checkpoint_is_checked(train, tmp_path):
    train.save(tmp_path, {"step": 17})
    path = tmp_path / "checkpoint.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"body": stored["body"].replace("17", "18")}))
    with pytest.raises(SystemExit, match="is damaged"):
        train.load(tmp_path)


class PatchHandler(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, self.headers["Authorization"], body))
        self.send_response(200 if "mine" in self.path else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "error"), [("mine", ""), ("forbidden", "could not be announced: HTTP Error 403")]
)
def test_a_checkpoint_is_announced_on_request(train, tmp_path, monkeypatch, capsys, name, error):
    for file, text in (
        ("namespace", "ml"),
        ("token", "secret"),
        ("ca.crt", Path(certifi.where()).read_text()),
    ):
        (tmp_path / file).write_text(text)
    PatchHandler.seen.clear()
    with HTTPServer(("127.0.0.1", 0), PatchHandler) as server:
        monkeypatch.setattr(train, "ACCOUNT", tmp_path)
        monkeypatch.setattr(train, "API", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("POD_NAME", name)
        train.announce_checkpoint()  # off unless it is asked for
        monkeypatch.setenv("STOWAGE_ANNOTATE", "1")
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        train.announce_checkpoint()
        thread.join()
    ((path, token, body),) = PatchHandler.seen
    assert (path, token) == (f"/api/v1/namespaces/ml/pods/{name}", "Bearer secret")
    assert error in capsys.readouterr().err
    annotations = json.loads(body)["metadata"]["annotations"]
    now = time.time()
    pod = make_pod("a", started=now - 3600, annotations=annotations)
    assert set(annotations) == {CHECKPOINTED_AT}
    assert lost_seconds(pod, Queue(), now) < 3600  # Stowage reads what the job writes


def test_the_manifest_does_what_the_page_demands():
    claim, job = yaml.safe_load_all((EXAMPLE / "job.yaml").read_text())
    template = job["spec"]["template"]
    pod, metadata = template["spec"], template["metadata"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert pod["restartPolicy"] == "Never"
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert metadata["labels"]["stowage.dev/queue"] in DEFAULT_QUEUES
    safe = "cluster-autoscaler.kubernetes.io/safe-to-evict"  # it may move although it has a volume
    assert {RESTARTABLE, CHECKPOINT_INTERVAL, safe} == set(metadata["annotations"])
    (container,) = pod["containers"]
    assert container["command"][:2] == ["python3", "/code/train.py"]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"][1:]]
    assert claims == [claim["metadata"]["name"]]
