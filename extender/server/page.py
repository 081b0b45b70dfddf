"""The page at ``/``: its files, and the headers that isolate it. It reads ``/debug`` as any client does;
its files need no token.

The page contains untrusted names, and may hold a token. So it runs only its own scripts, contacts no other
host, cannot be framed, and passes no text to the HTML parser (Trusted Types without any policy).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources

from fastapi import FastAPI, Request, Response

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


def page_files() -> dict[str, bytes]:
    """The files by name."""
    folder = resources.files("extender.data").joinpath(_FOLDER)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page."""
    files = page_files()
    etags = {name: f'"{hashlib.sha256(body).hexdigest()[:16]}"' for name, body in files.items()}

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return Response(b"no such file\n", 404, media_type="text/plain")
        headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": etags[name]}
        if request.headers.get("if-none-match") == etags[name]:
            return Response(status_code=304, headers=headers)
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(files[name], headers=headers, media_type=kind)

    for path in ("/", "/page/{name}"):
        app.add_route(path, page, methods=["GET"])
