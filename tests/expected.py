"""Expectations that stand in files: samples on pages, and words in tables of cases.

After a text has changed, ``pytest --rewrite`` with the tests that fail writes what is said now into these
files, and the tests pass. Read the difference before you commit it: it is what users will read.
"""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

LIKE = 0.6
"""How like a passage must be to the words that it replaces, from 0 to 1."""
FEW = 3
"""Words that are fewer stand in too many places."""
OTHER_WORDS = 6
"""A passage has at most so many words more or less."""
rewriting = False
"""Set by the option ``--rewrite`` (conftest.py)."""


def check_text(file: Path, expected: str, actual: str) -> None:
    """The text is the expected one, which stands in the file."""
    if rewriting and actual != expected and expected in (page := file.read_text()):
        file.write_text(page.replace(expected, actual))
    else:
        assert actual == expected


def check_words(file: Path, words: str, text: str) -> None:
    """The text contains these words, which stand in the file between quotes, or as a value of YAML."""
    if rewriting and words not in text and len(words.split()) >= FEW and (near := nearest(words, text)):
        before = file.read_text()
        for form in (str, _escaped):
            whole = re.compile(rf"([\"']|[:-] ){re.escape(form(words))}([\"',}}]|$)", re.MULTILINE)
            after = whole.sub(partial(_between, form(near)), before)
            if after != before:
                file.write_text(after)
                return
    assert words in text, text


def _escaped(words: str) -> str:
    """As between double quotes."""
    return json.dumps(words, ensure_ascii=False)[1:-1]


def _between(words: str, around: re.Match[str]) -> str:
    return f"{around[1]}{words}{around[2]}"


def nearest(words: str, text: str) -> str | None:
    """The passage of whole words on one line that is most like these; None if none is like them."""
    count, best, found = len(words.split()), LIKE, None
    matcher = SequenceMatcher(b=words, autojunk=False)
    for line in text.splitlines():
        at = [match.span() for match in re.finditer(r"\S*[^\s.,:;]", line)]
        for first, (start, _) in enumerate(at):
            for _, end in at[max(first, first + count - 1 - OTHER_WORDS) : first + count + OTHER_WORDS]:
                matcher.set_seq1(line[start:end])
                if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
                    ratio = matcher.ratio()
                    if ratio > best:
                        best, found = ratio, line[start:end]
    return found
