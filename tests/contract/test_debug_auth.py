"""Who may read ``/debug`` and ``/metrics``: tokens in a file, and tokens that the API server reviews."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.server import debug_auth
from extender.server.app import create_app
from extender.server.service import PROBES, Service
from extender.settings import Settings, SettingsError
from extender.source.errors import Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.untrusted import limits
from tests.extender.apiserver import ApiServer, source_of
from tests.routes import routes

OPEN = re.compile("/(healthz|livez|readyz|version|openapi.json|page/.*|scheduler/.*)?")
"""Routes without authentication: the files of the page (at /) say nothing about the cluster."""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    server.reviews.users = {
        "prometheus": {"username": "prom", "groups": ["monitoring"], "uid": "7", "extra": {"a": ["b"]}},
        "somebody": {"username": "other"},
    }
    server.reviews.rights = {("prom", "get", "/metrics"), ("prom", "post", "/debug/explain")}
    yield server
    server.reviews.open.set()
    server.stop()


def client(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(service)), base_url="http://stowage")


def with_file(path: Path) -> httpx.AsyncClient:
    settings = Settings(debug_token_file=str(path))
    return client(Service(settings, SnapshotSource(Snapshot(), "test"), "1.2.3"))


def with_reviews(api: ApiServer, directory: Path, **settings: Any) -> httpx.AsyncClient:
    chosen = Settings(debug_token_review=True, **settings)
    return client(Service(chosen, source_of(api, directory), "1.2.3"))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def status(http: httpx.AsyncClient, token: str, path: str = "/metrics") -> int:
    return (await http.get(path, headers=bearer(token))).status_code


async def test_without_a_token_everything_but_health_and_version_is_401(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    service = Service(
        Settings(debug_token_file=str(tmp_path / "token")), SnapshotSource(Snapshot(), "test"), "1.2.3"
    )
    guarded = 0
    async with client(service) as http:
        probes = [(path, {"GET", "HEAD"}) for path in PROBES]
        for path, methods in [
            *probes,
            *((route.path, route.methods or {"GET"}) for route in routes(service)),
        ]:
            for method in methods:
                answer = await http.request(method, path)
                assert (answer.status_code == 401) == (not OPEN.fullmatch(path)), (method, path)
                guarded += answer.status_code == 401
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert guarded > 5


async def test_the_token_of_the_file_opens_all_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A mounted Secret changes by a symbolic link."""
    for name, token in (("one", "first"), ("two", "other")):
        (tmp_path / name).write_text(f"{token}\n")
    link = tmp_path / "token"
    link.symlink_to("one")
    async with with_file(link) as http:
        assert [await status(http, token) for token in ("first", "other", "firs", "")] == [200, 401, 401, 401]
        assert (await http.get("/metrics", headers={"x-stowage-authorization": "bearer first"})).is_success
        assert (await http.get("/metrics", headers={"authorization": "Basic first"})).status_code == 401
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(link)
        assert [await status(http, token) for token in ("first", "other")] == [401, 200]


