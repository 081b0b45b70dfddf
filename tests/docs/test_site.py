"""The site is built without a warning, shows what the pages say, and fetches nothing from other hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .collect import ROOT

# `make site` builds it in every run of CI, where a dead link ends the build.
pytestmark = pytest.mark.nightly

BUILD = [sys.executable, "docs/site/build.py", "--out"]
FETCHED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
NO_TEXT = {"pre", "code", "script", "style", "svg", "h2", "h3", "strong"}


class Page(HTMLParser):
    """What a page fetches, where its links lead, and the text of its article without code and headings."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.images = 0
        self.text = ""
        self._inside: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag in FETCHED and found.get("rel") != "canonical":
            self.fetched.append(found.get(FETCHED[tag]) or "")
        if tag in {"article", *NO_TEXT}:
            self._inside.append(tag)
        self.images += tag == "img"

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside == ["article"]:
            self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    out = tmp_path_factory.mktemp("site")
    (out / "0.0.9").mkdir()
    (out / "0.0.9/index.html").write_text("<p>An older version.</p>")
    done = subprocess.run([*BUILD, str(out)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "versions.json").read_text())[1]["version"] == "0.0.9"
    (newest,) = re.findall("url=(.*)/", (out / "index.html").read_text())
    return {str(file.relative_to(out / newest)): Page(file) for file in (out / newest).rglob("*.html")}


def test_every_page_is_there(site: dict[str, Page]) -> None:
    names = {f"docs/{page.stem}/index.html" for page in (ROOT / "docs").glob("[!R]*.md")}
    assert {"index.html", "docs/index.html", "bench/index.html", *names} <= site.keys()
    assert len(site["index.html"].text) > 3000
    assert site["index.html"].images >= 1


def test_no_page_fetches_from_another_host(site: dict[str, Page]) -> None:
    assert sum(len(page.fetched) for page in site.values()) > len(site)
    away = [(name, url) for name, page in site.items() for url in page.fetched if re.match(r"(\w+:)?//", url)]
    assert away == []


@pytest.mark.parametrize("marks", ["```", r"\n\|.*\|", r"\]\(", r"\n1\. \S", r"\*\*\w"])
def test_no_markdown_is_left_in_the_text(site: dict[str, Page], marks: str) -> None:
    """The site's Markdown is stricter than GitHub's: a list needs an empty line before it, for example."""
    left = {name: found[0] for name, page in site.items() if (found := re.search(marks, page.text))}
    assert left == {}


def test_a_dead_link_fails(tmp_path: Path) -> None:
    """The check above is real: the same build, with a page that leads nowhere."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text(
            "# A page\n\n[away](docs/here.md#nowhere)\n" * (name == "README.md") + "text\n"
        )
    (tmp_path / "docs" / "site").mkdir(parents=True)
    for name in ("here.md", "README.md"):
        (tmp_path / "docs" / name).write_text("# Here\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nversion = '1.0.0'\n")
    for name in ("build.py", "mkdocs.yml"):
        (tmp_path / "docs" / "site" / name).write_text((ROOT / "docs" / "site" / name).read_text())
    done = subprocess.run([*BUILD, "out"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "#nowhere" in done.stderr
