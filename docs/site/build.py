"""Builds the site from README, docs/ and the pages beside them: ``make site``.

The pages are the files of the repository in the same tree, so links between them work in both places. Files
that they link to are copied beside them, and a linked directory becomes a list of its files. Every warning is
an error. The site of each version has a directory, and its pages a menu of all versions whose directories are
there.
"""

from __future__ import annotations

import argparse
import json
import logging
import posixpath
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("mkdocs.yml")
_LINK = re.compile(r"(\]\(([^)#\s]+)(?:#[^)]*)?\))")
_ROW = re.compile(r"^(?:\*\*(?P<group>.+)\*\*|- \[(?P<question>.+)\]\((?P<page>[^)#]+)\))$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page of the repository that is for readers, README first."""
    found = [
        ROOT / "README.md",
        *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ]
    for folder in ("docs", "bench", "deploy", "scheduler-config", "tests/e2e"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def stage(directory: Path) -> None:
    """Copies the pages and what they link to. Raises ``ValueError`` if a link leads nowhere."""
    for page in pages():
        text = page.read_text()
        for link, target in set(_LINK.findall(text)):
            if "://" in target:
                continue
            linked = (page.parent / target).resolve()
            if not linked.exists():
                raise ValueError(f"{page.relative_to(ROOT)}: {target} does not exist")
            if linked.is_dir():
                text = text.replace(link, f"]({target.rstrip('/')}/{_page_of(linked, directory)})")
            elif linked.suffix != ".md":
                _copy(linked, directory)
        _copy(page, directory).write_text(text)


def _copy(file: Path, directory: Path) -> Path:
    copied = directory / file.relative_to(ROOT)
    copied.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, copied))


def _page_of(linked: Path, directory: Path) -> str:
    """The name of a directory's page. Where it has none, makes one that lists its files."""
    if (linked / "README.md").exists():
        return "README.md"
    name = linked.relative_to(ROOT)
    files = sorted(file for file in linked.iterdir() if file.is_file())
    for file in files:
        _copy(file, directory)
    lines = [f"# {name}", "", *(f"- [{file.name}]({file.name})" for file in files)]
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / "index.md").write_text("\n".join(lines) + "\n")
    return "index.md"


def navigation(index: Path) -> list[dict[str, object]]:
    """The list of pages in docs/README.md: its groups, and the pages of each in their order."""
    groups: list[dict[str, object]] = [{"Stowage": "README.md"}, {"All pages": "docs/README.md"}]
    found: list[dict[str, str]] = []
    for row in _ROW.finditer(index.read_text()):
        if row["group"]:
            found = []
            groups.append({row["group"]: found})
        elif row["page"].endswith(".md"):
            found.append({row["question"]: posixpath.normpath(f"docs/{row['page']}")})
    return groups


def list_versions(out: Path) -> None:
    """Writes what the menu shows, the newest first, and a page that leads to the newest."""
    found = [page.parent.name for page in out.glob("*/index.html")]
    found.sort(key=lambda name: [int(number) for number in name.split(".")], reverse=True)
    (out / "versions.json").write_text(
        json.dumps([{"version": name, "title": name, "aliases": []} for name in found])
    )
    (out / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={found[0]}/">'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--out", type=Path, default=ROOT / ".cache" / "site", help="where the site goes (.cache/site)"
    )
    args = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    site = args.out.resolve() / version
    logging.basicConfig(level=logging.WARNING, format="site: %(message)s")
    with tempfile.TemporaryDirectory() as directory:
        try:
            stage(Path(directory))
            nav = navigation(ROOT / "docs" / "README.md")
            build(load_config(str(CONFIG), docs_dir=directory, site_dir=str(site), nav=nav, strict=True))
            list_versions(site.parent)
        except (Abort, ValueError) as error:
            print(f"site: {error}", file=sys.stderr)
            return 1
    print(f"The site is in {args.out}: python3 -m http.server --directory {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
