"""What a shell offers once it has read the script of ``stowage completion``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from extender.cli import completion
from extender.cli import main as cli
from tests.examples import some

CASES = [
    ("stowage e", {"explain"}),
    ("stowage top --so", {"--sort", "--sort-by"}),
    ("stowage top -o ", {"table", "wide", "json", "yaml", "csv", "name"}),
    ("stowage top --output js", {"json"}),
    ("stowage plan dr", {"drain"}),
    ("stowage replay -o cs", {"csv"}),
    ("stowage completion f", {"fish"}),
    ("stowage settings --ou", {"--output"}),
    ("stowage explain po", {"pod.yaml"}),
    ("stowage explain -f po", {"pod.yaml"}),
]
BASH = """
{script}
COMP_WORDS=({line}{empty}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_stowage
[ ${{#COMPREPLY[@]}} = 0 ] && COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")) # -o default
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def said(command: list[str], text: str, directory: Path) -> set[str]:
    (directory / "pod.yaml").touch()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, text],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=directory,
        env=environment,
    )
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("line", "words"), some(CASES))
def test_bash(line: str, words: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = BASH.format(script=script("bash", capsys), line=line, empty=" ''" * line.endswith(" "))
    assert said(["bash", "--norc", "-c"], text, tmp_path) == words


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize(("line", "words"), some(CASES))
def test_fish(line: str, words: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = f"{script('fish', capsys)}\ncomplete -C '{line}'"
    assert said(["fish", "--no-config", "-c"], text, tmp_path) == words


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The function, called as zsh's bashcompinit calls it, and what it has been told."""
    text = f"""{script("zsh", capsys)}
compgen() {{ print -r -- "$2" >&2 }}
COMP_WORDS=(stowage top -o '') COMP_CWORD=3
emulate sh -c _stowage 2>&1
print $_comps[stowage]"""
    words = {"table", "wide", "json", "yaml", "csv", "name", "_bash_complete -o default -F _stowage"}
    assert said(["zsh", "-f", "-c"], text, tmp_path) == words


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["top", "-o", ""], [*CASES[2][1], ":4"]),
        (["to"], ["top", ":4"]),
        (["top", "--so"], ["--sort", "--sort-by", ":4"]),
        (["explain", "po"], [":0"]),
        ([], ["top", "explain", ":4"]),
    ],
)
def test_kubectl(words, offered, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-stowage", *words])
    assert completion.complete() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == offered[-1]
    assert {*offered} <= {*said}
    assert all(word.startswith(words[-1] if words else "") for word in said[:-1])