async def test_a_file_that_is_gone_or_empty_refuses_everybody(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    async with with_file(file) as http:
        for breaking in (lambda: os.truncate(file, 0), file.unlink):
            breaking()
            answer = await http.get("/metrics", headers=bearer("secret"))
            assert answer.status_code == 503
            assert "token file" in answer.json()["detail"]
        file.write_text("secret")
        assert await status(http, "secret") == 200


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_the_service_does_not_start_without_a_token_in_the_file(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(SettingsError, match=r"debug_token_file .*token: the token file"):
        with_file(tmp_path / "token")


def test_a_snapshot_reviews_no_tokens() -> None:
    with pytest.raises(Unavailable, match="debug_token_review"):
        Service(Settings(debug_token_review=True), SnapshotSource(Snapshot(), "test"), "1.2.3")


async def test_without_a_token_nobody_sets_the_level_of_the_log() -> None:
    async with client(Service(Settings(), SnapshotSource(Snapshot(), "test"), "1.2.3")) as http:
        assert (await http.put("/debug/flags/v", content="2")).status_code == 403


async def test_the_api_server_says_who_may_read_what(api: ApiServer, tmp_path: Path) -> None:
    async with with_reviews(api, tmp_path) as http:
        assert await status(http, "prometheus") == 200
        assert await status(http, "prometheus", "/debug/nodes") == 403
        assert await status(http, "somebody") == 403
        assert await status(http, "nobody") == 401
        explained = await http.post("/debug/explain", content=b"", headers=bearer("prometheus"))
        assert explained.status_code in (400, 503)  # past the guard
        first, second, third, *_ = api.reviews.requests
    assert first == {"token": "prometheus", "audiences": ["stowage"]}
    assert second == {"token": "prometheus"}
    assert third == {
        "user": "prom",
        "groups": ["monitoring"],
        "uid": "7",
        "extra": {"a": ["b"]},
        "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
    }


ACCOUNT = "system:serviceaccount:stowage-system:stowage-viewer"


async def test_tokens_of_accounts_must_be_for_stowage_except_for_metrics(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.reviews.users |= {token: {"username": ACCOUNT} for token in ("of-the-api", "of-vault", "of-stowage")}
    api.reviews.audiences = {"of-vault": "vault", "of-stowage": "stowage"}
    api.reviews.rights |= {(ACCOUNT, "get", "/metrics"), (ACCOUNT, "get", "/debug/overview")}
    async with with_reviews(api, tmp_path) as http:
        with caplog.at_level(logging.DEBUG):
            answers = {
                token: await http.get("/debug/overview", headers=bearer(token))
                for token in ("of-the-api", "of-vault", "of-stowage")
            }
        assert [answer.status_code for answer in answers.values()] == [401, 401, 503]  # 503: not started
        assert "kubectl create token ACCOUNT --audience stowage" in answers["of-the-api"].json()["detail"]
        assert [await status(http, token) for token in answers] == [200, 401, 200]  # of /metrics
    assert not [token for token in answers if token in caplog.text]
    assert not [token for token, answer in answers.items() if token in answer.text]


async def test_an_authenticator_without_audiences_does_not_pass_for_one(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"username": ACCOUNT}
    answer = 201, {"status": {"authenticated": True, "user": user}}
    monkeypatch.setattr(api.reviews, "handle", lambda path, body: answer)
    async with with_reviews(api, tmp_path) as http:
        assert "--audience stowage" in (await http.get("/debug/overview", headers=bearer("any"))).text


async def test_reviews_are_remembered_for_a_while(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    service = Service(Settings(debug_token_review=True), source_of(api, tmp_path), "1.2.3")
    assert service.debug_auth is not None
    service.debug_auth._clock = lambda: now[0]
    async with client(service) as http:
        for _ in range(3):
            assert await status(http, "prometheus") == 200
            assert await status(http, "nobody") == 401
        assert len(api.reviews.requests) == 5  # an unknown token may be for Stowage or for the API server
        api.reviews.users["nobody"] = api.reviews.users["prometheus"]
        now[0] = 11
        assert await status(http, "nobody") == 200  # a no is forgotten sooner
        api.reviews.rights.clear()
        assert await status(http, "prometheus") == 200
        now[0] = 61
        assert await status(http, "prometheus") == 403
        api.reviews.users.clear()
        now[0] = 122
        assert await status(http, "prometheus") == 401


@pytest.mark.parametrize("broken", ["forbidden", "down", "error"])
async def test_it_fails_closed_and_says_why_without_the_token(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    async with with_reviews(api, tmp_path) as http:
        if broken == "down":
            api.stop()
        api.reviews.status = {"forbidden": 403, "error": 500, "down": 0}[broken]
        with caplog.at_level(logging.DEBUG):
            answers = [await http.get("/metrics", headers=bearer("prometheus-x")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [503] * 3
        assert "tokens cannot be checked: TokenReview" in answers[0].json()["detail"]
        warnings = [record for record in caplog.records if record.name == debug_auth.__name__]
        assert len(warnings) == 1  # a problem that persists is logged once
        if broken == "down":
            api.start()
        api.reviews.status = 0
        assert await status(http, "prometheus") == 200


async def test_with_both_settings_either_token_is_enough(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    async with with_reviews(api, tmp_path, debug_token_file=str(tmp_path / "token")) as http:
        assert await status(http, "secret") == 200
        assert api.reviews.requests == []
        assert await status(http, "prometheus") == 200


async def test_long_tokens_and_paths_are_refused_without_a_review(api: ApiServer, tmp_path: Path) -> None:
    async with with_reviews(api, tmp_path) as http:
        assert await status(http, "x" * (limits.DEBUG_TOKEN + 1)) == 401
        assert await status(http, "prometheus", "/debug/nodes/" + "n" * limits.DEBUG_PATH) == 401
        assert api.reviews.requests == []


async def test_waiting_reviews_are_bounded(api: ApiServer, tmp_path: Path) -> None:
    async with with_reviews(api, tmp_path) as http:
        api.reviews.open.clear()
        waiting = [
            asyncio.create_task(status(http, f"token-{number}")) for number in range(limits.REVIEWS_PENDING)
        ]
        while len(api.reviews.requests) < debug_auth._THREADS:
            await asyncio.sleep(0.01)
        assert await status(http, "prometheus") == 503
        api.reviews.open.set()
        assert await asyncio.gather(*waiting) == [401] * limits.REVIEWS_PENDING
        assert await status(http, "prometheus") == 200


async def test_reviews_that_are_remembered_are_bounded(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.untrusted.limits.REVIEWS_KEPT", 100)
    service = Service(Settings(debug_token_review=True), source_of(api, tmp_path), "1.2.3")
    assert service.debug_auth is not None
    async with client(service) as http:
        for number in range(108):
            await status(http, f"token-{number}")
    assert len(service.debug_auth._users) == 100
