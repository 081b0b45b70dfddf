"""``pytest --rewrite`` writes better sentences where the old ones stand, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import expected
from tests.expected import check_text, check_words, nearest

NOW = "It fits on none of 3 nodes.\nNode a1 offers 2 of 8 GPUs free; the pod requests 4.\nb: closed\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(expected, "rewriting", True)
    (tmp_path / "right.yaml").write_text('why: it fits\nexplain: ["a1 has 2 of 8 GPUs free", "b: closed"]\n')
    return tmp_path / "right.yaml"


@pytest.mark.parametrize(
    ("words", "passage"),
    [
        ("a1 has 2 of 8 GPUs free", "a1 offers 2 of 8 GPUs free"),
        ("fits on no node of 3", "fits on none of 3"),
        ("evict ml/train-0 to make room", None),
    ],
)
def test_the_nearest_passage(words: str, passage: str | None) -> None:
    assert nearest(words, NOW) == passage


def test_words_are_rewritten_where_a_passage_is_like_them(file: Path) -> None:
    check_words(file, "a1 has 2 of 8 GPUs free", NOW)
    check_words(file, "b: closed", NOW)
    with pytest.raises(AssertionError):
        check_words(file, "b: open", NOW)
    assert file.read_text() == 'why: it fits\nexplain: ["a1 offers 2 of 8 GPUs free", "b: closed"]\n'
    with pytest.raises(AssertionError):
        check_words(file, "evict ml/train-0", NOW)


def test_texts_are_rewritten_as_a_whole(file: Path) -> None:
    check_text(file, "why: it fits\n", "why: it fits best\n")
    assert file.read_text().startswith("why: it fits best\nexplain")
    with pytest.raises(AssertionError):
        check_text(file, "not there", "nor here")


def test_without_the_switch_nothing_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "rewriting", False)
    before = file.read_text()
    for check in (check_text, check_words):
        with pytest.raises(AssertionError):
            check(file, "a1 has 2 of 8 GPUs free", NOW)
    assert file.read_text() == before
