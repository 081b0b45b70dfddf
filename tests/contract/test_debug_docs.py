"""docs/debug.md names every route, and its examples are what a service on the bundled example answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from extender.data import CLUSTER
from extender.k8s.objects import Upserted
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource, read
from tests.contract.conftest import GPU, Start, manifest
from tests.extender.builders import make_node
from tests.routes import routes

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = dict(
    re.findall(r"^```http\nGET (\S+)\n```\n```json\n(.*?)^```", (DOCS / "debug.md").read_text(), re.M | re.S)
)


def matches(shown: Any, answered: Any) -> bool:
    """Whether an answer has all that is shown; "..." is any text, and a list may go on."""
    if isinstance(shown, dict):
        return all(key in answered and matches(value, answered[key]) for key, value in shown.items())
    if isinstance(shown, list):
        return len(shown) <= len(answered) and all(map(matches, shown, answered))
    if isinstance(shown, float):
        return bool(answered == pytest.approx(shown, abs=1e-3))
    return shown == "..." or shown == answered


@pytest.mark.parametrize("path", EXAMPLES)
async def test_an_example_is_what_is_answered(start: Start, path: str) -> None:
    snapshot = read([CLUSTER])
    stowage = await start(*snapshot.nodes.values(), *snapshot.pods.values())
    names = sorted(snapshot.nodes)
    await stowage.filter(manifest("train", 8), names)
    if path == "/debug/problems":
        assert stowage.service.engine is not None
        stowage.service.engine.apply([Upserted(make_node("broken", **{GPU: "x"}))])
    answer = (await stowage.http.get(path)).text
    shown = json.loads(EXAMPLES[path])
    answered = json.loads(answer.splitlines()[0] if path == "/debug/state" else answer)
    if path == "/debug/state":
        shown["version"] = "1.2.3"  # that of the tests
    assert matches(shown, answered), answer[:3000]


def test_the_examples_were_found() -> None:
    assert len(EXAMPLES) == 4


def test_every_route_is_documented() -> None:
    service = Service(Settings(), SnapshotSource(Snapshot(), "test"), "1.2.3")
    paths = [route.path for route in routes(service) if route.path.startswith("/debug")]
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert len(paths) > 10
    described = [path for path in paths if not path.startswith("/debug/fleet")]  # what only the page asks
    assert [path for path in described if path not in pages] == []


def test_the_comparison_can_fail() -> None:
    assert matches({"a": ["...", 1.0]}, {"a": ["x", 1, 2], "b": 3})
    for answered in ({"a": ["x"]}, {"a": ["x", 2]}, {}):
        assert not matches({"a": ["...", 1.0]}, answered)
