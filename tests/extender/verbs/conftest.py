from __future__ import annotations

import pytest

from extender.verbs import bind


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """bind waits for a short time only, though longer than a busy machine needs for the rest."""
    monkeypatch.setattr(bind, "LONGEST_WAIT", 0.4)
