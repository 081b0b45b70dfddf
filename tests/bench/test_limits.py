"""The file of limits is complete, and the judge fails what is worse than a margin. No test measures time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import limits
from bench.latency import Pair
from bench.limits import FILE, MEASURES, Limit, Verdict, chosen, read, undisturbed

LIMIT = Limit("echo", "something", observed=2.0, spread=0.1, margin=0.2)


def test_the_file_has_every_figure_that_can_be_measured():
    assert [limit.name for limit in read()] == list(MEASURES)


@pytest.mark.parametrize("limit", read(), ids=lambda limit: limit.name)
def test_noise_is_within_the_margin(limit):
    assert limit.what
    assert limit.observed > 0
    assert 0 < limit.spread < limit.margin * limit.observed
    assert limit.margin <= 0.5


def test_figures_that_are_incomplete_or_there_twice_are_errors(tmp_path: Path):
    text, path = FILE.read_text(), tmp_path / "limits.yaml"
    path.write_text(text.replace("    spread:", "    spraed:", 1))
    with pytest.raises(ValueError, match="expected name, what"):
        read(path)
    names = list(MEASURES)
    path.write_text(text.replace(f"name: {names[1]}\n", f"name: {names[0]}\n"))
    with pytest.raises(ValueError, match="two figures have one name"):
        read(path)


@pytest.mark.parametrize(
    ("values", "passes", "word"),
    [
        ([2.0, 2.1, 1.9], True, "ok"),
        ([2.3, 2.39, 9.0], True, "ok"),
        ([2.3, 2.41, 9.0], False, "WORSE"),
        ([1.5, 1.5, 1.5], True, "better"),
    ],
)
def test_the_median_counts(values, passes, word):
    verdict = Verdict(LIMIT, tuple(values))
    assert verdict.passes is passes
    assert word in verdict.text


def test_neighbours_do_not_count():
    quiet = [Pair(1.0, 1.0, 2.0)] * 60
    assert undisturbed(quiet) == undisturbed(quiet + [Pair(9.0, 9.0, 18.0)] * 40) == 2.0


def test_only_some_figures():
    other = Limit("memory", "something", 1.0, 0.1, 0.2)
    assert chosen([LIMIT, other], []) == [LIMIT, other]
    assert chosen([LIMIT, other], ["memory"]) == [other]
    with pytest.raises(ValueError, match="unknown figure: typo"):
        chosen([LIMIT, other], ["typo"])


@pytest.mark.parametrize(("value", "status"), [(2.0, 0), (3.0, 1)])
def test_the_command_fails_beyond_the_margin(value, status, monkeypatch, capsys):
    monkeypatch.setattr(limits, "read", lambda: [LIMIT])
    monkeypatch.setattr(limits, "MEASURES", {"echo": lambda rounds: [value] * rounds})
    monkeypatch.setattr("sys.argv", ["limits", "--rounds", "1"])
    with pytest.raises(SystemExit) as ended:
        limits.main()
    assert ended.value.code == status
    assert "| echo | 2 | 2.40 |" in capsys.readouterr().out
