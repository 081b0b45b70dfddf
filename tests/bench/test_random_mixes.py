"""Random mixes repeat by their seed and are within their limits, and no policy exceeds a bound on them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.mixes import ShareMix, fill_mix
from bench.packing.random_mixes import random_profiles, random_shares
from bench.packing.random_runs import KINDS, OURS, ROUNDED, main, summary
from tests.examples import examples

mixes = st.tuples(st.integers(0, 1 << 30), st.integers(0, 500))


@settings(max_examples=examples(50))
@given(mixes)
def test_the_same_seed_makes_the_same_mix_and_each_type_fits_an_empty_node(which):
    made, again = random_shares(*which), random_shares(*which)
    work = made.work
    assert isinstance(work, ShareMix)
    assert (work.sizes == again.work.sizes).all()
    assert work.frequency.tolist() == again.work.frequency.tolist()
    assert made.load == again.load
    assert 0.9 <= made.load <= 1.3
    assert 1 <= len(work.sizes) <= 8
    assert work.frequency.sum() == pytest.approx(1)
    assert (work.sizes >= 1).all()
    assert (work.sizes <= work.unit).all()
    assert (work.count <= work.node_gpus).all()
    assert work.gpus % work.node_gpus == 0
    assert len(np.unique(np.column_stack([work.sizes, work.count]), axis=0)) == len(work.sizes)


def test_the_mixes_differ():
    made = [random_shares(1, number) for number in range(40)]
    assert {mix.work.node_gpus for mix in made} == {1, 2, 4, 8}
    assert {mix.work.unit for mix in made} == {10, 20, 100}
    assert 10 < sum(mix.work.node_cpu > 0 for mix in made) < 30
    assert len({tuple(random_profiles(1, number).work.frequency) for number in range(40)}) == 40


@pytest.mark.nightly
@settings(max_examples=10)
@given(mixes, st.sampled_from([8, 16]))
def test_no_policy_exceeds_a_bound(which, gpus):
    for kind in KINDS.values():
        made = kind.make(*which)
        work = replace(made.work, gpus=gpus)
        for policy in (OURS, *kind.others):
            found = fill_mix(work, policy, load=made.load, seed=which[1])
            assert found["allocation"] <= found["bound"] + ROUNDED, policy


def test_a_run_of_two_mixes(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("bench.packing.random_mixes.GPUS", 16)
    out = tmp_path / "rows.json"
    options = ["--mixes", "2", "--kinds", "shares", "--ways", "fill", "--jobs", "1", "--output", str(out)]
    assert main(options) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["kind", "way", "mixes", "mean"]
    assert line.split()[:3] == ["shares", "fill", "2"]
    assert out.stat().st_size


def test_the_summary_counts_the_mixes_where_another_policy_is_better():
    row = {"kind": "mig", "way": "fill", "bound": 90.0, "allocation": {OURS: 80.0}}
    rows = [row | {"difference": d, "number": i} for i, d in enumerate((1.0, -0.2, -0.4, 0.0))]
    assert summary(rows)[1] == ["mig", "fill", "4", "+0.10", "0.31", "-0.40", "2", "1", "1", "80.00", "90.00"]
