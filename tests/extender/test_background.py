"""Tasks and threads of the service that fail start again, and are counted and shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from extender import background
from extender.background import Background
from extender.cluster.reservations import AssumedPods
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.verbs import bind
from tests.extender.builders import make_node


class Failing:
    """Fails twice, then goes on for ever, or returns."""

    def __init__(self, error: BaseException, then: Callable[[], None] = lambda: None) -> None:
        self.calls, self._error, self._then = 0, error, then

    def __call__(self) -> None:
        self.calls += 1
        if self.calls <= 2:
            raise self._error
        self._then()


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), asyncio.CancelledError()])
async def test_a_task_starts_again_after_an_error(error: BaseException) -> None:
    kept, failing = Background(pause=0.0), Failing(error)

    async def run() -> None:
        failing()

    await kept.keep("the task", run)
    assert (failing.calls, kept.failures["the task"]) == (3, 2)
    text = f"failures since start: 2, last 0 s ago: {type(error).__name__}"
    assert kept.problems() == {"the task": text}


async def test_a_task_that_is_cancelled_ends() -> None:
    kept = Background(pause=0.0)
    task = asyncio.create_task(kept.keep("the task", asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not kept.failures


def test_a_thread_starts_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, done = Background(pause=0.0), threading.Event()
    thread = kept.thread("the thread", Failing(ValueError("x"), done.set))
    assert done.wait(20)
    thread.join(20)
    assert kept.failures["the thread"] == 2
    monkeypatch.setattr(background, "_SHOWN", 0.0)
    assert kept.problems() == {}  # it was long ago


async def test_an_error_in_a_task_of_the_service_ends_neither_it_nor_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going_on = asyncio.Event()
    expiry = Failing(KeyError("a gang"), going_on.set)
    monkeypatch.setattr(bind, "_CHECKS", 0.0)
    monkeypatch.setattr(AssumedPods, "overdue", lambda table, now: expiry() or [])
    service = Service(Settings(), SnapshotSource(Snapshot({"a": make_node("a")}, {}), "test"), "0")
    service.background = Background(pause=0.0)
    running = asyncio.create_task(service.run())
    await asyncio.wait({running, asyncio.ensure_future(going_on.wait())}, return_when="FIRST_COMPLETED")
    assert not running.done()
    assert service.background.failures == {"expiry of assumed pods": 2}
    assert b"stowage_background_failures_total 2.0" in await service.render_metrics()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
