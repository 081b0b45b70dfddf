"""``stowage plan``: the samples of docs/plan.md are what it prints, formats, exit codes and bad options."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.cli import plan
from tests.expected import check_text
from tests.extender.plan.clusters import bad_mig_layout, node, pod

PAGE = Path(__file__).parents[3] / "docs/plan.md"
SAMPLE = re.compile(r"```\n(stowage plan [^\n]*)\n```\n\n```text\n(.*?)```\n", re.DOTALL)
YAML = re.compile(r"```yaml\n(.*?)```\n", re.DOTALL)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the samples name."""
    (tmp_path / "bad-layout.json").write_text(json.dumps({"kind": "List", "items": bad_mig_layout()}))
    (tmp_path / "prices.yaml").write_text(YAML.findall(PAGE.read_text())[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(command: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main(shlex.split(command)[1:])
    return code, out.getvalue()


@pytest.mark.parametrize(("command", "sample"), SAMPLE.findall(PAGE.read_text()))
def test_the_samples_of_the_page_are_what_it_prints(files, command, sample):
    code, text = printed(command)
    assert code == 0
    check_text(PAGE, sample, text)


def test_there_is_a_sample_for_most_questions():
    said = " ".join(command for command, _ in SAMPLE.findall(PAGE.read_text()))
    for word in ("drain", "--add", "--remove", "moves", "mig", "--prices"):
        assert word in said


def test_json_has_all_rows_and_both_gains(files):
    code, text = printed("stowage plan drain --example -o json")
    found = json.loads(text)
    assert (code, found["agrees"]) == (0, True)
    assert len(found["tables"]["order"]) == 27
    assert found["tables"]["order"][0] == {"step": 1, "node": "a100-03", "pods_to_move": 0, "replayed": "yes"}
    goes = next(one for one in found["check"] if one["what"] == "removable nodes")
    assert goes == {"what": "removable nodes", "today": 0, "promised": 27, "replayed": 27}


def test_csv_has_the_main_table(files):
    code, text = printed("stowage plan mig --snapshot bad-layout.json -o csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert code == 0
    assert [row["node"] for row in rows] == ["mig-1", "mig-2", "mig-3", "mig-4"]
    assert sum(row["then"] == "4x 3g.40gb" for row in rows) == 3


def test_a_plan_promises_no_more_than_came_out(files):
    large = "nvidia.com/mig-3g.40gb"
    items = [node("a", 1, devices={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"})]
    items += [pod(f"w{n}", resource=large, cpu="50") for n in range(2)]
    (files / "cpu.json").write_text(json.dumps({"kind": "List", "items": items}))
    code, text = printed("stowage plan mig --snapshot cpu.json")
    assert code == 0
    assert re.search(r"3g.40gb in use +0 +1 +1\n", text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("change --snapshot nowhere.json", "expected --add or --remove"),
        ("slices --snapshot nowhere.json --prometheus ftp://x", "expected a URL"),
        ("--snapshot nowhere.json --prices nowhere.yaml", "nowhere.yaml: cannot be read"),
    ],
)
def test_bad_options_are_one_line_before_anything_is_read(files, capsys, options, says):
    assert printed(f"stowage plan {options}") == (2, "")
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("change --example --add 4xH9", "is named 'H9'"),
        ("change --example --remove nobody", "there is no node nobody"),
        ("--snapshot nowhere.json", "cannot be read"),
    ],
)
def test_what_does_not_fit_the_cluster_is_one_line(files, capsys, options, says):
    assert printed(f"stowage plan {options}")[0] == 2
    first, error = capsys.readouterr().err.strip().split("\n")
    assert first.startswith("stowage plan: reading ")
    assert says in error


@pytest.mark.parametrize("what", ["", *(one for one in plan._WHAT if one != "change")])
def test_an_option_of_another_plan_is_named(capsys, what):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", *([what] if what else []), "--add", "4xH100", "--example"])
    assert stopped.value.code == 2
    assert "--add belongs to 'stowage plan change'" in capsys.readouterr().err


@pytest.mark.parametrize("what", plan._WHAT)
def test_the_help_of_a_plan_has_its_own_options_only(capsys, what):
    with pytest.raises(SystemExit):
        cli.main(["plan", what, "--help"])
    shown = capsys.readouterr().out
    for of_plan, option, _ in plan._OPTIONS:
        assert (f"{option} " in shown) is (of_plan == what)


def test_what_stands_before_the_plan_counts(files):
    code, text = printed("stowage plan --example -o json drain")
    assert (code, json.loads(text)["title"]) == (0, "Fewest nodes for this workload: example")


@pytest.mark.parametrize("options", ["--example", "drain --example", "change --example --add 1xH100"])
def test_tables_fit_100_columns(options):
    assert max(map(len, printed(f"stowage plan {options}")[1].splitlines())) <= 100
