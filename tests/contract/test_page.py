"""The files of the page over HTTP: their headers, and that they hold nothing that those would forbid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extender.server.page import page_files
from tests.contract.conftest import Start
from tests.extender.builders import make_node

FILES = sorted(page_files())
FOLDER = Path(__file__).parents[2] / "extender/data/page"


async def test_every_file_comes_with_the_headers(start: Start) -> None:
    stowage = await start(make_node("a"))
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        answer = await stowage.http.get(path)
        assert answer.status_code == 200, path
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'", path
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'", path
        assert policy["require-trusted-types-for"] == "'script'", path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY", path
        again = await stowage.http.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path


async def test_nothing_else_is_served(start: Start) -> None:
    stowage = await start()
    for name in ("nothing.js", "..%2f__init__.py", "%2e%2e/__init__.py", "index.html%00"):
        assert (await stowage.http.get(f"/page/{name}")).status_code == 404, name


async def test_the_fleet_over_http(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b"))
    answer = (await stowage.http.get("/debug/fleet")).json()
    assert {node["name"] for node in answer["nodes"]} >= {"a", "b"}
    unchanged = (await stowage.http.get("/debug/fleet", params={"since": answer["version"]})).json()
    assert unchanged["nodes"] == []
    history = (await stowage.http.get("/debug/fleet/history")).json()
    assert history.pop("teams").keys() == {"namespace", "queue"}
    assert [row[1:] for row in history.pop("use")] == [[16, True]]
    assert {len(column) for column in history.values()} <= {0, 1, 2}


@pytest.mark.parametrize("name", FILES)
def test_no_inline_code_and_no_other_host(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 300
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    addresses = {found for found in re.findall(r"https?://[^\s\"'<>)]+", text) if "www.w3.org/" not in found}
    assert addresses == set()
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
