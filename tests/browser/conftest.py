"""The real service on a snapshot, and a real Chromium. Without Chromium these tests are skipped, loudly."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.chromium import Page, chromium, find_chromium
from bench.page_cluster import manifests
from extender.server.app import create_app
from extender.server.run import listen
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from tests.conftest import NO_CHROMIUM
from tests.extender import ports

READY_SECONDS = 120


@contextmanager
def serving(snapshot: Path, **settings: Any) -> Iterator[str]:
    """A ready service on a free port of this process, which has the kernels already; its URL."""
    service = Service(Settings(**settings), SnapshotSource(read([snapshot]), snapshot.name), "1.2.3")
    ready, ended = threading.Event(), threading.Event()

    async def serve(sock: socket.socket) -> None:
        async with ports.serving(create_app(service), sock, grace=1):
            working = asyncio.create_task(service.run())
            await service.until_ready()
            ready.set()
            await asyncio.to_thread(ended.wait)
            working.cancel()

    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=lambda: asyncio.run(serve(sock)))
        thread.start()
        try:
            assert ready.wait(READY_SECONDS)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def write_snapshot(path: Path, *items: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    return path


@pytest.fixture(scope="session")
def fleet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The mixed fleet of 40 nodes."""
    path = tmp_path_factory.mktemp("page") / "fleet.json"
    with serving(write_snapshot(path, *manifests(40)["items"])) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """The only tab of a browser."""
    if (path := find_chromium()) is None:
        pytest.skip(NO_CHROMIUM)
    with chromium(path) as tab:
        yield tab


@pytest.fixture
def page(browser: Page) -> Page:
    """An empty tab of the usual size, light."""
    browser.open("about:blank")
    browser.resize(1440, 900)
    browser.prefer("light")
    return browser
