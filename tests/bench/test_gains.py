"""The gain over the best other policy, with the standard error of paired seeds; and other draws of a mix."""

import json

import pytest

from bench.packing.gains import gains


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
