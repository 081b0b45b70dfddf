"""Links of the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from .collect import ROOT, pages

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    said = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return frozenset(re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in said)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target}#{anchor}"


def test_every_page_is_in_the_list_of_pages() -> None:
    named = set(re.findall(r"^- \[.+\]\((.+)\)$", (ROOT / "docs/README.md").read_text(), re.MULTILINE))
    ours = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert ours <= named
