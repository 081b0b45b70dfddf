"""Finds the running Stowage, so that a command answers with what that one has learnt and decided.

Arguments that name what to read instead (``--snapshot``, ``--example``, ``--config``, ``--local``) leave it
out. If it cannot be asked, the command reads the cluster itself, and says so in one line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from extender.cli import source_args
from extender.untrusted.limits import DEBUG_TOKEN

if TYPE_CHECKING:
    from extender.source.stowage_service import StowageService

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``, ``--local``, ``--stowage-namespace`` and ``--token-file``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--url", help="ask the Stowage that serves /debug at this URL")
    which.add_argument("--local", action="store_true", help="read the cluster, and ask no running Stowage")
    text = "where to look for the running Stowage (stowage-system, then all namespaces)"
    which.add_argument("--stowage-namespace", metavar="NAMESPACE", help=text)
    text = "a file with the token that the running Stowage wants"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=text)


def ask(args: argparse.Namespace, command: str, question: Callable[[StowageService], T]) -> T | None:
    """The answer of the running Stowage; None if the command is to read the cluster itself.

    Raises ``ValueError`` if Stowage refuses the question, or does not answer at ``--url``.
    """
    if args.local or args.snapshot or args.example or (args.config and not args.url):
        return None
    from extender.source.stowage_service import NotAsked

    try:
        service = _service(args)
        if service is None:
            return None
        answer = question(service)
    except NotAsked as reason:
        if args.url:
            raise ValueError(str(reason)) from None
        print(f"stowage {command}: reads the cluster itself, because {reason}", file=sys.stderr)
        return None
    print(f"stowage {command}: answered by {service.name}", file=sys.stderr)
    return answer


def _service(args: argparse.Namespace) -> StowageService | None:
    """The running Stowage; None without a cluster. Raises ``NotAsked``."""
    from extender.source.stowage_service import at_url, behind_service

    token = _token(args.token_file) if args.token_file else ""
    if args.url:
        return at_url(args.url, token)
    rest = source_args.rest_of(args)
    return behind_service(rest, args.stowage_namespace, token) if rest else None


def _token(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        token = file.read(DEBUG_TOKEN + 1).strip()
    if not token or len(token) > DEBUG_TOKEN or not token.isprintable():
        raise ValueError(f"{path}: has no token")
    return token
