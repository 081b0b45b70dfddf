"""How long a write may take."""

from __future__ import annotations

import math
import time

import pytest

from extender.source.interface import BindError, WriteError
from extender.source.rest import time_to_write

HOUR = 3600.0


def test_a_write_ends_before_both_limits() -> None:
    assert time_to_write(lambda: 5.0, time.monotonic() + HOUR, BindError) == 5.0
    assert 0 < time_to_write(lambda: math.inf, time.monotonic() + HOUR, BindError) <= HOUR


@pytest.mark.parametrize("error", [BindError, WriteError])
def test_a_write_that_cannot_end_in_time_is_not_sent(error: type[Exception]) -> None:
    with pytest.raises(error, match="no longer the leader"):
        time_to_write(lambda: 0.0, time.monotonic() + HOUR, error)
    with pytest.raises(error, match="too slow"):
        time_to_write(lambda: HOUR, time.monotonic() - 1.0, error)
