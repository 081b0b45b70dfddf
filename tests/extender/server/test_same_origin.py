"""What a browser may ask for a page of another site: nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from extender.server.guard import SameOrigin
from extender.untrusted.limits import KNOWN_HOSTS


def problem(host: str, origin: str = "", *, allowed: tuple[str, ...] = (), resolver: str = "/nowhere") -> str:
    headers = [(b"accept", b"*/*"), (b"host", host.encode())]
    headers += [(b"origin", origin.encode())] if origin else []
    return SameOrigin(allowed, Path(resolver)).problem(headers)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:8888", "10.1.2.3", "[::1]:8080", "[::1]"),
        *(
            "stowage",
            "stowage:8888",
            "stowage.gpu.svc",
            "stowage.gpu.svc:8080",
            "stowage.gpu.svc.cluster.local.",
        ),
    ],
)
def test_hosts_that_only_the_cluster_resolves(host: str) -> None:
    assert not problem(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8888",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "a.svc.b.c",
        ),
        *("[evil.example]", "x" * 500 + ".svc", "stowage.gpu.svc.corp.example"),
    ],
)
def test_other_hosts_are_refused(host: str) -> None:
    assert "unknown host" in problem(host)


def test_names_that_the_operator_and_kubelet_know(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text(
        "nameserver 10.96.0.10\nsearch gpu.svc.corp.example svc.corp.example corp.example\noptions ndots:5\n"
    )
    resolver = str(tmp_path / "resolv.conf")
    assert not problem("stowage.gpu.svc.corp.example:8888", resolver=resolver)
    assert problem("www.corp.example", resolver=resolver)
    assert not problem("Stowage.example.com", allowed=("stowage.example.com",))
    assert problem("x.stowage.example.com", allowed=("stowage.example.com",))


def test_the_page_of_another_site_gets_no_answer() -> None:
    assert not problem("localhost:8080", "http://localhost:8080")
    for origin in ("http://evil.example", "http://localhost:9999", "null", "localhost:8080"):
        assert "another site" in problem("localhost:8080", origin)


def test_a_request_without_a_host_is_from_no_browser() -> None:
    assert not SameOrigin().problem([(b"accept", b"*/*")])
    assert SameOrigin().problem([(b"origin", b"http://evil.example")])


def test_refused_names_are_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    checker = SameOrigin()
    with caplog.at_level(logging.WARNING):
        for number in [*range(2 * KNOWN_HOSTS)] * 2:
            assert checker.problem([(b"host", b"e%d.example" % number)])
    assert len(caplog.records) == KNOWN_HOSTS
