"""Prices by instance type and GPU model, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.plan.prices import costs_of, read_prices
from extender.source.errors import BadInput
from packing.model.node_spec import Gpu, NodeSpec
from tests.extender.plan.clusters import node, source_of


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return path


def test_the_instance_type_comes_before_the_gpu(tmp_path):
    prices = read_prices(
        write(
            tmp_path,
            "{currency: EUR, hours_per_month: 100, instance_types: {p5: 10}, gpus: {H100: 2, H100 SXM5: 3}}",
        )
    )
    source = source_of(
        node("a", 4, labels={"node.kubernetes.io/instance-type": "p5"}), node("b", 4), node("c", 0)
    )
    specs = [spec for spec in source.trial().fleet.specs if spec]
    costs = costs_of(prices, specs, source.nodes())
    assert dict(costs.per_month) == {"a": 1000.0, "b": 1200.0}  # the longest name counts, for each GPU
    assert (costs.total, costs.of(["b", "nobody"]), costs.currency, costs.note()) == (
        2200.0,
        1200.0,
        "EUR",
        "",
    )


def test_nodes_without_a_price_are_said(tmp_path):
    prices = read_prices(write(tmp_path, "gpus: {B200: 9}"))
    costs = costs_of(prices, [NodeSpec("a", 1, 1, (Gpu(1000),), model="H100"), NodeSpec("b", 1, 1)], {})
    assert costs.note() == "The cost excludes 1 node without a known price, such as 'a'."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: {H100: -1}", "greater than or equal to 0"),
        ("gpus: {H100: .inf}", "H100: Input should be a valid number"),
        ("gpu: {H100: 1}", "gpu"),
        ("currency: EUR", "neither instance_types nor gpus"),
        ("gpus: [1]", "gpus: Input should be an object"),
        ("- 1", "prices.yaml"),
        ("", "prices.yaml"),
        ("a: [", "is not YAML"),
        ("hours_per_month: 9000\ngpus: {T4: 1}", "744"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    with pytest.raises(BadInput, match=says):
        read_prices(write(tmp_path, text))


def test_a_file_that_is_not_there():
    with pytest.raises(BadInput, match="cannot be read"):
        read_prices(Path("nowhere.yaml"))


def test_a_spot_node_costs_a_part_of_the_price_and_nothing_is_guessed(tmp_path):
    specs = [
        NodeSpec("a", 1, 1, (Gpu(1),), model="T4"),
        NodeSpec("b", 1, 1, (Gpu(1),), model="T4", spot=True),
    ]
    costs = costs_of(
        read_prices(write(tmp_path, "{hours_per_month: 100, gpus: {T4: 1}, spot: 0.3}")), specs, {}
    )
    assert dict(costs.per_month) == {"a": 100.0, "b": 30.0}
    costs = costs_of(read_prices(write(tmp_path, "{hours_per_month: 100, gpus: {T4: 1}}")), specs, {})
    assert (dict(costs.per_month), costs.unknown) == ({"a": 100.0}, ("b",))
    assert "spot nodes need the key 'spot'" in costs.note()
