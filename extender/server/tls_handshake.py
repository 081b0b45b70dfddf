"""Handshakes of TLS that fail: the client is told why, and they are counted."""

from __future__ import annotations

import logging
import ssl

from prometheus_client import CollectorRegistry, Counter

from extender.untrusted.limits import shorten

_REASONS = ("client_certificate", "refused_by_client", "no_tls", "other")
_NO_ANSWER = ("refused_by_client", "no_tls")
_log = logging.getLogger(__name__)


class Failures:
    """Handshakes that failed, in a counter with the series of all reasons: rate() does not see the first
    value of a new one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "TLS handshakes that failed, such as those of clients without a valid certificate."
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
    """A context that may be retired: no connection whose handshake began with it is taken any more."""

    retired = False
    failures: Failures | None = None


class Handshake(ssl.SSLObject):
    """Tells the client why its handshake failed.

    asyncio and uvloop end a connection whose handshake fails before they have sent OpenSSL's alert. So the
    first error is reported as the wish for more data, before which they send what is there. The connection
    ends when the client closes it, or after the time for a handshake.
    """

    error: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Called again until the handshake has ended."""
        if self.error is not None:
            raise self.error
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = _reason(error)
            if isinstance(self.context, Context) and self.context.failures is not None:
                self.context.failures.note(reason, error)
            if reason in _NO_ANSWER:
                raise
            self.error = ssl.SSLError(*error.args)  # without the traceback, which would refer to this object
            raise ssl.SSLWantReadError from None


def _reason(error: ssl.SSLError) -> str:
    """One of ``_REASONS``. OpenSSL names alerts of the other side SSLV3_ALERT_... and TLSV1_ALERT_..."""
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "client_certificate"
    if error.reason == "HTTP_REQUEST":
        return "no_tls"
    return "refused_by_client" if "_ALERT_" in (error.reason or "") else "other"
