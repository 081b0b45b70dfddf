"""TLS of the ports: contexts that follow the certificate files, and the clients that may call.

A context is never changed once connections use it: each load creates new ones, and a new connection uses the
latest. So inconsistent files change nothing, open connections continue, and no session from before a change
is resumed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from extender.background import FileThread
from extender.server.tls_files import Context, Failures, Loaded, TlsError, TlsFiles, load
from extender.untrusted.limits import quoted, shorten

CHECK_SECONDS = 10.0
"""Interval between checks of the files. kubelet updates mounted Secrets about once a minute."""
_log = logging.getLogger(__name__)


class Tls:
    """The certificate of all ports. With a client CA, the port of the verbs requires client certificates."""

    def __init__(
        self, files: TlsFiles, registry: CollectorRegistry, client_names: frozenset[str] = frozenset()
    ) -> None:
        """``client_names``: clients that may call the verbs; empty for all that the client CA has signed.

        Raises ``TlsError`` if the files cannot be used.
        """
        self.files, self.client_names = files, client_names
        self._thread = FileThread("certificate")
        self.problem = ""
        """Why the files on disk are not in use; "" if they are."""
        self._failures = Failures(registry)
        text = "Expiry of the served certificate, in Unix time."
        self._expires = Gauge("stowage_tls_certificate_expiry_timestamp_seconds", text, registry=registry)
        text = "1 while the certificate files cannot be used, so that the previous certificate is served."
        failed = Gauge("stowage_tls_reload_failed", text, registry=registry)
        failed.set_function(lambda: bool(self.problem))
        self._stamp = files.stamp()
        self._use(load(files))

    def verbs(self) -> Context:
        """For the next connection to the port of the verbs."""
        return self._loaded.with_clients

    def debug(self) -> Context:
        """For the next connection to a port without verbs."""
        return self._loaded.context

    def reload(self) -> bool:
        """Load the files if they have changed. Returns whether the client CA has changed. Never raises."""
        try:
            stamp, self._stamp = self._stamp, None  # to check again if a file is missing
            self._stamp = self.files.stamp()
            if self._stamp == stamp:
                return False
            loaded = load(self.files)
            if loaded.expires <= time.time() < self._loaded.expires:
                raise TlsError(f"{self.files.certificate} has expired")
        except TlsError as error:
            problem = shorten(str(error))
            if problem != self.problem:
                _log.warning("the previous TLS certificate is still served: %s", problem)
            self.problem = problem
            return False
        new_client_ca = loaded.client_ca != self._loaded.client_ca
        self._loaded.with_clients.retired = new_client_ca  # first: a handshake may finish at any time
        self._use(loaded)
        return new_client_ca

    async def watch(self, on_new_client_ca: Callable[[], None]) -> None:
        """Check the files every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if await asyncio.wrap_future(self._thread.submit(self.reload)):
                on_new_client_ca()

    def _use(self, loaded: Loaded) -> None:
        self._loaded = loaded
        loaded.context.failures = loaded.with_clients.failures = self._failures
        self._expires.set(loaded.expires)
        self.problem = ""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(loaded.expires))
        if loaded.expires > time.time():
            _log.info("serving the TLS certificate %s, valid until %s", self.files.certificate, until)
        else:
            _log.warning("the TLS certificate %s expired on %s", self.files.certificate, until)


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common name and the alternative names (DNS, URI, e-mail) of a client, from ``getpeercert()``."""
    subject = (pair for entry in certificate.get("subject", ()) for pair in entry)
    names = {name for kind, name in subject if kind == "commonName"}
    return frozenset(names | {name for _, name in certificate.get("subjectAltName", ())})


def why_not(client: frozenset[str], allowed: frozenset[str]) -> str:
    """Why a client with these names may not call the verbs; "" if it may."""
    if not allowed or client & allowed:
        return ""
    name = quoted(min(client, default=""))
    return f"the client certificate of {name} is not allowed to call Stowage (--client-name)"
