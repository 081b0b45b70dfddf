"""The gain over the best other policy, with the standard error of paired seeds; and other draws of a mix."""

import json

import pytest

from bench.packing import draws
from bench.packing.gains import gains
from bench.packing.replay import main


def rows(bound=None):
    found = {"inventory": (80.0, 84.0), "fgd": (79.0, 81.0), "best-fit": (81.0, 70.0)}
    made = [
        {"mix": "small", "load": 1.2, "policy": policy, "seed": seed, "allocation": figure}
        for policy, figures in found.items()
        for seed, figure in enumerate(figures)
    ]
    return made if bound is None else [row | {"bound": bound} for row in made]


def test_the_gain_is_over_the_best_mean_and_its_error_that_of_pairs():
    assert gains(rows())[1] == ["small", "1.2", "82.00", "80.00 fgd", "+2.00", "1.00", ""]
    assert gains(rows(bound=90.0))[1][-1] == "90.00"


@pytest.fixture
def file(tmp_path):
    parts = [{"compute": c, "memory": m, "frequency": 0.5} for c, m in ((2, 6), (9, 7))]
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"unit": 10, "mixes": {"two": parts}}))
    return path


@pytest.mark.nightly
def test_gains_of_a_file(file, capsys):
    options = ["mixes", str(file), "--seeds", "1-2", "--output", "gains"]
    assert main([*options, "--policy", "inventory,best-fit"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["mix", "load", "inventory"]
    assert [line.split()[:2] for line in lines] == [["two", "1.0"], ["two", "1.3"]]
    assert all(float(line.split()[-1]) >= float(line.split()[2]) for line in lines)
    assert main([*options, "--policy", "best-fit,fgd"]) == 2
    assert "needs inventory" in capsys.readouterr().err


def test_other_draws_of_a_mix(capsys, monkeypatch):
    monkeypatch.setattr("bench.packing.random_mixes.GPUS", 16)
    monkeypatch.setattr("sys.argv", ["draws", "1/3", "--draws", "2"])
    assert draws.main() == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["mix", "winner", "its", "draw", "other", "draws", "±", "bound"]
    mix, winner, _, _, _, left = line.split()
    assert mix == "1/3"
    assert winner in draws.KINDS["shares"].others
    assert float(left) >= 0
    monkeypatch.setattr("sys.argv", ["draws", "58"])
    with pytest.raises(SystemExit):
        draws.main()
    assert "expected SEED/NUMBER" in capsys.readouterr().err
