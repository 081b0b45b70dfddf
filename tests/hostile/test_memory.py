"""Requests under the memory limit of the chart's container, a real cgroup: none of them ends the process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from extender.data import CLUSTER
from tests.examples import some

LIMIT = 1 << 30  # bytes: `resources` in deploy/chart/values.yaml
SIZE = 62 << 20  # bytes of a body: a little less than what is accepted
SECONDS = 120  # for the start
POD = '{"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}'
FILTER = {"Pod": json.loads(POD), "Nodes": None, "NodeNames": ["h100-01"]}
MANY_VICTIMS = '"n":{"Pods":[' + ",".join(['{"metadata":{"uid":"u"}}'] * 4000) + "]}"
BODIES = {  # verb, beginning, what is repeated, end
    "victims": ("preempt", f'{{"Pod": {POD}, "NodeNameToVictims": {{"n": {{"Pods": [', "{}", "]}}}"),
    "nodes of victims": ("preempt", f'{{"Pod": {POD}, "NodeNameToMetaVictims": {{', '"n":{}', "}}"),
    "UIDs": ("preempt", f'{{"Pod": {POD}, "NodeNameToMetaVictims": {{"n": {{"Pods": [', '{"UID":""}', "]}}}"),
    "names": ("filter", f'{{"Pod": {POD}, "NodeNames": [', '""', "]}"),
    "nodes": ("filter", f'{{"Pod": {POD}, "Nodes": {{"items": [', "{}", "]}}"),
    "containers": ("filter", '{"NodeNames": ["a"], "Pod": {"spec": {"containers": [', "{}", "]}}}"),
    "labels": ("filter", '{"NodeNames": ["a"], "Pod": {"metadata": {"labels": {', '"a":"b"', "}}}}"),
    "unread": ("prioritize", f'{{"Pod": {POD}, "NodeNames": ["a"], "Other": [', "[[]]", "]}"),
    "victims of many nodes": ("preempt", f'{{"Pod": {POD}, "NodeNameToVictims": {{', MANY_VICTIMS, "}}"),
    "depth": ("filter", f'{{"Pod": {POD}, "Other": [', "[", "]}"),
}


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Path]:
    """A cgroup with this limit inside that of the tests."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    paths = {controllers: path.lstrip("/") for _, controllers, path in lines}
    is_first = "memory" in paths  # the first version of cgroups
    parent = Path(
        "/sys/fs/cgroup/memory" if is_first else "/sys/fs/cgroup", paths["memory" if is_first else ""]
    )
    made = parent / f"stowage-{os.getpid()}"
    try:
        made.mkdir()
        (made / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    while made.exists():  # the process that has been killed leaves it a little later
        try:
            made.rmdir()
        except OSError:
            time.sleep(0.05)


class Limited:
    """``stowage serve`` in a cgroup."""

    def __init__(self, cgroup: Path, log: Path) -> None:
        serve = [
            sys.executable,
            "-m",
            "extender.cli.main",
            "serve",
            "--port",
            "0",
            "--snapshot",
            str(CLUSTER),
        ]
        enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
        with log.open("w") as stderr:
            self.process = subprocess.Popen(["sh", "-c", enter, "sh", *serve], stderr=stderr)
        self.url, end = "", time.monotonic() + SECONDS
        while not (self.url and httpx.get(f"{self.url}/readyz").status_code == 200):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
            found = re.search(r"listening for .* on (http://[^\"]+)", log.read_text())
            self.url = found[1] if found else ""

    def post(self, verb: str, body: bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return httpx.post(f"{self.url}/scheduler/{verb}", content=body, headers=headers, timeout=100)

    def still_answers(self) -> bool:
        answer = self.post("filter", json.dumps(FILTER).encode())
        return self.process.poll() is None and answer.json()["NodeNames"] == ["h100-01"]


@pytest.fixture(scope="module")
def limited(cgroup: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    one = Limited(cgroup, tmp_path_factory.mktemp("log") / "log")
    yield one
    one.process.kill()
    one.process.wait()


def repeated(before: str, item: str, after: str, size: int = SIZE) -> bytes:
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return (before + ",".join([item] * count) + after).encode()


def send(limited: Limited, name: str) -> httpx.Response:
    verb, *parts = BODIES[name]
    return limited.post(verb, repeated(*parts))


@pytest.mark.parametrize("member", some(['"containers":[', '"x":[', '"tolerations":[', '"volumes":['], 1))
def test_no_pod_within_its_limit_ends_the_process(limited: Limited, member: str) -> None:
    before, after = '{"NodeNames": ["a"], "Pod": {"spec": {' + member, "]}}}"
    answer = limited.post("filter", repeated(before, "{}", after, 3 << 20))
    assert answer.status_code == 200
    assert limited.still_answers()


@pytest.mark.parametrize("name", some(BODIES, 1))
def test_no_message_ends_the_process(limited: Limited, name: str) -> None:
    answer = send(limited, name)
    assert answer.status_code in (200, 400, 413, 503)
    assert limited.still_answers()


@pytest.mark.nightly
def test_no_four_messages_at_once_end_it(limited: Limited) -> None:
    names = ("victims of many nodes", "UIDs", "names", "nodes")
    with ThreadPoolExecutor(len(names)) as callers:
        answers = [*callers.map(partial(send, limited), names)]
    assert {answer.status_code for answer in answers} <= {200, 400, 413, 503}
    assert limited.still_answers()
