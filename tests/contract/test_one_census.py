"""``stowage top``, ``plan``, ``replay`` and ``demo``, the page, ``/debug`` and the metrics count the same
nodes, GPUs and waiting pods."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extender.cli.main import main
from extender.data import CLUSTER
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from tests.examples import some

CASES = Path(__file__).parents[1] / "cases"
FOLDERS = (
    "claim-allocated-elsewhere",
    "gke-rtx-pro-6000-mig",
    "gpus-in-capacity-only",
    "gpus-in-resource-slices",
    "node-down-with-pods",
    "not-ready-with-gpus",
    "register-that-cannot-be-read",
    "waiting-for-devices-of-dra",
)
FILES = {name: [CASES / name / "cluster.json"] for name in FOLDERS}
MIXED = "claim-allocated-elsewhere", "gpus-in-resource-slices", "not-ready-with-gpus"
EVERY_CASE = {path.parent.name: [path] for path in sorted(CASES.glob("*/cluster.json"))}
MOST_GPUS = 64
"""A node with more stands for a cluster; the page shows it as one cell."""
CLUSTERS = FILES | {"the example": [CLUSTER], "all at once": [CLUSTER, *(FILES[name][0] for name in MIXED)]}


def top(cluster: Sequence[Path], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["top", "--snapshot", *map(str, cluster), "-o", "json", "--waiting", "200"]) == 0
    return dict(json.loads(capsys.readouterr().out, object_hook=in_snake_case))


def in_snake_case(keys: dict[str, Any]) -> dict[str, Any]:
    """An object of the command line as ``/debug`` has it; names of nodes have no capitals."""
    return {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): keys[key] for key in keys}


async def answers(cluster: Sequence[Path]) -> dict[str, Any]:
    """What a service says of it, by path."""
    service = Service(Settings(), SnapshotSource(read(cluster), "test"), "1.2.3")
    await service.start()
    assert service.engine
    await service.engine.inspector.history.sample(1.0)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service)), base_url="http://s"
    ) as http:
        paths = "fleet", "fleet/history", "overview", "fragmentation"
        found = {path: (await http.get(f"/debug/{path}")).json() for path in paths}
        return found | {"metrics": sums((await http.get("/metrics")).text)}


def test_gpus_that_only_claims_get_are_on_offer(capsys: pytest.CaptureFixture[str]) -> None:
    lines = top(FILES["gpus-in-resource-slices"], capsys)["nodes"]
    assert [(line["gpus"], line["not_offered"]) for line in lines] == [(4, 0), (0, 0), (2, 0)]


@pytest.mark.parametrize(
    "name", [*CLUSTERS, *some([name for name in EVERY_CASE if name not in CLUSTERS], 40)]
)
def test_all_count_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = (EVERY_CASE | CLUSTERS)[name]
    table, said = top(cluster, capsys), asyncio.run(answers(cluster))
    totals, page, history, metrics = table["totals"], said["fleet"], said["fleet/history"], said["metrics"]
    assert said["overview"]["overview"]["totals"] == totals
    assert said["fragmentation"]["totals"] == totals
    assert page["totals"] == totals
    rows = {row["name"]: row["count"] for row in page["nodes"] if row["count"]}
    fields = "gpus", "not_offered", "used_gpus", "free_gpus", "whole", "on_offer"
    lines = {line["node"]: [line[name] for name in fields] for line in table["nodes"]}
    assert rows == lines
    for row in page["nodes"]:
        gpus = row["count"][0] if row["count"] else 0
        assert len(row["gpus"]) == gpus or gpus > MOST_GPUS, row
    assert totals["waiting"] == len(page["waiting"]) == len(table["waiting"]) - totals["gated"]
    why = [{line["pod"]: line["why"] for line in lines} for lines in (table["waiting"], page["waiting"])]
    assert why[0].items() >= why[1].items()
    of_lines = {
        "nodes": len(lines),
        "gpus": sum(line["gpus"] for line in table["nodes"]),
        "used": sum(line["used_gpus"] for line in table["nodes"]),
        "free": sum(line["free_gpus"] for line in table["nodes"] if line["on_offer"]),
        "whole": sum(line["whole"] for line in table["nodes"] if line["on_offer"]),
        "closed_nodes": sum(not line["on_offer"] for line in table["nodes"]),
        "not_offered": sum(line["not_offered"] for line in table["nodes"]),
        "uncounted": sum(not line["gpus"] for line in table["nodes"]),
    }
    assert {name: totals[name] for name in of_lines} == pytest.approx(of_lines, abs=0.01)
    for name in ("gpus", "used", "whole", "whole_nodes", "waiting"):
        assert history[name][-1] == pytest.approx(totals[name], abs=0.01), name
    of_metrics = {
        "gpus_installed": "gpus",
        "gpus_by_use": "gpus",
        "gpus_used": "used",
        "gpus_free": "free",
        "gpus_whole": "whole",
        "nodes_whole": "whole_nodes",
        "closed_nodes": "closed_nodes",
        "gpus_not_offered": "not_offered",
        "nodes_uncounted": "uncounted",
        "waiting_pods": "waiting",
    }
    for metric, name in of_metrics.items():
        assert metrics.get(f"stowage_{metric}", 0) == pytest.approx(totals[name], abs=0.01), metric


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_every_plan_begins_with_the_census(
    cluster: Sequence[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    totals = top(cluster, capsys)["totals"]
    for what in ("summary", "drain", "moves", "mig", "slices", "change --remove NODE"):
        what = what.replace("NODE", next(iter(read(cluster).nodes)))
        assert main(["plan", *what.split(), "--snapshot", *map(str, cluster), "-o", "json"]) in (0, 1)
        said = json.loads(capsys.readouterr().out)
        assert said["totals"] == totals, what
        tables, check = said["tables"], {one["what"]: one for one in said["check"]}
        if what == "summary":
            assert sum(row["nodes"] for row in tables["models"]) == totals["nodes"]
            assert sum(row["gpus"] for row in tables["models"]) == totals["gpus"]
            assert sum(row["gpus_free_whole"] for row in tables["models"]) == totals["whole"]
        if what in ("summary", "drain"):
            assert check["nodes with GPUs"]["today"] == totals["nodes"]
        if what == "drain":
            assert len(tables["order"]) + len(tables["stays"]) == totals["nodes"]
            assert len(tables["waiting"]) == totals["waiting"]
            assert check["GPUs entirely free on kept nodes"]["today"] == totals["whole"]
        if what == "moves":
            assert check["GPUs entirely free"]["today"] == totals["whole"]
        if what.startswith("change"):
            assert len(tables["waiting"]) == totals["waiting"]


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_a_replay_begins_with_the_census(cluster: Sequence[Path], capsys: pytest.CaptureFixture[str]) -> None:
    totals = top(cluster, capsys)["totals"]
    code = main(["replay", "--snapshot", *map(str, cluster), "-o", "json", "--policy", "best-fit"])
    said = capsys.readouterr()
    if code:
        assert said.err.endswith("no node that accepts pods has a GPU\n")
        assert totals["whole"] == 0
    else:
        today, packed = json.loads(said.out)
        assert today["totals"] == totals
        figures = today["whole_gpus_free"], today["whole_nodes_free"]
        assert figures == (totals["whole"], totals["whole_nodes"])
        assert sum(packed["whole_by_model"].values()) == packed["whole_gpus_free"]


def sums(text: str) -> dict[str, float]:
    """By metric, over all its labels."""
    families = text_string_to_metric_families(text)
    return {one.name: sum(sample.value for sample in one.samples) for one in families}
