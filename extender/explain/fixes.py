"""Findings and fixes as data: what is true of a pod, and what changes it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from extender.explain.words import Said, Word
from extender.k8s.objects import Pod


class Fix(NamedTuple):
    """A change, as a line to paste or a command. ``pod``: the pod after it, None if it changes something
    else. ``then``: what it achieves; ``later``: it comes after the first fix of the list."""

    said: Said
    pod: Pod | None = None
    then: Said | None = None
    later: bool = False

    @property
    def text(self) -> str:
        line = f"{self.said}{self.then or ''}"
        return str(Word.NEXT(fix=line)) if self.later else line


class Rank(IntEnum):
    """How much a finding decides. The lowest decides why a pod fits nowhere; a ``NOTE`` never does."""

    NEVER = 0
    WORD = 1
    RULE = 2
    NOTE = 3


class Finding(NamedTuple):
    """What is true of a pod on every node: a clause, with ``more`` sentences on it, and its correction, if
    known."""

    said: Said
    rank: Rank = Rank.NOTE
    more: Said | None = None
    fix: Fix | None = None

    @property
    def text(self) -> str:
        return f"{self.said}. {self.more}" if self.more else f"{self.said}."
