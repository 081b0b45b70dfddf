"""Kernels are compiled by another process, once, into a cache that this one finds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from extender.cli.precompile import compile_apart


def test_an_empty_cache_is_filled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compile_apart("first-fit")
    compiled = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb[ic]")}
    assert compiled
    compile_apart("first-fit")
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb[ic]")} == compiled


def test_without_a_cache_there_is_one_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    compile_apart("first-fit")
    assert any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi"))


def test_where_nothing_can_be_written_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    compile_apart("first-fit")
    assert "compiled here" in caplog.text
