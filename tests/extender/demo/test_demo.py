"""The demo: its bundled cluster, its kube-scheduler, and the command as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from http.client import HTTPConnection

import pytest

from bench import demo_cluster
from extender.cluster.state import State
from extender.cluster.totals import Totals
from extender.data import CLUSTER
from extender.demo.child_service import DemoError, free_port
from extender.demo.pods import GPU, stream
from extender.demo.run import comparison, figures, waiting_text
from extender.demo.scheduler import (
    NodeInfo,
    PodInfo,
    Scheduler,
    balanced_allocation,
    least_allocated,
    read_cluster,
)
from extender.source.snapshot import SnapshotSource, read
from packing.policies.registry import POLICIES


def node(name: str = "n", *, taken: dict[str, int] | None = None, **allocatable: int) -> NodeInfo:
    resources = {"cpu": 100, "memory": 100, "pods": 10} | {
        GPU if key == "gpus" else key: amount for key, amount in allocatable.items()
    }
    return NodeInfo(name, {"pool": name}, resources, Counter(taken or {}))


def pod(gpus: int = 0, **selector: str) -> PodInfo:
    manifest = {"metadata": {"namespace": "default", "name": "p"}, "spec": {"nodeSelector": selector}}
    return PodInfo(manifest, {"cpu": 1, "memory": 1, "pods": 1} | ({GPU: gpus} if gpus else {}))


class Scripted:
    """A Stowage with fixed scores that records its calls."""

    def __init__(self, scores: dict[str, int]) -> None:
        self.scores = scores
        self.asked: list[tuple[str, object]] = []

    def filter(self, pod, nodes):
        self.asked.append(("filter", nodes))
        return [name for name in self.scores if name in nodes]

    def prioritize(self, pod, nodes):
        self.asked.append(("prioritize", nodes))
        return {name: self.scores[name] for name in nodes}

    def bind(self, pod, node):
        self.asked.append(("bind", node))


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

    def test_no_node_holds_more_than_it_has(self):
        nodes, pending = read_cluster(json.loads(demo_cluster.text())["items"])
        assert pending
        assert all(one.free(name) >= 0 for one in nodes for name in one.requested)


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


POD = {"cpu": 3000, "memory": 5000}


class TestScores:
    """The cases of balanced_allocation_test.go and least_allocated_test.go, v1.36."""

    @pytest.mark.parametrize(
        ("cpu", "memory", "taken", "score"),
        [
            (4000, 10000, {}, 68),
            (6000, 10000, {}, 75),
            (10000, 20000, {"cpu": 3000}, 73),
            (10000, 20000, {"cpu": 3000, "memory": 5000}, 74),
            (10000, 50000, {"cpu": 3000, "memory": 5000}, 70),
        ],
    )
    def test_balance(self, cpu, memory, taken, score):
        assert balanced_allocation(node(cpu=cpu, memory=memory, taken=taken), POD) == score

    def test_balance_reaches_its_ends(self):
        memory_only = {"memory": 5000}
        assert balanced_allocation(node(cpu=3000, memory=5000, taken={"cpu": 3000}), memory_only) == 100
        assert balanced_allocation(node(cpu=3000, memory=5000), memory_only) == 50

    @pytest.mark.parametrize(
        ("cpu", "taken", "score"),
        [(4000, {}, 37), (6000, {}, 50), (12000, {"cpu": 3000}, 50)],
    )
    def test_allocation(self, cpu, taken, score):
        assert least_allocated(node(cpu=cpu, memory=10000, taken=taken), POD) == score


class TestCycle:
    def test_the_default_spreads(self):
        run = Scheduler([node("a"), node("b"), node("c")], 1)
        assert {run.schedule(pod()) for _ in range(3)} == {"a", "b", "c"}

    def test_a_pod_that_does_not_fit_in_tree_never_reaches_the_extender(self):
        asked = Scripted({"a": 1, "b": 1})
        run = Scheduler([node("a", gpus=4), node("b", gpus=4)], 1, asked)
        assert run.schedule(pod(gpus=8)) is None
        assert run.schedule(pod(gpus=1, pool="c")) is None
        assert asked.asked == []
        assert len(run.waiting) == 2

    def test_with_one_node_left_nothing_is_scored(self):
        asked = Scripted({"b": 0})
        run = Scheduler([node("a", gpus=4), node("b", gpus=4)], 1, asked)
        assert run.schedule(pod(gpus=1)) == "b"
        assert asked.asked == [("filter", ["a", "b"]), ("bind", "b")]

    def test_stowage_says_which_node_is_best(self):
        asked = Scripted({"full": 1, "empty": 0})
        nodes = [node("full", gpus=4, taken={GPU: 3, "cpu": 90, "memory": 90}), node("empty", gpus=4)]
        run = Scheduler(nodes, 1, asked)
        assert run.schedule(pod(gpus=1)) == "full"
        assert run.nodes["full"].free(GPU) == 0

    def test_ties_are_broken_at_random(self):
        def drawn(seed: int) -> str | None:
            asked = Scripted({"a": 9, "b": 10, "c": 10})
            nodes = [node(name, gpus=4) for name in "abc"]
            return Scheduler(nodes, seed, asked).schedule(pod(gpus=1))

        assert {drawn(seed) for seed in range(20)} == {"b", "c"}


class TestReport:
    def test_figures_are_counted_on_the_nodes(self):
        large = {"cpu": 10**6, "memory": 10**7, "pods": 10}
        nodes = [
            NodeInfo("free", {}, large | {GPU: 8}),
            NodeInfo("taken", {}, large | {GPU: 8}, Counter({GPU: 1})),
            NodeInfo("little-cpu", {}, large | {GPU: 8, "cpu": 1000}),
            NodeInfo("mig", {}, large | {GPU: 0, "nvidia.com/mig-1g.10gb": 7}),
            NodeInfo("no-gpu", {}, large),
        ]
        run = Scheduler(nodes, 1)
        run.placed, run.waiting = [pod(gpus=1)], [pod(gpus=8), pod(gpus=16)]
        assert figures(run) == {
            "pods placed": "1 of 3",
            "8-GPU jobs placed": "0 of 1",
            "whole GPUs in use": "1 of 24",
            "free blocks of 8 GPUs": "2",
            "8-GPU jobs that could still start": "1",
            "GPUs on nodes with no GPU in use": "16",
            "nodes with no GPU in use": "3",
        }

    def test_the_table_is_aligned(self):
        run = Scheduler([node("a", gpus=8)], 1)
        lines = comparison(run, run).splitlines()
        assert len({len(line) for line in lines}) == 1

    def test_waiting_pods_are_grouped_and_those_larger_than_any_node_are_marked(self):
        run = Scheduler([node("a", gpus=8)], 1)
        assert waiting_text(run) == "With Stowage no pod stays pending."
        for gpus in (8, 8, 8, 16):
            run.schedule(pod(gpus=gpus))
        _, first, second = waiting_text(run).splitlines()
        assert first == "    2 x nvidia.com/gpu: 8, any product"
        assert second == "    1 x nvidia.com/gpu: 16, any product (larger than any node)"


class TestPort:
    def test_a_port_in_use_is_replaced_and_a_free_one_is_kept(self):
        with socket.create_server(("127.0.0.1", 0)) as busy:
            port = busy.getsockname()[1]
            assert free_port("127.0.0.1", port) not in (0, port)
        assert free_port("127.0.0.1", port) == port

    @pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 8080), ("127.0.0.1", 70000)])
    def test_an_address_that_cannot_be_listened_on_is_an_error(self, host, port):
        with pytest.raises(DemoError):
            free_port(host, port)


class TestCommand:
    @pytest.mark.nightly
    def test_it_compares_and_exits(self):
        done = subprocess.run(
            [*COMMAND, "--exit", "--port", "0"], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, "")
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
                    assert get(url, "/readyz")[0] == 200
                    found = json.loads(get(url, "/debug/overview?waiting=200")[1])["overview"]
                    assert Totals(**found["totals"]).text in " ".join(
                        output.split()
                    )  # terminal and page count the same
                    groups = re.findall(r"^ +(\d+) x ", output, re.MULTILINE)
                    assert sum(map(int, groups)) == found["totals"]["waiting"] == len(found["waiting"]) > 1
                    assert all(0 <= time.time() - pod["created"] < 3600 for pod in found["waiting"])
                    running.send_signal(signal.SIGINT)
                    assert running.wait(60) == 0
                    assert running.stderr.read() == ""
                finally:
                    running.kill()
        with pytest.raises(ConnectionRefusedError):
            get(url, "/readyz")

    def test_ctrl_c_ends_it_within_a_second_while_it_compiles(self, tmp_path):
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
            pressed = time.monotonic()
            os.killpg(running.pid, signal.SIGINT)
            assert running.stdout is not None
            running.stdout.read()  # until its children have closed it, too
            assert running.wait(60) == 130
            assert time.monotonic() - pressed < 5  # on a busy machine

    def test_a_service_that_cannot_start_is_one_line(self):
        done = subprocess.run(
            [*COMMAND, "--exit", "--port", "0"],
            env=os.environ | {"STOWAGE_SHORTLIST": "-1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "shortlist" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("stowage demo: the service exited")


def assert_packed(output: str) -> None:
    """The table that compares has more on Stowage's side."""
    figures = dict(re.findall(r"^  (\S.*?)  +(\d+ .*|\d+)$", output, re.MULTILINE))
    for row in ("pods placed", "8-GPU jobs placed", "whole GPUs in use", "nodes with no GPU in use"):
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
