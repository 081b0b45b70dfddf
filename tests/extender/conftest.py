"""Fixtures of all tests of the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extender.source import apiserver
from extender.source.watched_kinds import ALWAYS_AWAITED, WATCHED_KINDS
from tests.extender.apiserver import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server on loopback, without objects."""
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources follow nodes, pods, claims and slices only. A thread and a connection for each of 34 other
    kinds takes more than most tests."""
    kinds = {kind: watched for kind, watched in WATCHED_KINDS.items() if kind in ALWAYS_AWAITED}
    monkeypatch.setattr(apiserver, "WATCHED_KINDS", kinds)
