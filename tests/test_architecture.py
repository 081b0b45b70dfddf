"""The walks of docs/architecture.md are what the code does: each is done while all calls are recorded."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from extender.cli.main import main
from extender.data import CLUSTER
from extender.server.app import create_app
from extender.server.engine import Engine
from extender.server.service import Service
from extender.settings import Settings
from tests.contract.conftest import Stowage, manifest
from tests.extender.apiserver import ApiServer, source_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
HOP = re.compile(r"^\d+\. `(\S+\.py)` `(\S+)`", re.MULTILINE)
CHANGE = re.compile(r"`([\w./-]+\.\w+)`(?: `(\w+)`)?")
NODE = {
    "metadata": {
        "name": "a",
        "uid": "u-a",
        "labels": {
            "stowage.dev/gpu-sharing": "true",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.memory": "16384",
            "nvidia.com/gpu.product": "Tesla-T4",
        },
    },
    "status": {"allocatable": {"nvidia.com/gpu": "2", "cpu": "64", "memory": "256Gi", "pods": "100"}},
}
POD = manifest(gpus=0)
POD["metadata"]["annotations"] = {"stowage.dev/gpu-compute": "30%"}
POD["spec"]["nodeName"] = ""
RUNS = manifest("runs", gpus=0)
RUNS["metadata"]["annotations"] = {"stowage.dev/gpu-compute": "60%", "stowage.dev/gpu-indices": "0"}
RUNS["spec"]["nodeName"] = "a"
LARGE = manifest("large", gpus=0)
LARGE["metadata"]["annotations"] = {"stowage.dev/gpu-compute": "50%", "stowage.dev/gpus": "2"}
LARGE["spec"]["priority"] = 100


def hops(walk: str) -> list[str]:
    """The hops of the walk with this heading, as ``file.py function``."""
    section = PAGE.split(f"\n### {walk}\n")[1].split("\n#")[0]
    found = [" ".join(hop) for hop in HOP.findall(section)]
    assert len(found) == len(re.findall(r"^\d+\. ", section, re.MULTILINE)), "a hop without file and function"
    return found


@pytest.mark.parametrize("folder", ["explain", "cluster", "verbs"])
def test_every_module_of_a_large_folder_is_in_its_room_of_the_page(folder: str) -> None:
    section = PAGE.split("## Inside the large folders")[1].split("\n## ")[0]
    rooms = [room for room in section.split("\n- ")[1:] if room.startswith(f"`extender/{folder}/`")]
    named = [name for room in rooms for name in re.findall(r"`([a-z_]+)`", room)]
    files = {path.stem for path in (ROOT / "extender" / folder).glob("*.py")} - {"__init__"}
    assert set(named) == files


def test_where_to_change_what_names_at_most_four_files_that_exist() -> None:
    section = PAGE.split("\n## Where to change what\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| a")]
    assert len(rows) > 10
    for what, change, example in rows:
        for path, name in CHANGE.findall(change + example):
            assert (ROOT / path).is_file(), what
            assert name in (ROOT / path).read_text(), what
        assert len({path for path, _ in CHANGE.findall(change)}) <= 4, what


def imported(module: str) -> set[str]:
    """The modules of ours that a module imports with itself."""
    body = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text()).body
    nodes = [node for node in body if isinstance(node, ast.ImportFrom) and node.module]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    names |= {str(node.module) for node in nodes}
    return {name for name in names if (ROOT / f"{name.replace('.', '/')}.py").is_file()}


def test_filter_and_prioritize_reach_no_more_modules_than_they_need() -> None:
    reached, unread = set[str](), {"extender.verbs.filter", "extender.verbs.prioritize"}
    while unread:
        reached |= unread
        unread = set().union(*map(imported, unread)) - reached
    systems = {f"extender.dialects.{path.stem}" for path in (ROOT / "extender/dialects").glob("*.py")}
    assert 88 < len(reached - systems) <= 95  # sharing systems aside: each is one more


@contextmanager
def calls_recorded() -> Iterator[list[str]]:
    """Every call of a function of ours, in all threads that are started within, in the order of time."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith((f"{ROOT}/extender/", f"{ROOT}/packing/")):
            calls.append(f"{code.co_filename[len(str(ROOT)) + 1 :]} {code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def first_missing(walk: Iterable[str], calls: Iterable[str]) -> str | None:
    """The first hop that does not come after the one before it; None where all do."""
    left = iter(calls)
    return next((hop for hop in walk if hop not in left), None)


async def eventually(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def test_filter_prioritize_bind_and_the_event_of_the_binding(tmp_path: Path) -> None:
    api = ApiServer()
    api.start()
    api.put(NODE)
    api.put(POD)
    api.put(RUNS)
    assert Engine  # the kernels are loaded before calls are recorded, which is slow
    service = Service(Settings(bind=True), source_of(api, tmp_path), "1.2.3")
    with calls_recorded() as calls:  # from the start: the reflectors are threads of their own
        running = asyncio.create_task(service.run())
        try:
            await eventually(lambda: service.engine and not service.missing())
            transport = httpx.ASGITransport(create_app(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://stowage") as client:
                stowage = Stowage(service, client)
                calls.clear()
                assert b'"NodeNames":["a"]' in await stowage.filter(POD, ["a", "unknown"])
                await stowage.prioritize(POD, ["a"])
                scheduling = calls.copy()
                calls.clear()
                assert b"uid-runs" in await stowage.preempt(
                    LARGE, {"a": {"Pods": None, "NumPDBViolations": 0}}
                )
                preempting = calls.copy()
                calls.clear()
                assert await stowage.bind(POD, "a") == b'{"Error":""}'
                state = service.engine.state  # type: ignore[union-attr]
                await eventually(lambda: state.pods["default/train"].node_name)
                binding = calls.copy()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            api.stop()
    assert first_missing(hops("A pod through filter and prioritize"), scheduling) is None
    assert first_missing(hops("A preemption"), preempting) is None
    assert first_missing(hops("A bind"), binding) is None
    assert first_missing(hops("A watch event"), binding) is None


def test_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    with calls_recorded() as calls:
        assert main(["replay", "--snapshot", str(CLUSTER)]) == 0
    assert "today" in capsys.readouterr().out
    assert first_missing(hops("A replay"), calls) is None
