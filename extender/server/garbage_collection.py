"""Keeps Python's garbage collector from delaying requests.

A full collection visits every object of the state: a quarter of a second at 30,000 pods, in the middle of a
request. Nearly all of these objects live long, and reference counts free them: requests and connections leave
no cycles behind. So we exclude them with ``gc.freeze``, and collect only objects that were created since,
between requests and often, because each of them is visited once all the same. Python never collects by
itself, which it would do in the middle of a request, too.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable

_INTERVAL = 0.25
"""Seconds between two collections. One takes less than 1 ms at 500 changes of pods a second; after 5 s it
took 10 to 20."""


async def collect_forever(until_ready: Callable[[], Awaitable[None]]) -> None:
    """Collect nothing before ``until_ready`` returns (the state is growing), then four times a second, until
    cancelled."""
    gc.disable()
    await until_ready()
    gc.freeze()  # without collecting: requests are already arriving, and there is little garbage
    await asyncio.to_thread(return_memory)
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
