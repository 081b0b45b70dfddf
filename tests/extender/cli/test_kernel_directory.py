"""Where compiled kernels are kept: the user's choice, the user's cache, else a directory for this process."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import pytest

from extender.cli import precompile
from extender.cli.precompile import (
    KEPT,
    choose_cache,
    compiled,
    kernel_modules,
    not_compiled,
    sources_key,
)


@pytest.fixture(autouse=True)
def cache_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "xdg" / "stowage" / "kernels"


def unwritable(path: Path) -> Path:
    """A path below a file: not even root can make a directory of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path / "below"


def test_the_default_is_below_the_users_cache(cache_home: Path) -> None:
    assert choose_cache() == cache_home / sources_key()
    assert os.environ["NUMBA_CACHE_DIR"] == str(cache_home / sources_key())


def test_a_full_disk_keeps_nothing() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        assert choose_cache() is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("xdg", [None, "", "relative"])
def test_without_an_absolute_xdg_cache_home_it_is_below_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, xdg: str | None
) -> None:
    if xdg is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert choose_cache() == tmp_path / "home" / ".cache" / "stowage" / "kernels" / sources_key()


def test_the_users_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_home: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    assert choose_cache() == tmp_path / "mine"
    assert not cache_home.exists()


def test_a_variable_that_cannot_be_used_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(unwritable(tmp_path / "file")))
    assert choose_cache() == cache_home / sources_key()
    assert "file/below is not writable" in caplog.text


def test_an_unwritable_home_means_a_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(unwritable(tmp_path / "file")))
    directory = choose_cache()
    assert directory is not None
    assert directory.parent == tmp_path / "tmp"
    assert directory.stat().st_mode & 0o077 == 0


def test_a_cache_of_another_user_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_home: Path
) -> None:
    """numba would run the machine code that it finds there."""
    monkeypatch.setattr(precompile.os, "geteuid", lambda: os.getuid() + 1)
    directory = choose_cache()
    assert directory is not None
    assert directory.parent == tmp_path / "tmp"


def test_where_nothing_can_be_written_there_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(unwritable(tmp_path / "file")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert choose_cache() is None
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_old_directories_are_removed(cache_home: Path) -> None:
    for number in range(KEPT + 3):
        (cache_home / f"old-{number}").mkdir(parents=True)
        os.utime(cache_home / f"old-{number}", (number, number))
    choose_cache()
    kept = {path.name for path in cache_home.iterdir()}
    assert kept == {sources_key(), *(f"old-{number}" for number in range(4, KEPT + 3))}


def test_the_key_changes_with_the_sources_and_with_numba(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = tmp_path / "packing", tmp_path / "extender"
    for directory in sources:
        directory.mkdir()
        (directory / "some_kernels.py").write_text("a")
    monkeypatch.setattr(precompile, "_ROOTS", sources)
    keys = [sources_key(), sources_key()]
    assert keys[0] == keys[1]
    for directory in sources:
        (directory / "some_kernels.py").write_text("changed")
        keys.append(sources_key())
    (sources[0] / "imported_by_kernels.py").touch()
    keys.append(sources_key())
    monkeypatch.setattr(precompile, "version", lambda name: "another")
    keys.append(sources_key())
    monkeypatch.setenv("NUMBA_CPU_NAME", "another")
    keys.append(sources_key())
    assert len(set(keys)) == 6


def test_the_key_does_not_depend_on_file_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The layers of an image round them to seconds."""
    kernels = tmp_path / "some_kernels.py"
    kernels.write_text("a")
    monkeypatch.setattr(precompile, "_ROOTS", (tmp_path, tmp_path))
    key = sources_key()
    os.utime(kernels, (1, 1))
    assert sources_key() == key


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation with compiled kernels."""
    directory = tmp_path / "shipped"
    (directory / "packing").mkdir(parents=True)
    (directory / "packing" / "some_kernels.nbi").write_text("compiled")
    for module in kernel_modules():
        compiled(directory, module, sources_key())
    monkeypatch.setattr(precompile, "SHIPPED", directory)
    return directory


def test_kernels_of_the_installation_are_copied(shipped: Path) -> None:
    directory = choose_cache()
    assert directory is not None
    assert (directory / "packing" / "some_kernels.nbi").read_text() == "compiled"
    assert not_compiled(directory, kernel_modules()) == []


def test_kernels_are_copied_once(shipped: Path) -> None:
    choose_cache()
    (shipped / "packing" / "some_kernels.nbi").write_text("changed")
    directory = choose_cache()
    assert directory is not None
    assert (directory / "packing" / "some_kernels.nbi").read_text() == "compiled"


def test_kernels_of_other_sources_are_not_copied(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompile, "version", lambda name: "another")
    directory = choose_cache()
    assert directory is not None
    assert list(directory.iterdir()) == []


def test_kernels_that_cannot_be_copied_are_compiled(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precompile.shutil, "copytree", lambda *_, **__: os.stat("/missing"))
    directory = choose_cache()
    assert directory is not None
    assert not_compiled(directory, kernel_modules()) == kernel_modules()
    assert "cannot be copied" in caplog.text


def test_every_module_with_kernels_is_known() -> None:
    found = kernel_modules()
    assert "extender.protocol.node_name_kernels" in found
    assert "packing.fleet.feasibility_kernels" in found
    root = Path(precompile.__file__).parents[2]
    with_kernels = {
        path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        for package in ("packing", "extender")
        for path in (root / package).rglob("*.py")
        if "\n@kernel(" in path.read_text(encoding="utf-8")
    }
    assert with_kernels <= set(found)
