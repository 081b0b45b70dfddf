"""The pages say what is there: settings, reasons, limits. tests/docs has links and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extender.explain.words import ADVICE
from extender.settings import Settings
from extender.untrusted import limits
from packing.model.reasons import Reason

ROOT = Path(__file__).parents[1]


def test_every_setting_is_explained_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    assert list(rows) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if field.default is not None and field.default_factory is None:
            shown = (
                str(field.default).lower()
                if isinstance(field.default, bool)
                else f"{field.default:g}"
                if isinstance(field.default, float)
                else str(field.default)
            )
            assert rows[name] == f"`{shown}`"


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.FITS])
def test_every_reason_is_explained_with_the_advice_of_explain(reason):
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs/pending.md").read_text(), re.MULTILINE)
    advice = {
        text: re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", help)
        for texts, help in rows
        for text in texts.split(" / ")
    }
    assert advice[reason.text].replace("`", "") == ADVICE[reason]


def test_every_limit_is_in_the_table_with_its_value():
    rows = [row for row in (ROOT / "docs/security.md").read_text().splitlines() if row.startswith("| ")]
    shown = dict(re.findall(r"`([A-Z_]+)` (\d+)", "\n".join(rows)))
    assert shown == {name: str(value) for name, value in vars(limits).items() if type(value) is int}


def test_every_limit_is_exhausted_by_a_test():
    """Each row of the tables of limits ends with the names of the tests that exhaust it."""
    page = (ROOT / "docs/security.md").read_text().partition("## Limits\n")[2]
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| of |")]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    exist = set(re.findall(r"def (test_\w+)\(", sources))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert named, row
        assert set(named) <= exist, set(named) - exist
