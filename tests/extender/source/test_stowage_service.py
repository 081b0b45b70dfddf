"""Answers of something that is not the Stowage that one expects."""

from __future__ import annotations

import pytest

from extender.source import stowage_service
from extender.source.stowage_service import NotAsked, StowageService


def answering(status: int, body: bytes) -> StowageService:
    return StowageService("it", lambda method, path, sent: (status, body))


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stowage_service, "SERVICE_ANSWER", 1 << 20)
    with pytest.raises(NotAsked, match="it answers with more than 1 MiB"):
        answering(200, b" " * (1 << 20 | 1)).get("/debug/nodes")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000])
def test_an_answer_that_is_no_json(body: bytes) -> None:
    with pytest.raises(NotAsked, match="it answers 200 without JSON"):
        answering(200, body).get("/debug/nodes")


def test_no_refusal_controls_the_terminal() -> None:
    with pytest.raises(ValueError, match=r"^\\u001b\[2J$"):
        answering(400, b'{"detail": "\\u001b[2J"}').get("/x")


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        (404, b'{"detail": "pod a/b is not known"}', ValueError, "pod a/b is not known"),
        (404, b'{"detail": "Not Found"}', NotAsked, "it answers 404 Not Found"),  # an older version
        (404, b'{"message": "services not found"}', NotAsked, "it: 404 services not found"),
        (503, b'{"detail": "not ready: nodes"}', NotAsked, "it answers 503 not ready: nodes"),
        (500, b"[]", NotAsked, "it: 500 "),
        (422, b'{"detail": [{"msg": "no"}]}', NotAsked, "it: 422 "),
    ],
)
def test_refusals(status: int, body: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        answering(status, body).get("/debug/nodes")
    assert str(caught.value) == text
