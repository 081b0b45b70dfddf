"""docs/versions.md has a row for each dialect and each API of another project.

The comparison names the same versions.
"""

from __future__ import annotations

import re
from datetime import date

from extender.dialects.pod_request import DIALECTS
from extender.source.watched_kinds import WATCHED_KINDS

from .collect import ROOT

_TABLE = (ROOT / "docs/versions.md").read_text().partition("|---|")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in _TABLE.splitlines()[1:]]
_CORE = {"batch", "node.k8s.io", "policy", "storage.k8s.io"}
"""API groups of Kubernetes that have been stable for years."""
_LINK = re.compile(r"\]\((https://github\.com/[^)]+)\)")
_COMPARED = re.compile(r"\]\((https://github\.com/[^)]+)\) v?([0-9][\w.-]*[\w])")


def test_every_dialect_and_every_api_of_another_project_has_a_row() -> None:
    covered = {name for row in ROWS for name in re.findall("`([^`]+)`", row[4])}
    dialects = {dialect.name.lower().replace("-", "_") for dialect in DIALECTS} - {"stowage"}
    paths = (kind.path.split("/") for kind in WATCHED_KINDS.values())
    groups = {path[2] for path in paths if path[1] == "apis"} - _CORE
    assert (dialects | groups) - covered == set()


def test_a_row_links_its_project_and_says_what_was_read_and_when() -> None:
    for row in ROWS:
        assert len(row) == 5
        assert _LINK.search(row[0])
        assert re.search("[0-9]", row[1] + row[2]), row
        assert date.fromisoformat(row[3]) <= date.today()
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_the_comparison_names_the_newest_versions_that_were_read() -> None:
    introduction = " ".join((ROOT / "docs/comparison.md").read_text().partition("## ")[0].split())
    compared = dict(_COMPARED.findall(introduction))
    assert len(compared) == 5
    for row in ROWS:
        for link in _LINK.findall(row[0]):
            if link in compared:
                newest = row[2] if row[2] != "-" else row[1]
                assert compared.pop(link) == newest.removeprefix("after ").split()[0]
    assert not compared
