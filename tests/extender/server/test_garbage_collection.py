"""Python collects garbage between requests only, and memory that C code has freed goes back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
import weakref
from pathlib import Path

import pytest

from extender.server.between_answers import collect_forever, return_memory

CHUNKS, SIZE = 2000, 64 << 10  # below the size from which glibc maps each chunk on its own


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> None:
    """conftest.py freezes what is there after the collection of tests."""
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.own = self


async def test_cycles_are_collected_between_requests_only() -> None:
    ready = asyncio.Event()
    collecting = asyncio.create_task(collect_forever(ready.wait))
    early = weakref.ref(Cycle())
    await asyncio.sleep(0.1)
    assert not gc.isenabled()
    assert early() is not None  # the state grows, and most of it stays
    ready.set()
    while gc.get_freeze_count() == 0:
        await asyncio.sleep(0.01)
    late = weakref.ref(Cycle())
    async with asyncio.timeout(60):
        while late() is not None:
            await asyncio.sleep(0.01)
    assert not gc.isenabled()
    collecting.cancel()
    await asyncio.wait([collecting])
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


async def test_a_cycle_that_has_lived_for_a_while_is_collected() -> None:
    """A long request or connection is not frozen because it happened to be there at a collection."""

    async def ready() -> None:
        """At once."""

    collecting = asyncio.create_task(collect_forever(ready))
    while gc.get_freeze_count() == 0:
        await asyncio.sleep(0.01)
    cycle = Cycle()
    await asyncio.sleep(0.6)  # two collections
    later = weakref.ref(cycle)
    del cycle
    state = []
    async with asyncio.timeout(60):
        while later() is not None:
            state += [[number] for number in range(10_000)]
            await asyncio.sleep(0.05)
    collecting.cancel()


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_memory_is_returned():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    chunks = [libc.malloc(SIZE) for _ in range(CHUNKS)]
    for chunk in chunks:
        ctypes.memset(chunk, 1, SIZE)
    for chunk in chunks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(chunk)
    before = resident_mib()
    return_memory()
    after = resident_mib()
    libc.free(chunks[-1])
    assert before - after > CHUNKS * SIZE / 2 / 2**20
