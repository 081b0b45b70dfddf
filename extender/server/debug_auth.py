"""Access to ``/debug`` and ``/metrics``: for the token in a file, or users that the API server authorizes.

If that cannot be checked, the request is refused. No token is kept (only its digest), logged or sent back.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from extender.settings import Settings, SettingsError
from extender.source.access_reviews import AUDIENCE, AccessReviews
from extender.source.errors import ReviewError
from extender.source.interface import Source
from extender.untrusted import limits
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import shorten

_KEPT_YES = 60.0
"""Seconds for which a positive review is cached: as long as controller-runtime caches a user."""
_KEPT_NO = 10.0
_THREADS = 4
_HEADERS = (b"authorization", b"x-stowage-authorization")
"""The API server removes the first one from requests that it proxies
(k8s.io/apiserver, pkg/endpoints/filters/authentication.go), so there is a second one."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    status: int
    text: str


_NO_TOKEN = Denial(401, "a bearer token is needed, and it is missing or invalid")
_FOR_OTHERS = Denial(
    401, f"a token for the audience {AUDIENCE} is needed: kubectl create token ACCOUNT --audience {AUDIENCE}"
)
_FORBIDDEN = Denial(403, "the user of this token is not allowed to read this path")
_BUSY = Denial(503, "too many token reviews in progress, retry later")


class TokenFile:
    """The token in a file, which is reloaded when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_at: tuple[int, int, int] | None = None
        self._digest = b""

    def matches(self, digest: bytes) -> bool:
        """Whether ``digest`` is the SHA-256 of the token, in constant time. Raises ``ReviewError``."""
        try:
            stat = self.path.stat()  # kubelet updates a projected Secret by symbolic link: a new inode
            changed = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if changed != self._read_at:
                self._read_at = None
                with self.path.open("rb") as file:
                    token = file.read(limits.DEBUG_TOKEN + 2).strip()
                if not token or len(token) > limits.DEBUG_TOKEN:
                    most = limits.DEBUG_TOKEN
                    raise ReviewError(f"the token file is empty or has more than {most} characters")
                self._digest, self._read_at = hashlib.sha256(token).digest(), changed
        except OSError as error:
            raise ReviewError(f"the token file cannot be read: {error.strerror}") from None
        return hmac.compare_digest(digest, self._digest)


class DebugAuth:
    """Authorizes requests for the paths that ``is_guarded``."""

    def __init__(
        self,
        token_file: TokenFile | None,
        reviews: AccessReviews | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._reviews, self._clock = token_file, reviews, clock
        self._users: BoundedMap[bytes, tuple[float, tuple[Mapping[str, object], bool] | None]] = BoundedMap(
            limits.REVIEWS_KEPT
        )
        self._access: BoundedMap[tuple[bytes, str, str], tuple[float, bool]] = BoundedMap(limits.REVIEWS_KEPT)
        self._threads = ThreadPoolExecutor(_THREADS, "reviews")
        self._pending = 0
        self.problem = ""
        """Why the last check of a token failed; "" if it succeeded."""

    async def refusal(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Denial | None:
        """Why this request is refused; None if it is allowed. Never raises."""
        token = _bearer_token(headers)
        if not token or len(path) > limits.DEBUG_PATH:
            return _NO_TOKEN
        try:
            refusal = await self._check(token, method.lower(), path)
        except (ReviewError, TimeoutError) as error:
            self._note(str(error) or "the API server did not answer")
            return Denial(503, f"tokens cannot be checked: {self.problem}")
        if refusal is not _BUSY:
            self._note("")
        return refusal

    async def _check(self, token: bytes, verb: str, path: str) -> Denial | None:
        digest = hashlib.sha256(token).digest()
        if self._file is not None and self._file.matches(digest):
            return None
        if self._reviews is None:
            return _NO_TOKEN
        if self._pending >= limits.REVIEWS_PENDING:
            return _BUSY
        self._pending += 1
        try:
            async with asyncio.timeout(limits.REVIEW_SECONDS):
                return await self._review(self._reviews, digest, token, verb, path)
        finally:
            self._pending -= 1

    async def _review(
        self, reviews: AccessReviews, digest: bytes, token: bytes, verb: str, path: str
    ) -> Denial | None:
        now, loop = self._clock(), asyncio.get_running_loop()
        found = self._users.get(digest)
        if found is None or found[0] <= now:
            known = await loop.run_in_executor(self._threads, reviews.authenticate, token.decode("latin-1"))
            found = now + (_KEPT_NO if known is None else _KEPT_YES), known
            self._users.put(digest, found, 1)
        if found[1] is None:
            return _NO_TOKEN
        user, is_for_all = found[1]
        if not is_for_all and path != "/metrics":  # Prometheus sends the token that every pod has
            return _FOR_OTHERS
        key = digest, verb, path
        access = self._access.get(key)
        if access is None or access[0] <= now:
            allowed = await loop.run_in_executor(self._threads, reviews.allows, user, verb, path)
            access = now + (_KEPT_YES if allowed else _KEPT_NO), allowed
            self._access.put(key, access, 1)
        return None if access[1] else _FORBIDDEN

    def _note(self, problem: str) -> None:
        problem = shorten(problem)
        if problem and problem != self.problem:
            _log.warning("requests for /debug and /metrics are refused: %s", problem)
        self.problem = problem


def is_guarded(path: str) -> bool:
    """Whether reading a path requires authorization."""
    return path.startswith(("/debug", "/metrics", "/statusz", "/configz"))


def auth_of(settings: Settings, source: Source) -> DebugAuth | None:
    """The authorization that the settings configure, None without any.

    Raises ``SettingsError`` if the file has no token, ``Unavailable`` if the source cannot review tokens.
    """
    if not (settings.debug_token_file or settings.debug_token_review):
        return None
    file = TokenFile(Path(settings.debug_token_file)) if settings.debug_token_file else None
    if file is not None:
        try:
            file.matches(b"")
        except ReviewError as error:
            raise SettingsError(f"debug_token_file {file.path}: {error}") from None
    if not settings.debug_token_review:
        return DebugAuth(file, None)
    return DebugAuth(file, AccessReviews(source.api_client("debug_token_review")))


def _bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The token of the first header that has one; b"" if there is none or it is too long."""
    for name, value in headers:
        scheme, _, token = value.partition(b" ")
        if name in _HEADERS and scheme.lower() == b"bearer":
            token = token.strip()
            return token if len(token) <= limits.DEBUG_TOKEN else b""
    return b""
