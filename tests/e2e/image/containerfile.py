"""Reads a Containerfile: the instructions that ours uses, and no others."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """An instruction and its arguments as text, such as ``RUN`` and ``apt-get update``."""

    instruction: str
    text: str


@dataclass(slots=True)
class Stage:
    """What one ``FROM`` begins. ``base`` is the image that it names; ``name`` is empty without ``AS``."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """All variables that ``ENV`` sets."""
        pairs = (pair for step in self.steps if step.instruction == "ENV" for pair in shlex.split(step.text))
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def user(self) -> str:
        return next(step.text for step in reversed(self.steps) if step.instruction == "USER")


def read(file: Path) -> list[Stage]:
    """The stages, in their order. Raises ValueError for an instruction that nobody here can execute."""
    stages: list[Stage] = []
    for line in file.read_text().splitlines():
        instruction, _, text = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if instruction == "FROM":
            base, _, name = text.partition(" AS ")
            stages.append(Stage(base, name))
        elif instruction in {"RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}:
            stages[-1].steps.append(Step(instruction, text))
        else:
            raise ValueError(f"{file}: {instruction} is not known here")
    return stages
