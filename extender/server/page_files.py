"""The files of the page at ``/``, read once, and the headers that isolate it.

The page contains untrusted names, and may hold a token. So it runs only its own scripts, contacts no other
host, cannot be framed, and passes no text to the HTML parser (Trusted Types without any policy).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

_FOLDER = "page"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file with its headers, including its ``etag``."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]


def page_files() -> dict[str, PageFile]:
    folder = resources.files("extender.data").joinpath(_FOLDER)
    return {
        file.name: _page_file(file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file()
    }


def _page_file(name: str, body: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": etag}
    return PageFile(body, _TYPES.get(name.rpartition(".")[2], "application/octet-stream"), headers)
