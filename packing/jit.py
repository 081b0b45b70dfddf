"""How compiled functions are declared: explicit, read-only signatures, nothing compiled inside a request.

The cache is kept only where ``NUMBA_CACHE_DIR`` names a directory: without one, numba fails at import in a
container whose file system is read-only. Reference counts are off (``_nrt``): counting arrays up and down,
with atomic operations at every use, made the row kernels five times slower; hence kernels allocate nothing
and get their scratch arrays from the caller. Compiled functions that call each other share a file, because
the cache of the caller does not see an edit in another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from numba import njit, typeof, types

I1, U1, I2, I4, I8, U4 = types.int8, types.uint8, types.int16, types.int32, types.int64, types.uint32
F4, F8 = types.float32, types.float64

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "cache": bool(os.environ.get("NUMBA_CACHE_DIR")),
    "_nrt": False,
    "no_cfunc_wrapper": True,
}


def read(scalar: types.Type, dimensions: int) -> types.Array:
    """A C-contiguous array that the kernel only reads."""
    return types.Array(scalar, dimensions, "C", readonly=True)


def write(scalar: types.Type, dimensions: int) -> types.Array:
    """A C-contiguous array that the kernel fills."""
    return types.Array(scalar, dimensions, "C")


def each_of(example: tuple[Any, ...]) -> tuple[types.Type, ...]:
    """The types of the fields of a named tuple like this one.

    Kernels take them one by one: numba needs 0.05 us for an array, but ten times as long for one in a tuple.
    """
    return tuple(typeof(field) for field in example)  # type: ignore[no-untyped-call]


def kernel(
    *arguments: types.Type, returns: types.Type = types.void
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile at import for exactly these argument types, to be called from Python and from nowhere else."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        return njit(returns(*arguments), **_OPTIONS)(function)

    return compile_it


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a kernel, compiled together with the kernels of its file that call it.

    Python cannot call it: the wrappers that nobody needs are a fourth of the time that compiling takes.
    """
    options = _OPTIONS | {"no_cpython_wrapper": True}
    return njit(**options)(function)  # type: ignore[no-any-return]
