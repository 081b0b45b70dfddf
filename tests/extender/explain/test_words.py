"""Nothing decides by a text: with every word replaced by a number, explain decides the same."""

from __future__ import annotations

import ast
import json
import string
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from extender.cli.main import main
from extender.explain.words import Word
from packing.model.reasons import Reason
from tests.cases.test_cases import CASES
from tests.cases.test_one_verdict import case, waiting
from tests.examples import examples

DECIDES = ("fits", "nodes", "best", "node", "plain", "hint_kinds", "kind", "fixes", "nearest", "refusals")
DECIDES += (
    "verdict",
    "lacks",
    "can_host",
    "eviction_helps",
    "asked",
    "free",
    "total",
    "evictions",
    "victims",
)
EXPLAIN = Path(__file__).parents[3] / "extender/explain"


def decisions(answer: Any) -> Any:
    """The part of an explanation that is not text."""
    if isinstance(answer, list):
        return [decisions(part) for part in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        name: decisions(value)
        for name, value in answer.items()
        if name in DECIDES and not (name in ("asked", "lacks") and isinstance(value, str))
    }


def explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[int, Any]]:
    """The exit code and the decisions about the case's pods."""
    state, _ = case(folder)
    found = []
    for pod in waiting(folder, state):
        where = str(folder / "pod.json") if pod.key not in state.pods else pod.key
        command = ["explain", "--snapshot", str(folder / "cluster.json"), where, "--exit-code", "-o", "json"]
        code = main(command)
        found.append((code, decisions(json.loads(capsys.readouterr().out))))
    return found


@pytest.mark.parametrize("folder", CASES[:: 1 if examples(100) == 100 else 6], ids=lambda folder: folder.name)
def test_every_decision_is_the_same_when_words_are_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_words = explained(folder, capsys)
    numbers = {word: f"#{number}" for number, word in enumerate(Word)}
    monkeypatch.setattr(Word, "template", property(lambda word: numbers[word]))
    for reason in Reason:
        monkeypatch.setattr(reason, "text", f"#{reason.value + 1000}")
    assert explained(folder, capsys) == in_words


def calls() -> list[tuple[str, set[str]]]:
    """The entries of the table that the modules name, and the values that they give."""
    found = []
    for file in EXPLAIN.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="Word"), attr=name), keywords=keywords):
                    found.append((name, {str(keyword.arg) for keyword in keywords}))
    return found


def test_every_sentence_gets_its_values() -> None:
    for name, given in calls():
        wanted = {field for _, field, _, _ in string.Formatter().parse(Word[name].template) if field}
        assert wanted <= given, name


def test_every_sentence_is_used() -> None:
    texts = "".join(file.read_text() for file in EXPLAIN.glob("*.py"))
    assert [word.name for word in Word if f"Word.{word.name}" not in texts] == []


OF_OTHERS = {
    ("k8s/manifest.py", "text.partition(' - at $')"),
    ("cli/arguments.py", "message.endswith('required: COMMAND')"),
    ("settings_file.py", "message.removeprefix('Value error, ')"),
    ("source/dry_run.py", "_HAS_SIDE_EFFECTS not in refused.message"),
    ("evictor/decision.py", "' node/' not in event.note"),
    ("plan/drain.py", "ONLY_WEAKER in why"),
}
"""Texts of libraries and of the API server, and two of Stowage's own that are left."""
READS = ("startswith", "endswith", "find", "index", "partition", "rpartition", "removeprefix")


def words_read(file: Path) -> list[str]:
    """Where a module looks for words, literal ones or those of a constant, in a text."""
    tree = ast.parse(file.read_text())
    constants = {name for module in (file, *imported(tree)) for name in constants_of(module)}

    def is_text(node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple):
            return any(map(is_text, node.elts))
        return is_words(node) or (isinstance(node, ast.Name) and node.id in constants)

    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()]) if is_text(left):
                found.append(ast.unparse(node))
            case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in READS and is_text(
                first
            ):
                found.append(ast.unparse(node))
    return found


def is_words(node: ast.expr) -> bool:
    """Several words, or one with a space that only a sentence has; not a separator."""
    text = node.value if isinstance(node, ast.Constant) else ""
    return isinstance(text, str) and " " in text and any(map(str.isalnum, text))


@cache
def constants_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and is_words(node.value)]
    return {name.id for node in assigned for name in node.targets if isinstance(name, ast.Name)}


def imported(tree: ast.Module) -> list[Path]:
    """The modules of Stowage from which this one imports names."""
    root = EXPLAIN.parents[1]
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    files = [root / f"{str(node.module).replace('.', '/')}.py" for node in froms]
    return [file for file in files if file.is_file()]


def test_no_module_reads_words() -> None:
    """Decisions read kinds, fields and names, never sentences."""
    files = sorted(EXPLAIN.parent.rglob("*.py"))
    found = {(str(file.relative_to(EXPLAIN.parent)), text) for file in files for text in words_read(file)}
    assert found == OF_OTHERS
