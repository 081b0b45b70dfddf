"""Every command of README and docs/ is run here, by a test that is named, or against a real API server.

What needs a cloud, a container engine or hours is listed in classes.py and checked for syntax.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from extender.cli import main as cli
from tests.examples import some

from . import classes
from .collect import ROOT, Command, all_commands, pages
from .run import prepare, to_the_end, until
from .syntax import STOWAGE, BadCommandError, check, flags

COMMANDS = all_commands()
BY_TEST = {command: test for test, commands in classes.BY_TEST.items() for command in commands}
CLASSES = [classes.HERE, classes.UNTIL, BY_TEST, classes.IN_E2E, classes.NOT_RUN]
INLINE = re.compile(r"`((?:stowage|kubectl|helm|python -m|make|pytest|promtool|\.venv/bin/\w+) [^`\n]+)`")

COMMENTED = re.compile(r"^#  +((?:kubectl|helm|stowage) \S.*)$", re.MULTILINE)
SHIPPED = [
    file
    for folder in ("deploy", "scheduler-config")
    for file in sorted((ROOT / folder).rglob("*.yaml"))
    if COMMENTED.search(file.read_text())
]


def classified(command: Command) -> bool:
    if command.block.language == "sh":
        return command.block.page in classes.SCRIPTS
    known = [one for one in CLASSES if command.text in one]
    return len(known) + command.text.startswith(classes.BENCHMARKS) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_has_one_class(command: Command) -> None:
    assert classified(command), f"add it to tests/docs/classes.py:\n{command.text}"


def test_every_classified_command_is_on_a_page() -> None:
    said = {command.text for command in COMMANDS}
    assert [one for group in CLASSES for one in group if one not in said] == []


@pytest.mark.parametrize("test", [*classes.BY_TEST, *classes.SCRIPTS.values()])
def test_the_test_that_runs_it_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_has_no_mistake_in_its_syntax(command: Command) -> None:
    check(command.text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_a_sentence_have_no_mistake(page: Path) -> None:
    for command in sorted(set(INLINE.findall(page.read_text()))):
        check(command)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_in_comments_of_manifests_have_no_mistake(file: Path) -> None:
    for command in COMMENTED.findall(file.read_text()):
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        "kubectl apply -f deploy/nothing.yaml",
        "stowage plan drain --exmaple",
        "stowage explode pod.yaml",
        "kubectl aply -f pod.yaml",
        "kubectl get pods --namespaces x",
        "helm install stowage --unknown",
        "python -m bench.latency --nods 3",
        "python -m bench.nothing",
        "make everything",
        "pytest tests/nothing",
        "kubctl get pods",
        "echo 'open",
        "kubectl stowage top --wide",
    ],
)
def test_mistakes_are_found(command: str) -> None:
    with pytest.raises(BadCommandError):
        check(command)


def test_the_usage_beside_the_list_of_pages_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Every subcommand, and no flag that its help does not have."""
    (usage,) = re.findall(r"```text\n(stowage serve.*?)```", (ROOT / "docs/README.md").read_text(), re.DOTALL)
    shown = {line.split()[1]: line for line in usage.replace("\n     ", " ").splitlines()}
    assert shown.keys() == STOWAGE
    for name, line in shown.items():
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert set(flags(re.sub(r"[][|]", " ", line.partition("#")[0]).split())) <= set(
            re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", capsys.readouterr().out)
        )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    prepare(made)
    return made


@pytest.mark.parametrize("command", some(classes.HERE, 7))
def test_it_succeeds(directory: Path, command: str) -> None:
    before = Counter(path.name for path in directory.iterdir())
    printed = to_the_end(command, directory)
    after = Counter(path.name for path in directory.iterdir())
    assert printed or after - before


@pytest.mark.parametrize(("command", "said"), some(classes.UNTIL.items(), 1))
def test_it_runs_until_it_is_told_to_stop(directory: Path, command: str, said: str) -> None:
    if "train.py" in command:
        to_the_end(classes.HERE[0], directory)  # what it resumes
    assert until(command, said, directory) in (0, 143)
