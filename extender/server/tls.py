"""TLS of the ports: contexts that follow the files of the certificate, its key and the client CA; and the
clients that may call. Failed handshakes are counted, and the client receives the reason.

A context is never changed once connections use it: each load creates new ones, and a new connection uses the
latest. So inconsistent files change nothing, open connections continue, and no session from before a change
is resumed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from extender.background import FileThread
from extender.untrusted.limits import TLS_FILE, quoted, shorten

CHECK_SECONDS = 10.0
"""Interval between checks of the files. kubelet updates mounted Secrets about once a minute."""
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: ciphers with forward secrecy and authenticated encryption. All of TLS 1.3 have both."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (openssl/openssl, include/openssl/x509_vfy.h.in)."""
_ROUNDS = 4  # a handshake of TLS 1.3 has two
_REASONS = ("client_certificate", "refused_by_client", "no_tls", "other")
_NO_ANSWER = ("refused_by_client", "no_tls")
_log = logging.getLogger(__name__)


class TlsError(Exception):
    """The files cannot be used; the text names the file and the reason."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With ``client_ca``, callers of a verb need a certificate signed by it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def __iter__(self) -> Iterator[Path]:
        return (path for path in (self.certificate, self.key, self.client_ca) if path is not None)

    def stamp(self) -> object:
        """A value that changes when a file does. Raises ``TlsError``."""
        try:
            stats = [path.stat() for path in self]
        except OSError as error:
            raise TlsError(f"cannot read {error.filename}: {error.strerror}") from None
        # kubelet updates a mounted Secret by symbolic link: a new inode.
        return [(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats]


class Failures:
    """Counts failed handshakes. The series of all reasons exist from the start: rate() misses the first value
    of a new series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Failed TLS handshakes, such as those of clients without a valid certificate."
        self._counter = Counter("stowage_tls_handshake_failures", text, ["reason"], registry=registry)
        for reason in _REASONS:
            self._counter.labels(reason)
        self._logged: set[str] = set()

    def note(self, reason: str, error: ssl.SSLError) -> None:
        """Count a failure, and log the first of each kind."""
        self._counter.labels(reason).inc()
        if reason not in self._logged and reason != "other":
            self._logged.add(reason)
            text = "TLS handshake failed (%s): %s; more such failures are only counted"
            _log.warning(text, reason, shorten(str(error)))


class Context(ssl.SSLContext):
    """A context that may be retired: connections whose handshake began with it are no longer accepted."""

    retired = False
    failures: Failures | None = None


class Handshake(ssl.SSLObject):
    """A handshake whose failure is reported to the client.

    When a handshake fails, asyncio and uvloop close the connection before they have sent OpenSSL's alert. So
    the first error is reported as a need for more data, which makes them flush their output. The connection
    ends when the client closes it, or at the handshake timeout.
    """

    error: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Advance the handshake. Called until it is done."""
        if self.error is not None:
            raise self.error
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = _kind_of(error)
            if isinstance(self.context, Context) and self.context.failures is not None:
                self.context.failures.note(reason, error)
            if reason in _NO_ANSWER:
                raise
            self.error = ssl.SSLError(*error.args)  # without the traceback, which would refer to this object
            raise ssl.SSLWantReadError from None


def _kind_of(error: ssl.SSLError) -> str:
    """One of ``_REASONS``. OpenSSL names alerts of the peer SSLV3_ALERT_... and TLSV1_ALERT_..."""
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "client_certificate"
    if error.reason == "HTTP_REQUEST":
        return "no_tls"
    return "refused_by_client" if "_ALERT_" in (error.reason or "") else "other"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contexts of the files. ``with_clients`` requires client certificates if there is a client CA."""

    context: Context
    with_clients: Context
    client_ca: str
    expires: float  # Unix time


def load(files: TlsFiles) -> Loaded:
    """Load the files. Raises ``TlsError`` if one is missing, too large or not PEM, or the key is wrong."""
    certificate = _read(files.certificate)
    client_ca = _read(files.client_ca) if files.client_ca else ""
    _read(files.key)
    context = _context(files)
    with_clients = _context(files)
    if files.client_ca:  # also where the file is empty
        with_clients.verify_mode = ssl.CERT_REQUIRED
        try:
            with_clients.load_verify_locations(cadata=client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"{files.client_ca} is not a list of PEM certificates: {_reason(error)}") from None
    try:
        expires = _expiry(context, certificate)
    except (ssl.SSLError, ValueError, KeyError) as error:
        raise TlsError(f"{files.certificate} is not a server certificate: {_reason(error)}") from None
    return Loaded(context, with_clients, client_ca, expires)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TLS_FILE + 1)
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > TLS_FILE:
        raise TlsError(f"{path} has more than {TLS_FILE} bytes")
    return content.decode("ascii", "ignore")  # comments between certificates may have any characters


def _context(files: TlsFiles) -> Context:
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # also of client-go; Go prefers 1.3
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])  # kube-scheduler offers h2, too
    # No tickets: a client that resumes a session does not present its certificate again.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.sslobject_class = Handshake
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except OSError as error:  # also ssl.SSLError
        both = f"{files.certificate} and {files.key}"
        raise TlsError(f"{both} are not a PEM certificate and its key: {_reason(error)}") from None
    return context


def _no_password() -> str:
    """Raise, because OpenSSL would prompt on the terminal."""
    raise TlsError("the key is encrypted; an unencrypted key is required")


def _expiry(server: ssl.SSLContext, certificate: str) -> float:
    """Expiry in Unix time, by a handshake in memory: ``ssl`` decodes only what a peer has verified."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end) * _ROUNDS:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    found = client_end.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))


def _reason(error: Exception) -> str:
    """OpenSSL's reason as text, without the position in CPython's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


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
