"""The tables of the packing comparison, and their place in the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.packing import tables
from bench.packing.runs import Result, Task
from bench.packing.trace_runs import TraceOptions

README = Path(__file__).parents[2] / "README.md"


def result(label: str, trace: str, *allocations: float, knee: float | None = None) -> Result:
    task = Task(label, trace, label, tuple(range(len(allocations))), TraceOptions())
    return Result(task, [{"allocation": allocation, "knee": knee} for allocation in allocations], None)


RESULTS = [
    result("ours", "one", 90.0, 92.0, knee=91.0), result("theirs", "one", 95.0),
    result("ours", "two", 80.0, knee=84.0), result("theirs", "two", 70.0),
]  # fmt: skip


def test_a_line_for_each_trace_and_their_mean() -> None:
    assert tables.by_trace(RESULTS, "ours") == [
        ["trace", "ours", "theirs", "± ours"],
        ["one", "91.00", "95.00", "1.00"],
        ["two", "80.00", "70.00", "0.00"],
        ["mean", "85.50", "82.50", ""],
    ]


def test_a_line_for_each_policy_best_first() -> None:
    assert tables.by_policy(RESULTS, ["two", "three"], gpus=200) == [
        [
            "policy",
            "GPUs allocated, %",
            "GPUs left idle",
            tables.TURNED_AWAY,
            "two",
        ],
        ["ours", "85.50", "29", "87.50", "80.00"],
        ["theirs", "82.50", "35", "", "70.00"],
    ]


def test_the_readme_has_one_place_for_the_table(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(README.read_text())
    for figure in ("1.00", "2.00"):
        tables.replace_in(page, [["policy", "mean"], ["ours", figure]], "python -m bench.packing")
    text = page.read_text()
    assert text.count("| ours | 2.00 |\n\n    python -m bench.packing\n") == 1
    assert "1.00 |" not in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no markers"):
        tables.replace_in(page, [["policy"]], "")
