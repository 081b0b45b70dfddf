"""``stowage replay``: rows, options and errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from extender.cli import main as cli

SNAPSHOT = Path(__file__).parents[3] / "docs/examples/cluster.json"


def replay(*more):
    return cli.main(["replay", "--snapshot", str(SNAPSHOT), "--output", "json", *more])


def test_the_first_row_is_the_cluster_as_it_is_and_rows_repeat(capsys):
    rows = []
    for _ in range(2):
        assert replay("--policy", "inventory,best-fit") == 0
        rows.append([{**row, "seconds": 0} for row in json.loads(capsys.readouterr().out)])
    assert rows[0] == rows[1]
    assert [row["policy"] for row in rows[0]] == ["today", "inventory", "best-fit"]


@pytest.mark.parametrize(
    "more",
    [
        *[["--policy", "best"], ["--policy", ""], ["--policy", "random"], ["--policy", "mfi"]],
        *[["--output", "xml"], ["--timeline"], ["--example"]],
    ],
)
def test_options_that_make_no_sense_stop_before_anything_runs(more):
    with pytest.raises(SystemExit) as stopped:
        replay(*more)
    assert stopped.value.code == 2


def test_settings_that_are_not_there_are_named(capsys):
    assert replay("--config", "missing.yaml") == 2
    assert "missing.yaml: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--policy", "none"], ["--output", "x"]])
def test_help_and_wrong_arguments_load_no_compiler(arguments):
    program = (
        "import sys\nfrom extender.cli.main import main\n"
        "try: main(['replay', *sys.argv[1:]])\nexcept SystemExit: pass\n"
        "assert not {'numba', 'numpy', 'kubernetes', 'fastapi', 'pydantic'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
