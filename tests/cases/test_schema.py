"""docs/answers.schema.json describes the JSON of ``explain``, ``top`` and ``audit`` for each case, by key."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from deploy.render import ANSWERS, answers_schema
from extender.cli.main import main
from extender.data import CLUSTER
from extender.explain.answers import JSON
from tests.examples import some

CASES = sorted(path.parent for path in Path(__file__).parent.glob("*/right.yaml"))
STRICT = ConfigDict(**JSON, extra="forbid")


@cache
def adapter(command: str) -> TypeAdapter[Any]:
    return TypeAdapter(ANSWERS[command], config=STRICT)


def check(command: str, answer: object) -> None:
    """The answer has the types of the schema and no other key, in the published spelling."""
    adapter(command).validate_json(json.dumps(answer))


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> object:
    code = main([*words, "-o", "json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def test_the_published_schema_is_the_one_of_the_types() -> None:
    assert (Path(__file__).parents[2] / "docs" / "answers.schema.json").read_text() == answers_schema()


@pytest.mark.parametrize("name", some([folder.name for folder in CASES], 20))
def test_each_answer_agrees_with_the_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parent / name
    snapshot = ["--snapshot", str(folder / "cluster.json")]
    written = folder / "pod.json"
    pod = yaml.load((folder / "right.yaml").read_text(), yaml.CSafeLoader).get("pod") or (
        str(written) if written.exists() else ""
    )
    check("top", printed(["top", *snapshot], capsys))
    check("top pods", printed(["top", "pods", *snapshot], capsys))
    check("explain -A", printed(["explain", "-A", *snapshot], capsys))
    check("audit", printed(["audit", *snapshot], capsys))
    if pod:
        check("explain", printed(["explain", pod, *snapshot], capsys))
        check("explain", printed(["explain", pod, *snapshot, "--all"], capsys))


def test_a_table_by_model_agrees_and_another_spelling_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["top", "--by", "model", "--snapshot", str(CLUSTER)], capsys)
    check("top", found)
    assert isinstance(found, dict)
    for wrong in ({"free_gpus": 1.0}, {"freeGpus": "many"}):
        node = {key: value for key, value in found["nodes"][0].items() if key != "freeGpus"}
        with pytest.raises(ValidationError):
            check("top", found | {"nodes": [node | wrong]})
