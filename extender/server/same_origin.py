"""Refuses what a browser sends for a page of another site.

A name that somebody else controls can lead to any address (DNS rebinding), and then the browser takes his
page for ours. So a request must name a host that only the cluster's own resolver knows, or that the operator
allows: an address, ``localhost``, a name without a dot, a Service (``*.svc``, also below the domain of the
cluster), or one of ``allowed_hosts``. And the ``Origin`` of a page must be that host.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from extender.untrusted.limits import KNOWN_HOSTS, NAME, quoted

_RESOLVER = Path("/etc/resolv.conf")
_log = logging.getLogger(__name__)


class SameOrigin:
    """``allowed``: host names beside those of the module's text."""

    def __init__(self, allowed: Iterable[str] = (), resolver: Path = _RESOLVER) -> None:
        self._names = {"localhost", *(name.lower() for name in allowed)}
        domains = ["svc", "svc.cluster.local", *_service_domains(resolver)]
        self._suffixes = tuple(f".{domain}" for domain in domains)
        self._known: set[bytes] = set()
        self._logged: set[str] = set()

    def problem(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Why a request with these headers is refused, "" if it is not. One without ``Host`` is from no
        browser."""
        host = origin = None
        for name, value in headers:
            if name == b"host":
                if value not in self._known and (text := self._host_problem(value)):
                    return text
                host = value
            elif name == b"origin":
                origin = value
        if origin is not None and origin.lower().partition(b"://")[2] != (host or b"").lower():
            return "the page of another site may not ask this"
        return ""

    def _host_problem(self, host: bytes) -> str:
        name = _without_port(host.decode("latin-1").lower())
        if self._is_ours(name):
            if len(self._known) < KNOWN_HOSTS:
                self._known.add(host)
            return ""
        text = f"the host {quoted(name)} is not known: use an address, or add it to the setting allowed_hosts"
        if len(self._logged) < KNOWN_HOSTS and name not in self._logged:
            self._logged.add(name)
            _log.warning("requests are refused: %s", text)
        return text

    def _is_ours(self, name: str) -> bool:
        if len(name) > NAME:
            return False
        if name in self._names or name.endswith(self._suffixes) or "." not in name.replace(":", "."):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).rstrip(".")


def _service_domains(resolver: Path) -> list[str]:
    """Such as ``svc.cluster.local``: what kubelet has the resolver search for Services."""
    try:
        lines = resolver.read_text(errors="replace").splitlines()
    except OSError:
        return []
    searched = [word for line in lines if line.startswith("search") for word in line.split()[1:]]
    return [domain.lower().rstrip(".") for domain in searched if domain.startswith("svc.")]
