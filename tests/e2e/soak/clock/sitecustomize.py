"""Moves the wall clock of a Python process by the seconds in a file, while it runs.

Python imports a module of this name at its start if its directory is in PYTHONPATH. `time.time`,
`time.time_ns` and `datetime.now` are moved; monotonic clocks are not, as when a machine's clock is set.
(libfaketime 0.9.10 would do, but fails every `time.sleep` of Python 3.11 with EINVAL.)
"""

import datetime
import os
import time
from datetime import datetime as _datetime  # the true one, as a type

_FILE = os.environ.get("SOAK_CLOCK", "")
_EVERY_S = 0.2  # between two looks at the file
_time, _time_ns = time.time, time.time_ns
_read_at, _offset = -1.0, 0


def _moved() -> int:
    """The offset in seconds."""
    global _read_at, _offset
    now = time.monotonic()
    if now - _read_at > _EVERY_S:
        _read_at = now
        try:
            with open(_FILE) as file:
                _offset = int(file.read() or 0)
        except (OSError, ValueError):
            pass
    return _offset


class _Meta(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _datetime)

    def __subclasscheck__(cls, one: type) -> bool:
        return issubclass(one, _datetime)


class _Moved(_datetime, metaclass=_Meta):
    def __new__(cls, *arguments, **more):  # type: ignore[no-untyped-def]
        return _datetime(*arguments, **more)

    @classmethod
    def now(cls, tz=None):  # type: ignore[no-untyped-def]
        return _datetime.now(tz) + datetime.timedelta(seconds=_moved())


if _FILE:
    time.time = lambda: _time() + _moved()
    time.time_ns = lambda: _time_ns() + _moved() * 1_000_000_000
    datetime.datetime = _Moved  # type: ignore[misc]
