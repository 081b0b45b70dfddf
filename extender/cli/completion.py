"""``stowage completion``: scripts for shell completion of commands, options and their values.

They call ``stowage completion words`` for the words that can follow a line, and fall back to files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_BASH = """_stowage() {
  local offered=$(stowage completion words "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}")
  COMPREPLY=($(compgen -W "$offered" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _stowage stowage kubectl-stowage"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n" + _BASH,
    "fish": """function __stowage
  set -l offered (stowage completion words (commandline -opc)[2..] | string match -- (commandline -ct)'*')
  and printf '%s\\n' $offered
  or __fish_complete_path (commandline -ct)
end
complete -c stowage -f -a '(__stowage)'""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "Print a script for a shell. In ~/.bashrc or ~/.zshrc: source <(stowage completion bash), or zsh. "
    text += "In config.fish: stowage completion fish | source."
    parser.usage, parser.description = "%(prog)s bash|zsh|fish", text
    parser.add_argument("shell", choices=(*_SCRIPTS, "words"), metavar="SHELL", help=", ".join(_SCRIPTS))
    parser.add_argument("line", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False


def run(args: argparse.Namespace) -> int:
    print(_SCRIPTS.get(args.shell) or "\n".join(_offered(args.line)))
    return 0


def complete() -> int:
    """The program ``kubectl_complete-stowage``, which kubectl runs with the words after ``kubectl stowage``,
    the last one incomplete. It prints the words that fit and a directive of cobra: 4, no files, or 0
    (ShellCompDirective in github.com/spf13/cobra; kubectl's plugin_completion.go)."""
    *line, word = sys.argv[1:] or [""]
    words = [offered for offered in _offered(line) if offered.startswith(word)]
    print(*words, ":4" if words else ":0", sep="\n")
    return 0


def _offered(line: Sequence[str]) -> Sequence[str]:
    """Words that can follow these words: values of an option, or values and options of a command."""
    from extender.cli.arguments import commands

    known = commands(line[0] if line else "")
    if not line or line[0] not in known:
        return [] if line else [*known]
    parser = known[line[0]]
    before = parser._option_string_actions.get(line[-1])
    if before and before.nargs != 0:
        return [*map(str, before.choices or ())]
    values = [str(value) for action in parser._get_positional_actions() for value in action.choices or ()]
    return values + [name for name in parser._option_string_actions if name.startswith("--")]
