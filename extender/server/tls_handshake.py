"""Handshakes of TLS: their number is limited, and those that fail are counted."""

from __future__ import annotations

import logging
import ssl
import time
import weakref
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from extender.untrusted.limits import HANDSHAKES, HEADER_SECONDS, shorten

_REASONS = ("client_certificate", "refused_by_client", "no_tls", "too_many", "other")
_NO_ANSWER = ("refused_by_client", "no_tls")
_log = logging.getLogger(__name__)


class Handshakes:
    """Those that are under way on one port, and why others failed."""

    def __init__(self, failures: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures, self._clock = failures, clock
        self._pending: weakref.WeakKeyDictionary[ssl.SSLObject, float] = weakref.WeakKeyDictionary()
        self._logged: set[str] = set()

    @property
    def pending(self) -> int:
        """How many have begun and may still end."""
        oldest = self._clock() - HEADER_SECONDS
        return sum(begun >= oldest for begun in self._pending.values())

    def begin(self, connection: Handshake) -> None:
        """Count it, or refuse it if too many are under way."""
        connection.handshakes = self
        if self.pending < HANDSHAKES:
            self._pending[connection] = self._clock()
        else:
            self._failures.labels("too_many").inc()
            connection.error = ssl.SSLError("too many handshakes")

    def end(self, connection: ssl.SSLObject) -> None:
        """It was successful."""
        self._pending.pop(connection, None)

    def fail(self, error: ssl.SSLError) -> None:
        """Count a failure, and log the first of each kind."""
        reason = _reason(error)
        self._failures.labels(reason).inc()
        if reason not in self._logged and reason != "other":
            self._logged.add(reason)
            text = "TLS handshake failed (%s): %s; more such failures are only counted"
            _log.warning(text, reason, shorten(str(error)))


class Handshake(ssl.SSLObject):
    """Tells ``handshakes`` how it ended, and the client why it failed.

    asyncio and uvloop end a connection whose handshake fails before they have sent OpenSSL's alert. So the
    first error is reported as the wish for more data, before which they send what is there. The connection
    ends when the client closes it, or after the time for a handshake.
    """

    handshakes: Handshakes | None = None
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
            if self.handshakes is not None:
                self.handshakes.fail(error)
            if _reason(error) in _NO_ANSWER:
                raise
            self.error = error
            raise ssl.SSLWantReadError from error
        if self.handshakes is not None:
            self.handshakes.end(self)


def _reason(error: ssl.SSLError) -> str:
    """One of ``_REASONS``. OpenSSL names alerts of the other side SSLV3_ALERT_... and TLSV1_ALERT_..."""
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "client_certificate"
    if error.reason == "HTTP_REQUEST":
        return "no_tls"
    return "refused_by_client" if "_ALERT_" in (error.reason or "") else "other"


def failure_counter(registry: CollectorRegistry) -> Counter:
    """The counter of failed handshakes, with all its series: rate() does not see the first value of a new
    one."""
    text = "TLS handshakes that failed, such as those of clients without a valid certificate."
    counter = Counter("stowage_tls_handshake_failures", text, ["reason"], registry=registry)
    for reason in _REASONS:
        counter.labels(reason)
    return counter
