"""One event loop for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.hostile.cluster import Cluster


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture
def cluster(runner: asyncio.Runner) -> Cluster:
    """A cluster with the usual nodes and no pods."""
    return Cluster(runner)
