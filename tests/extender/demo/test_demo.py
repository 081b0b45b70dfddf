"""The demo: its bundled cluster, the scores of kube-scheduler, and the command as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from http.client import HTTPConnection

import pytest

from bench import demo_cluster
from extender.cli.main import main
from extender.cli.precompile import kernel_modules, not_compiled
from extender.cluster.state import State
from extender.cluster.totals import Totals
from extender.data import CLUSTER
from extender.demo.compare import DefaultProfile, comparison, placed, still_pending
from extender.demo.pods import GPU, stream
from extender.k8s.objects import Container, PodSpec
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource, read
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod, make_state
from tests.extender.plan.clusters import node, pod


class TestBundledCluster:
    def test_the_file_is_the_output_of_its_generator(self):
        assert CLUSTER.read_text(encoding="utf-8") == demo_cluster.text()

    def test_the_service_reads_it_without_problems(self):
        snapshot = read([CLUSTER])
        state = State(POLICIES["best-fit"]())
        SnapshotSource(snapshot, "bundled").start(state.apply)
        assert snapshot.problems == []
        assert state.problems == {}
        assert not state.overcommitted
        assert 20 <= len(state.nodes) <= 40
        pods = state.pods.values()
        assert {bool(one.node_name) for one in pods} == {True, False}
        assert len({one.namespace for one in pods}) >= 3

    def test_it_has_every_kind_of_node(self):
        offers = [set(one.allocatable) for one in read([CLUSTER]).nodes.values()]
        assert sum({GPU} <= offer for offer in offers) >= 20
        assert any("nvidia.com/mig-1g.10gb" in offer for offer in offers)
        assert any("nvidia.com/gpu.shared" in offer for offer in offers)
        labels = [one.labels for one in read([CLUSTER]).nodes.values()]
        assert len({one["nvidia.com/gpu.product"] for one in labels}) == 5
        assert len({clique for one in labels if (clique := one.get("nvidia.com/gpu.clique"))}) == 1


class TestStream:
    def test_the_seed_only_changes_the_order(self):
        one, other = stream(1), stream(2)
        assert one == stream(1)
        assert one != other
        specs = [sorted(json.dumps(p["spec"], sort_keys=True) for p in pods) for pods in (one, other)]
        assert specs[0] == specs[1]

    def test_pods_have_different_uids(self):
        pods = stream(1)
        assert len({p["metadata"]["uid"] for p in pods}) == len(pods) >= 200


def score(name: str, cpu: int, memory: int, cpu_taken: int = 0, memory_taken: int = 0) -> int:
    """What kube-scheduler's plugins give a node for a pod of 3 CPUs and 5,000 MiB: least + balanced."""
    requests = ("cpu", f"{cpu_taken}m"), ("memory", f"{memory_taken}Mi")
    taken = make_pod("taken", spec=PodSpec((Container("main", requests),)), node_name=name)
    state = make_state(make_node(name, 0, cpu=f"{cpu}m", memory=f"{memory}Mi"), taken)
    request = Request(cpu_milli=3000, memory_bytes=5000 << 20)
    return -int(DefaultProfile().rank(state.fleet, request)[state.fleet.rows[name]])


class TestScores:
    """The cases of balanced_allocation_test.go and least_allocated_test.go, v1.36."""

    @pytest.mark.parametrize(
        ("cpu", "memory", "taken", "least", "balanced"),
        [
            (4000, 10000, (), 37, 68),
            (6000, 10000, (), 50, 75),
            (10000, 20000, (3000,), 57, 73),
            (10000, 20000, (3000, 5000), 45, 74),
            (10000, 50000, (3000, 5000), 60, 70),
        ],
    )
    def test_they_add_up(self, cpu, memory, taken, least, balanced):
        assert score("a", cpu, memory, *taken) == least + balanced


class TestReport:
    def test_the_table_is_aligned_and_pods_that_fit_nowhere_say_why(self):
        snapshot = Snapshot()
        items = [node("a", gpus=8), pod("large", gpus=16), *(pod(f"p{n}", gpus=8) for n in range(3))]
        snapshot.add(json.dumps({"kind": "List", "items": items}), "test")
        trial = placed(snapshot, Settings(policy="best-fit"), lambda part: None)
        lines = comparison(trial, trial).splitlines()
        assert len({len(line) for line in lines}) == 1
        _, first, second = still_pending(trial).splitlines()
        assert first == f"    2 x {GPU}: 8 ({Reason.NO_FREE_GPUS.text})"
        assert second == f"    1 x {GPU}: 16 ({Reason.TOO_FEW_GPUS.text})"


