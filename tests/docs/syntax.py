"""Whether a command could run: the shell reads it, and its program knows the verb and every flag.

The verbs and flags of kubectl and helm are those that the pages use; ``tests/e2e/test_docs.py`` compares them
with the real programs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn
from unittest import mock

from extender.cli import main as cli

from .collect import ROOT

KUBECTL = {
    "annotate": "--overwrite",
    "api-resources": "--api-group",
    "apply": "--filename -f --kustomize -k --server-side",
    "cordon": "",
    "create": "--from-file --namespace -n --filename -f --clusterrole --role --serviceaccount --group "
    "--audience",
    "delete": "--filename -f --kustomize --namespace -n -l --selector --wait --ignore-not-found",
    "describe": "--namespace -n",
    "exec": "--namespace -n --container -c",
    "drain": "--ignore-daemonsets --delete-emptydir-data",
    "get": "--namespace -n -A --output -o --field-selector --selector -l --label-columns -L --watch -w",
    "krew": "--manifest",
    "label": "--overwrite --namespace -n --selector -l --all",
    "logs": "--follow -f --namespace -n --container -c --selector -l",
    "patch": "--namespace -n --type --patch -p --patch-file",
    "port-forward": "--namespace -n",
    "proxy": "",
    "rollout": "--namespace -n --timeout",
    "scale": "--replicas --namespace -n",
    "set": "--namespace -n",
    "taint": "--selector -l",
    "uncordon": "",
    "version": "",
    "wait": "--for --timeout --namespace -n",
}
HELM = {
    "get": "--namespace -n",
    "history": "--namespace -n",
    "install": "--namespace -n --create-namespace --set --values -f --wait",
    "list": "--namespace -n",
    "repo": "",
    "rollback": "--namespace -n",
    "template": "--namespace -n --set --values -f",
    "uninstall": "--namespace -n",
    "upgrade": "--namespace -n --install --create-namespace --reset-then-reuse-values --set --values -f",
}
KUBECTL_GLOBAL = {"--namespace", "-n", "--kubeconfig", "--context"}
OTHER_PROGRAMS = {"cat", "cosign", "curl", "docker", "git", "go", "mkdir", "openssl", "pipx", "promtool"}
OTHER_PROGRAMS |= {"python3", "sed", "tar", "uv", "uvx"}
"""Programs whose arguments nobody checks here."""
STOWAGE = {"audit", "completion", "demo", "explain", "plan", "replay", "serve", "settings", "top", "version"}
_OURS = re.compile(r"(?<![\w/.:-])((?:deploy|docs|scheduler-config|tests)/[\w./-]*\w)")
_SHELL = re.compile(r"[|;&<$(`]")


class BadCommandError(Exception):
    """Why the command cannot be meant as it stands."""


class _Parsed(BaseException):
    """The arguments were accepted; the program does not go on."""


def check(command: str) -> None:
    """Raises ``BadCommandError``. Files of the repository that the command names must exist."""
    for file in _OURS.findall(command):
        if not (ROOT / file).exists():
            raise BadCommandError(f"there is no {file}")
    if re.search(r"[^\w ./:=@,+%-]", command):  # more than words
        read = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        if read.returncode or read.stderr:
            raise BadCommandError(read.stderr)
    if "\n" in command:
        return
    plain = re.sub(r"^(?:[A-Z_0-9]+=\S+ )+|\s+>{1,2}\s*\S+$", "", command)
    words = _expanded(plain) if not _SHELL.search(re.sub(r"'[^']*'", "", plain)) else [plain.split()[0]]
    program = words[0].removeprefix(".venv/bin/")
    if len(words) > 1 and program in _CHECKS:
        _CHECKS[program](words[1:])
    elif program not in {*_CHECKS, *OTHER_PROGRAMS}:
        raise BadCommandError(f"nobody knows the program {program}")


def _expanded(command: str) -> list[str]:
    """The words, with braces expanded as bash does."""
    if "{" not in command:
        return shlex.split(command)
    done = subprocess.run(
        ["bash", "-fc", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def flags(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]


def _with_verbs(program: str, verbs: dict[str, str], words: Sequence[str]) -> None:
    rest = list(words)
    while rest and rest[0] in KUBECTL_GLOBAL:
        rest = rest[2:]
    if not rest or rest[0] not in verbs:
        raise BadCommandError(f"{program} has no verb {rest[:1]} (tests/docs/syntax.py)")
    ours = rest[: rest.index("--")] if "--" in rest else rest
    unknown = set(flags(ours[1:])) - set(verbs[rest[0]].split()) - KUBECTL_GLOBAL
    if unknown:
        raise BadCommandError(f"{program} {rest[0]} has no {sorted(unknown)} (tests/docs/syntax.py)")


def _kubectl(words: Sequence[str]) -> None:
    if words[0] == "stowage":
        return _stowage(words[1:])
    return _with_verbs("kubectl", KUBECTL, words)


def _helm(words: Sequence[str]) -> None:
    _with_verbs("helm", HELM, words)


def _accepts(run: Callable[[], object]) -> None:
    """Runs a program until it has read its arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *given: Any, **named: Any) -> NoReturn:
        parse(self, *given, **named)
        raise _Parsed

    def refuse(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise BadCommandError(message)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_and_stop),
        mock.patch.object(argparse.ArgumentParser, "error", refuse),
    ):
        try:
            run()
        except _Parsed:
            return
    raise BadCommandError("the program has read no arguments")


def _stowage(words: Sequence[str]) -> None:
    if len(words) > 1:
        _accepts(lambda: cli.main([word for word in words if word != "--help"]))
    elif words and words[0] not in {"...", *STOWAGE}:
        raise BadCommandError(f"there is no stowage {words[0]}")


def _python(words: Sequence[str]) -> None:
    if words[0] != "-m":
        raise BadCommandError("python without -m")
    name, arguments = words[1], list(words[2:])
    spec = find_spec(name)
    if spec is None:
        raise BadCommandError(f"there is no module {name}")
    if not name.startswith("bench.") or not arguments:
        return
    module = import_module(f"{name}.__main__" if spec.submodule_search_locations else name)
    with mock.patch.object(sys, "argv", [name, *arguments]):
        _accepts(module.main)


def _make(words: Sequence[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = [word for word in words if "=" not in word]  # a variable
    if not set(words) <= targets:
        raise BadCommandError(f"the Makefile has no {sorted(set(words) - targets)}")


def _pytest(words: Sequence[str]) -> None:
    for word in words:
        if "/" in word and not (ROOT / word).exists():
            raise BadCommandError(f"there is no {word}")


_CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "helm": _helm,
    "kubectl": _kubectl,
    "make": _make,
    "pytest": _pytest,
    "python": _python,
    "stowage": _stowage,
}
