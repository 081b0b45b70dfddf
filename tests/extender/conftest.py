"""Fixtures of all tests of the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extender.apiserver import ApiServer


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server on loopback, without objects."""
    server = ApiServer()
    server.start()
    yield server
    server.stop()
