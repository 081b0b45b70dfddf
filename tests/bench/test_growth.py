"""The formula of a replica's cost, and what the scripted API server lists for a shard. No test measures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench import cluster
from bench.apiserver import ApiServer
from bench.growth import Figures, Size, fit, formula, row, sizes
from bench.node_manifest import SHARD_LABEL, SHARDS

FIGURES = Figures(Size(1000), 10.0, 3.0, 0.0, 0.0, 1.0, 0.5, (300.0, 100.0))
SIZES = list(sizes([1000, 5000, 10_000], [5000], [20_000]))


def measured(base: float, *factors: float) -> list[Figures]:
    """Figures that follow a formula."""
    whole = [size for size in SIZES if size.shards == 1]
    terms = [size.terms for size in whole]
    values = [sum(f * t for f, t in zip((base, *factors), term, strict=True)) for term in terms]
    return [replace(FIGURES, size=size, resident=value) for size, value in zip(whole, values, strict=True)]


def test_the_factors_of_a_formula_are_found() -> None:
    found = fit(measured(230.0, 0.005, 0.003, 0.0002), lambda one: one.resident)
    assert found.factors == pytest.approx((230.0, 0.005, 0.003, 0.0002))
    assert max(map(abs, found.residuals)) < 1e-6


def test_what_the_formula_does_not_explain_is_shown() -> None:
    figures = measured(230.0, 0.005, 0.003, 0.0002)
    figures[0] = replace(figures[0], resident=figures[0].resident + 10)
    text = formula("memory", "MiB", figures, lambda one: one.resident)
    assert text.startswith("memory = 2")
    assert "x thousand GPUs" in text
    assert len(text.splitlines()) == 2 + len(figures)
    assert max(fit(figures, lambda one: one.resident).residuals) > 0.5


def test_pods_and_gpus_vary_apart_from_nodes() -> None:
    assert [(one.nodes, one.pods, one.gpus, one.shards) for one in SIZES] == [
        (1000, 6, 8, 1),
        (5000, 6, 8, 1),
        (5000, 2, 8, 1),
        (5000, 6, 16, 1),
        (10_000, 6, 8, 1),
        (20_000, 6, 8, SHARDS),
    ]


def test_a_line_of_the_table() -> None:
    assert row(FIGURES).startswith("| 1,000 | 6,000 | 8,000 |")
    assert row(FIGURES).endswith("| 300 | 100 | 10,000 |")
    assert "1 of 4 shards" in row(replace(FIGURES, size=SIZES[-1]))


async def listed(server: ApiServer, query: bytes) -> list[dict[str, Any]]:
    """The items of a list of nodes."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await server({"path": "/api/v1/nodes", "query_string": query}, None, send)
    items: list[dict[str, Any]] = json.loads(sent[1]["body"])["items"]
    return items


async def test_a_shard_lists_only_its_nodes() -> None:
    size = Size(10, shards=SHARDS)
    server = ApiServer(nodes=10, gpus=16, pods=2)
    every = await listed(server, b"")
    ours = await listed(server, f"labelSelector={SHARD_LABEL}%3D0".encode())
    assert [one["metadata"]["name"] for one in every] == [cluster.node_name(index) for index in range(10)]
    assert [one["metadata"]["name"] for one in ours] == size.names
    assert {one["status"]["allocatable"]["nvidia.com/gpu"] for one in every} == {"16"}
    assert size.settings["STOWAGE_NODE_SELECTOR"] == f"{SHARD_LABEL}=0"
