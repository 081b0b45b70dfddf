"""Answers about gangs, valid until the state changes: every member of a gang asks the same question."""

from __future__ import annotations

from collections.abc import Hashable


class GangAnswers:
    """Answers by question, all for one version of the state."""

    def __init__(self) -> None:
        self._version: Hashable = None
        self._answers: dict[Hashable, bool] = {}

    def get(self, question: Hashable, version: Hashable) -> bool | None:
        """The answer for this version of the state, None if there is none yet."""
        return self._answers.get(question) if version == self._version else None

    def put(self, question: Hashable, version: Hashable, answer: bool) -> None:
        if version != self._version:
            self._version, self._answers = version, {}
        self._answers[question] = answer
