"""The kernels of the victim search are compiled beside a service that is ready, by another process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from extender.server.service import Service
from extender.server.victim_kernels import VictimKernels
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource

PREEMPT = b'{"Pod": {"metadata": {"name": "a"}}, "NodeNameToMetaVictims": {}}'


def python(code: str) -> Callable[[], Sequence[str]]:
    return lambda: (sys.executable, "-c", code)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.01)


def in_service(
    command: Callable[[], Sequence[str]], check: Callable[[Service], Awaitable[None]], **settings: object
) -> None:
    async def run() -> None:
        source = SnapshotSource(Snapshot(), "test")
        service = Service(Settings.model_validate(settings), source, "1.2.3", compile_later=command)
        running = asyncio.create_task(service.run())
        await until(lambda: not service.missing())
        await check(service)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_compiled_kernels_are_loaded_before_the_service_is_ready() -> None:
    async def check(service: Service) -> None:
        assert (await service.answer("preempt", PREEMPT)).status == 200

    in_service(tuple, check)


def test_preempt_is_refused_until_another_process_has_compiled_them(tmp_path: Path) -> None:
    (gate := tmp_path / "gate").touch()
    waits = f"import pathlib, time\nwhile pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"

    async def check(service: Service) -> None:
        assert service.engine is not None
        refused = await service.answer("preempt", PREEMPT)
        assert (refused.status, service.engine.state.can_search_victims()) == (503, False)
        assert b"victim search" in refused.body
        filtered = await service.answer("filter", b'{"Pod": {"metadata": {"name": "a"}}, "NodeNames": []}')
        assert (filtered.status, b"not ready" in filtered.body) == (200, False)
        gate.unlink()
        await until(service.engine.state.can_search_victims)
        assert (await service.answer("preempt", PREEMPT)).status == 200

    in_service(python(waits), check)


@pytest.mark.parametrize("command", [python("raise SystemExit(3)"), lambda: ("/no/such/program",)])
def test_if_the_process_fails_they_are_loaded_all_the_same(
    command: Callable[[], Sequence[str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        kernels = VictimKernels(command)
        kernels.load_compiled()
        assert not kernels.loaded
        await kernels.compile(lambda: True)
        assert kernels.loaded

    asyncio.run(check())
    assert "compiling ahead failed" in caplog.text


def test_the_process_ends_with_the_service(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    sleeps = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text('x'); time.sleep(600)"

    async def check() -> None:
        task = asyncio.create_task(VictimKernels(python(sleeps)).compile(lambda: True))
        await until(started.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(check())  # returns, and does not wait for 600 s


async def test_a_process_that_shares_the_cache_may_compile_them_first() -> None:
    commands = iter([(sys.executable, "-c", "raise SystemExit"), ()])
    kernels = VictimKernels(lambda: next(commands))
    kernels.load_compiled()
    assert not kernels.loaded
    await kernels.compile(lambda: True)
    assert kernels.loaded
