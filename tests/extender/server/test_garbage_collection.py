"""Memory that C code has freed goes back to the system."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from extender.server.garbage_collection import return_memory

CHUNKS, SIZE = 2000, 64 << 10  # below the size from which glibc maps each chunk on its own


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