class TestCommand:
    @pytest.mark.nightly
    def test_it_compares_and_exits(self):
        done = subprocess.run(
            [*COMMAND, "--exit", "--port", "0"], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, COMPILING.sub("", done.stderr)) == (0, "")
        assert "\r" not in done.stdout  # no bar where there is no terminal
        assert_packed(done.stdout)

    def test_it_keeps_serving_at_a_free_port_until_ctrl_c(self):
        with socket.create_server(("127.0.0.1", 0)) as busy:
            port = str(busy.getsockname()[1])
            with subprocess.Popen(
                [*COMMAND, "--port", port],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                # Shells start what runs in the background with SIGINT ignored, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            ) as running:
                try:
                    output = up_to("Ctrl-C", running.stdout)
                    assert f"port {port} is in use" in output
                    assert_packed(output)
                    url = re.search(r"http://(\S+:\d+)", output)[1]
                    assert not url.endswith(f":{port}")
                    while get(url, "/readyz")[0] != 200:
                        time.sleep(0.05)
                    found = json.loads(get(url, "/debug/overview?waiting=200")[1])["overview"]
                    assert Totals(**found["totals"]).text in " ".join(
                        output.split()
                    )  # terminal and page count the same
                    groups = re.findall(r"^ +(\d+) x ", output, re.MULTILINE)
                    assert sum(map(int, groups)) == found["totals"]["waiting"] == len(found["waiting"]) > 1
                    assert all(0 <= time.time() - pod["created"] < 3600 for pod in found["waiting"])
                    running.send_signal(signal.SIGINT)
                    assert running.wait(60) == 0
                    assert COMPILING.sub("", running.stderr.read()) == ""
                finally:
                    running.kill()
        with pytest.raises(ConnectionRefusedError):
            get(url, "/readyz")

    def test_ctrl_c_ends_it_while_it_compiles(self, tmp_path):
        with subprocess.Popen(
            [sys.executable, "-m", "extender.cli.main", "demo", "--port", "0"],
            stdout=subprocess.PIPE,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as running:
            end = time.monotonic() + 60
            while not any(tmp_path.glob("*/*.nbi")) and time.monotonic() < end:
                time.sleep(0.05)
            os.killpg(running.pid, signal.SIGINT)
            assert running.stdout is not None
            running.stdout.read()  # until its children have closed it, too
            assert running.wait(60) == -signal.SIGINT
            assert not_compiled(tmp_path, kernel_modules())  # it did not go on to the end

    def test_settings_that_cannot_be_used_are_one_line(self, capsys, monkeypatch):
        monkeypatch.setenv("STOWAGE_SHORTLIST", "-1")
        assert main(["demo", "--exit"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("stowage demo: ")
        assert "shortlist" in said

    def test_an_address_that_cannot_be_listened_on_is_one_line(self, capsys):
        assert main(["demo", "--host", "192.0.2.1"]) == 2
        assert "cannot listen on 192.0.2.1" in capsys.readouterr().err


def assert_packed(output: str) -> None:
    """The table that compares has more on Stowage's side."""
    figures = dict(re.findall(r"^  (\S.*?)  +(\d+ .*|\d+)$", output, re.MULTILINE))
    for row in ("pods placed", "8-GPU jobs placed", "GPUs in use", "nodes with no GPU in use"):
        spread, packed = (int(one) for one in re.findall(r"(\d+)(?: of \d+)?", figures[row]))
        assert packed > spread


def up_to(word: str, lines: Iterable[str]) -> str:
    """Everything up to the first line with this word."""
    output = ""
    for line in lines:
        output += line
        if word in line:
            return output
    raise AssertionError(f"the output ends without {word!r}: {output}")


def get(address: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


COMMAND = [sys.executable, "-m", "extender.cli.main", "demo"]
COMPILING = re.compile(r"^Compiling kernels.*\n", re.MULTILINE)
