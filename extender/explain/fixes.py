"""Findings and fixes as data: what is true of a pod, and what changes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from extender.explain.answers import Refusal, Verdict
from extender.explain.words import Said, Word
from extender.k8s.objects import Node, Pod


@dataclass(frozen=True, slots=True)
class Change:
    """``pod``: with another template, which the members of its gang get, too; None for the same. ``nodes``:
    as they would be, by their names now. ``gone``: pods that leave. ``among``: the nodes that it concerns."""

    pod: Pod | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    gone: tuple[Pod, ...] = ()
    among: Collection[str] = ()


class Fix(NamedTuple):
    """A change, as a line to paste or a command. ``pod``: the pod after it, None if it changes something
    else; ``change``: after which the pod must fit, None if that is not promised, or was found by trying.
    ``then``: what it achieves; ``later``: it comes after the first fix of the list."""

    said: Said
    pod: Pod | None = None
    change: Change | None = None
    then: Said | None = None
    later: bool = False

    @property
    def text(self) -> str:
        line = f"{self.said}{self.then or ''}"
        return str(Word.NEXT(fix=line)) if self.later else line


class Rank(IntEnum):
    """How much a finding decides. The lowest decides why a pod fits nowhere; a ``NOTE`` never does. ``NODES``
    is what their evaluation says."""

    NEVER = 0
    WORD = 1
    RULE = 2
    NOTE = 3
    NODES = 4


class Finding(NamedTuple):
    """What is true of a pod: a clause, with ``more`` sentences on it, and its fixes, the cheapest first.
    ``refusal``: of the nearest node, where that decides."""

    said: Said
    rank: Rank = Rank.NOTE
    more: Said | None = None
    fixes: tuple[Fix, ...] = ()
    refusal: Refusal | None = None

    @property
    def text(self) -> str:
        if self.rank is Rank.NODES:
            return str(self.said)
        return f"{self.said}. {self.more}" if self.more else f"{self.said}."

    @property
    def lacks(self) -> str:
        """Missing resources on the nearest node."""
        near = self.refusal
        if near is None or not near.lacks:
            return ""
        return str(Word.NEAREST(node=near.nearest, needs="; ".join(need.text for need in near.lacks)))

    def verdict(self) -> Verdict:
        """As shown."""
        near, kind = self.refusal, self.said.word.name
        return Verdict(
            why=self.text,
            lacks=self.lacks,
            ways=tuple(fix.text for fix in self.fixes),
            nearest=near.nearest if near and near.lacks else "",
            kind=near.kind if near and self.said.word is Word.REFUSED else kind,
            fixes=tuple(fix.said.word.name for fix in self.fixes),
        )
