"""Keeps Python's garbage collector from delaying requests.

A full collection visits every object of the state: a quarter of a second at 30,000 pods, in the middle of a
request. Nearly all of these objects live long, and reference counts free them. So we exclude them with
``gc.freeze``, and collect between requests, every few seconds, only objects that were created since.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

_INTERVAL = 5.0
"""Seconds between two collections. One takes 10 ms at 500 changes of pods a second."""
_POLL = 0.02  # seconds
_NEVER = 1 << 30  # younger collections between two full ones


async def collect_forever(ready: Callable[[], bool]) -> None:
    """Collect nothing before ``ready`` (the state is growing), then every 5 s, until cancelled."""
    gc.disable()
    while not ready():
        await asyncio.sleep(_POLL)
    gc.freeze()  # without collecting: requests are already arriving, and there is little garbage
    await asyncio.to_thread(return_memory)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.enable()
    while True:
        await asyncio.sleep(_INTERVAL)
        gc.collect()
        gc.freeze()


def return_memory() -> None:
    """Return what the first lists and the loading of kernels have freed: glibc keeps it, a tenth of the whole
    process. Does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3)
    if trim is not None:
        trim(0)
