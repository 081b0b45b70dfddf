"""``stowage completion``: a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
    Commands = dict[str, argparse.ArgumentParser]

_BASH = """_stowage() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} offered command=
  [ "$COMP_CWORD" -gt 1 ] && command=${{COMP_WORDS[1]}}
  case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$offered" -- "$cur"))
}}
complete -o default -F _stowage stowage kubectl-stowage"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``completion`` to the command line."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script that completes the command line. In ~/.bashrc or ~/.zshrc: "
        "source <(stowage completion bash), or zsh. In fish: stowage completion fish | source.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from extender.cli.arguments import parsers

    commands = parsers()
    cases = "\n".join(f"    {pattern}) offered={words!r} ;;" for pattern, words in _cases(commands))
    bash = _BASH.format(cases=cases)
    print({"bash": bash, "zsh": _ZSH + bash, "fish": "\n".join(_fish(commands))}[args.shell])
    return 0


def _cases(commands: Commands) -> Iterator[tuple[str, str]]:
    """Patterns of the command and the word before, the first that matches counts, with the words that may
    follow."""
    for name, parser in commands.items():
        before: dict[str, list[str]] = {}
        for action in _options(parser):
            if action.nargs != 0:
                words = before.setdefault(" ".join(map(str, action.choices or ())), [])
                words += (f"'{name} {option}'" for option in action.option_strings)
        yield from (("|".join(patterns), values) for values, patterns in before.items())
        options = [action.option_strings[-1] for action in _options(parser)]
        yield f"'{name} '*", " ".join([*_positional(parser), *options])
    yield "*", " ".join(commands)


def _fish(commands: Commands) -> Iterator[str]:
    for name, parser in commands.items():
        about = (parser.description or "").partition(".")[0]
        yield f"complete -c stowage -f -n __fish_use_subcommand -a {name} -d {_quoted(about)}"
        of_command = f"complete -c stowage -n '__fish_seen_subcommand_from {name}'"
        if words := _positional(parser):
            yield f"{of_command} -f -a '{' '.join(words)}'"
        for action in _options(parser):
            names = " ".join(
                f"{'-l' if name[:2] == '--' else '-s'} {name.lstrip('-')}" for name in action.option_strings
            )
            is_file = action.type is Path or action.metavar == "FILE"
            value = "" if action.nargs == 0 else " -r" if is_file else " -x"
            value += f" -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            yield f"{of_command} {names}{value} -d {_quoted((action.help or '') % vars(action))}"


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def _positional(parser: argparse.ArgumentParser) -> list[str]:
    named = [action for action in parser._actions if not action.option_strings]
    return [str(choice) for action in named for choice in action.choices or ()]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
