"""The code blocks of all pages, and the commands in them.

A block without a language, or with ``sh``, holds commands: each line of the first is one, each block of the
second is one script. In ``console`` the lines after ``$ `` are commands and the rest is output. An indented
block holds commands, too. ``text`` is output or anything else that nobody types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = {"", "sh", "console", "text", "yaml", "json", "http", "promql"}
_FENCE = re.compile(r"^( *)```(\S*)\s*$")
_COMMENT = re.compile(r"\s{2,}# .*$|^# .*$")


@dataclass(frozen=True)
class Block:
    page: str
    """Relative to the project's directory."""
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    block: Block
    text: str
    """Without comments, on one line where the page continues it by a backslash."""

    def __str__(self) -> str:
        return f"{self.block}: {self.text.splitlines()[0]}"


def pages() -> list[Path]:
    ours = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    for folder in ("docs", "bench", "deploy", "scheduler-config", "tests/e2e"):
        ours += (ROOT / folder).rglob("*.md")
    return sorted(page for page in ours if "site" not in page.relative_to(ROOT).parts)


def blocks(page: Path) -> list[Block]:
    """Fenced and indented blocks. Raises ``ValueError`` if a fence is never closed."""
    name, found = str(page.relative_to(ROOT)), []
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        start = number
        if fence := _FENCE.match(lines[number]):
            end = next((n for n in range(start + 1, len(lines)) if lines[n].strip() == "```"), None)
            if end is None:
                raise ValueError(f"{name}:{start + 1}: the block has no end")
            body = [line[len(fence[1]) :] for line in lines[start + 1 : end]]
            found.append(Block(name, start + 1, fence[2], "\n".join(body) + "\n"))
            number = end
        elif lines[number].startswith("    ") and (not number or not lines[number - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            body = [line[4:] for line in lines[start:number]]
            found.append(Block(name, start + 1, "", "\n".join(body) + "\n"))
        number += 1
    return found


def commands(block: Block) -> list[Command]:
    if block.language == "sh":
        return [Command(block, block.text.strip())]
    if block.language not in ("", "console"):
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    said = [re.sub(r"(?<=\S)\s{2,}", " ", _COMMENT.sub("", line)).strip() for line in lines]
    return [Command(block, text) for text in said if text]


def all_commands() -> list[Command]:
    return [command for page in pages() for block in blocks(page) for command in commands(block)]
