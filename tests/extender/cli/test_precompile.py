"""Kernels are compiled by another process, once, into a cache that this process then loads from."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.cli import precompile
from extender.cli.precompile import kernel_modules, loading_kernels, not_compiled, prepare_kernels


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, before numba was imported."""
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def files(cache: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in cache.rglob("*.nb[ic]")}


@pytest.mark.nightly
def test_an_empty_cache_is_filled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("extender").setLevel(logging.WARNING)
    prepare_kernels()
    assert (compiled := files(cache))
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is started
    prepare_kernels()
    assert files(cache) == compiled


PROGRAM = [sys.executable, "-m", "extender.cli.main"]
MOVES = [*PROGRAM, "plan", "moves", "--example", "-o", "json"]


@pytest.mark.nightly
def test_a_command_compiles_with_progress_each_function_once_and_no_more(cache: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    environment.pop("STOWAGE_TESTS", None)
    first = subprocess.run(MOVES, env=environment, capture_output=True, text=True, check=True)
    lines = first.stderr.splitlines()
    assert lines[:2] == ["stowage plan: reading the bundled example", "Compiling kernels, only once: 0%"]
    assert all(line.startswith("Compiling kernels, only once: ") for line in lines[1:])
    compiled = files(cache)
    second = subprocess.run(MOVES, env=environment, capture_output=True, text=True, check=True)
    assert second.stderr == "stowage plan: reading the bundled example\n"
    assert (files(cache), second.stdout) == (compiled, first.stdout)


_RUN = "import sys; from extender.cli.main import main; main({}); print('numba' in sys.modules)"


@pytest.mark.parametrize(
    "arguments",
    [["top", "--example", "-o", "json"], ["explain", "research/sweep-p4", "--example", "-v"]],
    ids=["top", "explain"],
)
def test_a_question_about_few_nodes_compiles_nothing_and_has_the_same_answer(
    arguments: list[str], cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", _RUN.format(arguments)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    monkeypatch.undo()  # here with compiled kernels
    assert cli.main(arguments) == 0
    assert said == f"{capsys.readouterr().out}False\n"
    assert not cache.exists()


@pytest.mark.nightly
def test_a_first_question_about_many_nodes_does_not_wait_for_the_child_that_compiles(cache: Path) -> None:
    code = "from extender.cli.precompile import kernels_for_question as it\nwith it(101): from packing"
    code += ".jit import INTERPRETED; print(INTERPRETED)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    ends = time.monotonic() + 300
    while not_compiled(cache, kernel_modules()) and time.monotonic() < ends:
        time.sleep(0.5)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_terminal_shows_at_once_that_the_command_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", sys)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with suppress(KeyError), loading_kernels():
        assert terminal.getvalue() == "\r\033[KLoading ...\r"
        raise KeyError
    assert terminal.getvalue().endswith("...\r\r\033[K\r")


def test_without_a_writable_directory_it_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    prepare_kernels()
    assert "no directory for compiled kernels is writable" in caplog.text


def test_a_failure_is_a_warning_and_the_next_start_tries_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precompile, "__name__", "no.such.module")
    prepare_kernels()
    assert "compiling kernels in advance failed" in caplog.text
    assert list(cache.iterdir()) == []


def test_once_numba_is_loaded_it_does_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", sys)
    prepare_kernels()
    assert not cache.exists()
