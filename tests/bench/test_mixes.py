"""Request mixes: files that are read or refused, bounds that hold, and departures."""

import json

import numpy as np
import pytest

from bench.packing.mig import ProfileMix
from bench.packing.mig_masks import MigMasks
from bench.packing.mix_runs import read_mixes
from bench.packing.mixes import ShareMix, fill_mix, serve_mix
from extender.replay.traces import BadInput
from packing.model.gpu_catalogue import find_model

COMPUTE = (1, 2, 3, 4, 7)
A100 = MigMasks.of(find_model("NVIDIA-A100-SXM4-80GB").geometry, COMPUTE)


@pytest.mark.parametrize(
    "mixes",
    [
        {"m": []},
        {"m": [{"profile": "7g", "frequency": 0}]},
        {"m": [{"profile": "5g", "frequency": 1}]},
        {"m": [{"compute": 21, "memory": 1, "frequency": 1}]},
        {"m": [{"compute": 0, "memory": 0, "frequency": 1}]},
        {"m": [{"compute": 1, "memory": 1, "frequency": float("nan")}]},
        3,
    ],
)
def test_a_broken_file_of_mixes_is_refused(tmp_path, mixes):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"unit": 20, "mixes": mixes}))
    with pytest.raises(BadInput, match="not a file of request mixes"):
        read_mixes(path)


def test_mixes_of_both_kinds(tmp_path):
    path = tmp_path / "mixes.json"
    path.write_text(json.dumps({"unit": 20, "mixes": {"m": [{"compute": 5, "memory": 10, "frequency": 2}]}}))
    assert read_mixes(path)[0].mix.frequency.tolist() == [1.0]
    path.write_text(json.dumps({"mixes": {"m": [{"profile": "7g", "frequency": 1}]}}))
    assert read_mixes(path)[0].mix.axes.tolist() == [[1.0]]
    path.write_text('{"mixes": {"m": [{"frequency": 1}]}}')
    with pytest.raises(BadInput, match="not a file of request mixes"):
        read_mixes(path)


def test_no_packing_beats_the_bound():
    mix = ProfileMix("m", A100, COMPUTE, np.full(5, 0.2), gpus=8)
    for policy in ("inventory", "fgd", "best-fit", "mfi"):
        for seed in range(3):
            figures = fill_mix(mix, policy, load=1.2, seed=seed)
            assert figures["allocation"] <= figures["bound"] + 1e-6
    shares = ShareMix("s", np.array([[2, 10], [10, 2], [5, 5]]), np.array([0.4, 0.3, 0.3]), 20, gpus=10)
    for policy in ("inventory", "best-fit"):
        figures = fill_mix(shares, policy, load=1.2, seed=1)
        assert figures["allocation"] <= figures["bound"] + 1e-6


def test_departures_give_everything_back():
    mix = ProfileMix("m", A100, COMPUTE, np.full(5, 0.2), gpus=2)
    host = mix.host("inventory")
    held = [host.place(kind) for kind in (0, 1, 2, 4)]
    assert all(held)
    assert host.place(4) is None
    for one in held:
        host.leave(one)
    assert host.place(4)
    assert host.place(4)
    assert 0 < serve_mix(mix, "inventory", load=1.0, seed=1)["allocation"] <= 100
