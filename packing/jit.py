"""Compilation of the kernels with numba: at import, for explicit signatures, so that no request waits for the
compiler.

numba fails at import if it cannot write its cache, for example in a container with a read-only file system,
so the cache is enabled only if ``NUMBA_CACHE_DIR`` is set. Reference counting is disabled (``_nrt``) because
atomic counters made the cost kernels five times slower; therefore kernels allocate nothing, and the caller
passes scratch arrays. The cache of a kernel does not detect edits in other files that it calls, and stores
nothing if the disk is full.

No kernel uses linear algebra, for which numba would import ``scipy.linalg`` and add 0.15 s to each start.

With ``NUMBA_DISABLE_JIT=1`` the kernels are plain Python, and numba is not imported: this is faster for
commands that look at few nodes, and spares commands without compiled kernels the wait for the compiler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
_BLAS = "scipy.linalg.cython_blas"
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "1"
"""Whether the kernels are plain Python."""
if INTERPRETED and not TYPE_CHECKING:
    _names = {"boolean": np.bool_, "void": None, "Array": lambda *arguments, **options: None}
    types = SimpleNamespace(**vars(np) | _names)
    np.seterr(all="ignore")  # as compiled code does
else:
    from numba import njit, typeof, types
    from numba.core.caching import FunctionCache
    from numba.np.numpy_support import from_dtype

    _save = FunctionCache.save_overload

    def _save_if_possible(cache: FunctionCache, *overload: object) -> None:
        with suppress(OSError):
            _save(cache, *overload)  # type: ignore[no-untyped-call]

    FunctionCache.save_overload = _save_if_possible  # type: ignore[method-assign, assignment]
    if _BLAS not in sys.modules:
        sys.modules[_BLAS] = None  # type: ignore[assignment]  # its import fails, and numba works without it
        try:
            import_module("numba.np.arraymath")  # the module that tries the import, once
        finally:
            del sys.modules[_BLAS]

I1, U1, I2, I4, U4, I8 = types.int8, types.uint8, types.int16, types.int32, types.uint32, types.int64
F4, F8, BOOL = types.float32, types.float64, types.boolean

Record = TypeVar("Record", bound=tuple[Any, ...])

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


Int8Array = Annotated[npt.NDArray[np.int8], write(I1, 1)]
Int16Array = Annotated[npt.NDArray[np.int16], write(I2, 1)]
Int32Array = Annotated[npt.NDArray[np.int32], write(I4, 1)]
Int64Array = Annotated[npt.NDArray[np.int64], write(I8, 1)]
UInt8Array = Annotated[npt.NDArray[np.uint8], write(U1, 1)]
Float32Array = Annotated[npt.NDArray[np.float32], write(F4, 1)]
Float64Array = Annotated[npt.NDArray[np.float64], write(F8, 1)]
Int64Array2D = Annotated[npt.NDArray[np.int64], write(I8, 2)]
Int32Array2D = Annotated[npt.NDArray[np.int32], write(I4, 2)]
UInt8Array2D = Annotated[npt.NDArray[np.uint8], write(U1, 2)]
Float32Array2D = Annotated[npt.NDArray[np.float32], write(F4, 2)]
Float32Array3D = Annotated[npt.NDArray[np.float32], write(F4, 3)]
Float64 = Annotated[float, F8]


@cache
def record_type(record: type[tuple[Any, ...]]) -> types.Type:
    """The numba type of a NamedTuple whose fields are annotated with the types above."""
    if INTERPRETED:
        return types.void
    fields = get_type_hints(record, include_extras=True).values()
    return types.BaseTuple.from_types([field.__metadata__[0] for field in fields], record)  # type: ignore


def checked(record: Record) -> Record:
    """Return the record. Raises TypeError if a field does not have its annotated type."""
    if not INTERPRETED and not all(map(_is_of, record, record_type(type(record)).types)):  # type: ignore[attr-defined]
        raise TypeError(f"{typeof(record)} where {record_type(type(record))} is expected")  # type: ignore[no-untyped-call]
    return record


def _is_of(value: object, kind: types.Type) -> bool:
    """As numba's ``typeof`` would find, which takes 20 us for an array."""
    if isinstance(value, np.ndarray):
        return value.flags.carray and _is_array_of(value.dtype, value.ndim, kind)
    return bool(typeof(value) == kind)  # type: ignore[no-untyped-call]


@cache
def _is_array_of(dtype: np.dtype[Any], dimensions: int, kind: types.Type) -> bool:
    return bool(write(from_dtype(dtype), dimensions) == kind)


def kernel(
    *arguments: types.Type, returns: types.Type = types.void
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile at import for exactly these argument types, to be called only from Python."""
    return _as_it_is if INTERPRETED else njit(returns(*arguments), **_OPTIONS)


def record_kernel(*records: type[tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile at import for exactly these NamedTuples. A call does not check types: pass ``checked`` records.

    numba needs 0.13 us per array of a tuple to find the compiled version for a call, which was half of a
    decision. There is only one version here, so its entry point is called directly.
    """

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = njit(types.void(*map(record_type, records)), **_OPTIONS)(function)
        return next(iter(compiled.overloads.values())).entry_point  # type: ignore[attr-defined, no-any-return]

    return _as_it_is if INTERPRETED else compile_it


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a kernel, compiled into each kernel that calls it.

    Python cannot call it: omitting the wrapper for Python saves a quarter of the compile time.
    """
    if INTERPRETED:
        return function
    options = _OPTIONS | {"no_cpython_wrapper": True}
    return njit(**options)(function)  # type: ignore[no-any-return]


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
