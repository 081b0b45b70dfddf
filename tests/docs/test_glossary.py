"""Pages and texts at run time use the words of the glossary in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


def test_pages_use_the_words_of_the_glossary() -> None:
    assert [(page, word) for page in pages() for word in FOUND.findall(prose(page))] == []


def test_programs_say_the_words_of_the_glossary() -> None:
    said = ((file, text) for file in PROGRAMS for text in strings(file) if " " in text)
    assert [(file, text) for file, text in said if FOUND.search(text)] == []


def test_docstrings_and_comments_have_the_american_spelling() -> None:
    texts = ((file, "\n".join(_PROSE.findall(_IN_CODE.sub("", file.read_text())))) for file in PROGRAMS)
    assert [(file, word) for file, text in texts for word in BRITISH.findall(text)] == []


def shown(file: Path) -> list[str]:
    """The texts of a file of the web page."""
    text = _COMMENT.sub("", file.read_text())
    texts = [_PLACE.sub("", "".join(found)) for found in _LITERAL.findall(text)]
    return [one for one in texts if " " in one.strip()] if file.suffix == ".js" else [_PLACE.sub("", text)]


def test_the_web_page_uses_the_words_of_the_glossary() -> None:
    assert [(file.name, text) for file in WEB for text in shown(file) if FOUND.search(text)] == []


def test_an_avoided_word_is_found(tmp_path: Path) -> None:
    assert len(AVOIDED) > 20
    (tmp_path / "page.md").write_text("It sets `what waits` aside.\n\nThe waiting\npods are tried again.\n")
    assert FOUND.findall(prose(tmp_path / "page.md")) == ["waiting pods", "tried again"]
    (tmp_path / "text.py").write_text('"""What waits."""\nTEXT = f"{1} waiting pods"\n')
    assert [*strings(tmp_path / "text.py")] == [" waiting pods"]
