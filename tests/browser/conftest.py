"""The real service on a snapshot, and a real Chromium. Without Chromium these tests are skipped, loudly."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.chromium import Page, chromium, find_chromium
from bench.page_cluster import manifests
from tests.conftest import NO_CHROMIUM

READY_SECONDS = 120


@contextmanager
def serving(snapshot: Path, **settings: str) -> Iterator[str]:
    """``stowage serve`` on a free port; its URL, once it is ready."""
    command = [sys.executable, "-m", "extender.cli.main", "serve", "--port", "0", "--snapshot", str(snapshot)]
    ours = {f"STOWAGE_{key.upper()}": value for key, value in {"drain_seconds": "0", **settings}.items()}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | ours)
    assert process.stderr is not None
    try:
        url = next(found[1] for line in process.stderr if (found := re.search(r"on (http://[^\"]+)", line)))
        end = time.monotonic() + READY_SECONDS
        while httpx.get(f"{url}/readyz", timeout=READY_SECONDS).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


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
