"""``stowage settings``: what is in force, and where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.settings import Settings
from extender.settings_file import load

FILE = "shortlist: 8\nqueues: {backfill: {min_runtime: 2h}, batch: null, ml: {aliases: [b, a]}, idle: {}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stowage.yaml"
    path.write_text(FILE)
    return path


def test_each_value_says_where_it_comes_from(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOWAGE_BIND", "true")
    assert cli.main(["settings", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        f"shortlist: 8  # {file}",
        "bind: true  # environment variable STOWAGE_BIND",
        'policy: "inventory"  # default',
        "shield_seconds: 600  # default",
        f"    min_runtime: 7200  # {file}",
        "    max_duration: 14400  # default",
        f"  batch: null  # {file}",
        f"  idle: {{}}  # {file}",
    ):
        assert line in lines


def test_the_output_is_a_file_with_the_same_settings(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (None, file):
        assert cli.main(["settings", *(["--config", str(path)] if path else [])]) == 0
        copy = tmp_path / "copy.yaml"
        copy.write_text(capsys.readouterr().out)
        assert load(copy, {}) == load(path, {})


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["settings", "--config", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["shortlist"] == 8
    assert found["from"]["queues.ml.aliases"] == str(file)


def test_the_schema_knows_every_setting_and_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["settings", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert [properties.pop(key) for key in ("apiVersion", "kind")] == [
        {"const": "stowage.dev/v1alpha1"},
        {"const": "StowageConfiguration"},
    ]
    assert list(properties) == list(Settings.model_fields)
    assert all(one["description"] for one in properties.values())


def test_an_invalid_setting_is_code_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("queues: {batch: {min_runtime: soon}}")
    assert cli.main(["settings", "--config", str(file)]) == 1
    problem = f"{file}: queues.batch.min_runtime: 'soon' is not a duration such as 1h30m"
    assert capsys.readouterr().err == f"stowage settings: {problem}\n"
