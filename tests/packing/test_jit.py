"""Records that kernels take: their types are checked once, when they are made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from packing.jit import Float32Array, Float64, Int64Array, checked, record_kernel

FULL = """
import resource, sys
sys.dont_write_bytecode = True  # or modules that nobody can read would stay behind
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
from packing.cost import knapsack_kernels
"""


def test_a_full_disk_keeps_no_kernel_and_ends_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FULL], env=environment, check=True, timeout=300)


class Totals(NamedTuple):
    amounts: Float32Array
    total: Int64Array
    factor: Float64


@record_kernel(Totals)
def add_up(totals):
    for amount in totals.amounts:
        totals.total[0] += amount * totals.factor


def totals(dtype="f4", *, step=1, writable=True):
    amounts = np.arange(6, dtype=dtype)[::step]
    amounts.setflags(write=writable)
    return Totals(amounts, np.zeros(1, np.int64), 2.0)


def test_a_kernel_takes_a_record():
    record = checked(totals())
    add_up(record)
    assert record.total[0] == 30


@pytest.mark.parametrize(
    "wrong", [totals("f8"), totals("i4"), totals(step=2), totals(writable=False), totals()._replace(factor=2)]
)
def test_fields_of_another_type_are_refused(wrong):
    with pytest.raises(TypeError, match="is expected"):
        checked(wrong)
