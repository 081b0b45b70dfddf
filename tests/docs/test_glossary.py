"""Pages and texts at run time use the words of the glossary in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .collect import ROOT, pages

_ROW = re.compile(r"^\| .+ \| (.+) \|$", re.MULTILINE)
_GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text().partition("### Glossary")[2].partition("\n## ")[0]
AVOIDED = [word for row in _ROW.findall(_GLOSSARY)[1:] for word in row.split(", ")]
FOUND = re.compile(rf"\b({'|'.join(map(re.escape, AVOIDED))})\b", re.IGNORECASE)
BRITISH = re.compile(rf"\b({'|'.join(AVOIDED[-9:])})s?\b")
_PROSE = re.compile(r'(?s:""".*?""")|# .*$', re.MULTILINE)
_IN_CODE = re.compile(r"`[^`]+`|[\w/.-]*/[\w/.-]+")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`|\]\([^)]+\)|^    .*$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r'"([^"\n]*)"|`([^`]*)`')
_PLACE = re.compile(r"\$\{[^}]*\}|<[^>]*>")
_COMMENT = re.compile(r"/\*.*?\*/|^ *//.*$|  //.*$", re.MULTILINE | re.DOTALL)

PROGRAMS = [file for folder in ("extender", "packing") for file in (ROOT / folder).rglob("*.py")]
WEB = [*(ROOT / "extender/data/page").glob("*.js"), ROOT / "extender/data/page/index.html"]


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text()).replace(_CODE.sub("", _GLOSSARY), "").replace("\n", " ")


def strings(file: Path) -> Iterator[str]:
    """Its texts of several words, without docstrings and other bare expressions."""
    tree = ast.parse(file.read_text())
    bare = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in bare:
            yield one.value


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    assert FOUND.findall(prose(page)) == []


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_program_says_the_words_of_the_glossary(file: Path) -> None:
    assert [text for text in strings(file) if " " in text and FOUND.search(text)] == []


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(ROOT)))
def test_docstrings_and_comments_have_the_american_spelling(file: Path) -> None:
    text = "\n".join(_PROSE.findall(_IN_CODE.sub("", file.read_text())))
    assert BRITISH.findall(text) == []


@pytest.mark.parametrize("file", WEB, ids=lambda file: file.name)
def test_the_web_page_uses_the_words_of_the_glossary(file: Path) -> None:
    text = _COMMENT.sub("", file.read_text())
    texts = [_PLACE.sub("", "".join(found)) for found in _LITERAL.findall(text)]
    shown = [one for one in texts if " " in one.strip()] if file.suffix == ".js" else [_PLACE.sub("", text)]
    assert [one for one in shown if FOUND.search(one)] == []


def test_an_avoided_word_is_found(tmp_path: Path) -> None:
    assert len(AVOIDED) > 20
    (tmp_path / "page.md").write_text("It sets `what waits` aside.\n\nThe waiting\npods are tried again.\n")
    assert FOUND.findall(prose(tmp_path / "page.md")) == ["waiting pods", "tried again"]
    (tmp_path / "text.py").write_text('"""What waits."""\nTEXT = f"{1} waiting pods"\n')
    assert [*strings(tmp_path / "text.py")] == [" waiting pods"]
