"""Reads the answer to a watch: what has arrived by now, all at once.

The API server sends each event as a chunk of its own, and a thread that wakes up for each of them costs more
than their parsing: it must get the interpreter while requests are answered, and wakes the event loop. So
after a read this waits ``GATHER`` for events that follow. The first event after a pause is not delayed.
"""

from __future__ import annotations

import select
import time
from http.client import HTTPResponse as RawResponse
from io import BufferedReader
from typing import cast

from urllib3 import HTTPResponse

GATHER = 0.01
"""Seconds from one read to the next: at most 100 a second, however many events there are. A refusal waits for
events for three times as long (``verbs/recheck.py``)."""
_READ = 1 << 16  # bytes; more than a record of TLS, so that no read leaves something behind
_SIZE_LINE = 256  # bytes; the size of a chunk in hexadecimal digits, and extensions that nobody uses
_LINE_END = b"\r\n"
_NO_CHUNKS = "the answer to a watch is not in chunks"


class WatchStream:
    """Reads one answer. A server that does not send chunks is read without gathering."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._file: BufferedReader | None = None
        self._chunks = ChunkDecoder()
        self._poll = select.poll()
        if response.chunked and not response.headers.get("content-encoding"):
            # urllib3 and http.client read one chunk at a time, and cannot say whether there is more.
            raw = cast(RawResponse, response._fp)
            self._file = raw.fp
            self._poll.register(response.fileno(), select.POLLIN)

    def read(self) -> bytes:
        """The next bytes, b"" at the end. Blocks until there are some. Raises ``NO_ANSWER``."""
        if self._file is None:
            return self._response.read1(_READ)
        while not self._chunks.ended:
            if not (data := self._file.read1(_READ)):
                raise ConnectionError("the server broke off the watch")
            if body := self._chunks.feed(data):
                return body
        self._release()
        return b""

    def has_more(self) -> bool:
        """Whether ``read`` would return at once."""
        return self._file is not None and (self._chunks.ended or bool(self._poll.poll(0)))

    def gather(self) -> None:
        """Let events arrive that follow closely."""
        if self._file is not None:
            time.sleep(GATHER)

    def _release(self) -> None:
        """The next watch can use the connection."""
        cast(RawResponse, self._response._fp).close()
        self._response.release_conn()


class ChunkDecoder:
    """The chunked transfer coding (RFC 9112, section 7.1), cut anywhere. ``ended``: after the last chunk.

    No server sends trailers after a watch; this one would raise.
    """

    def __init__(self) -> None:
        self.ended = False
        self._left = 0  # bytes of the chunk that are still missing, and of the line end after it
        self._is_last = False
        self._rest = b""  # of a line with a size, the part that has arrived

    def feed(self, data: bytes) -> bytes:
        """What these bytes have of the body. Raises ``ConnectionError`` if they are not in this coding."""
        data, self._rest = self._rest + data, b""
        parts, at = [], 0
        while at < len(data) and not self.ended:
            if self._left > len(_LINE_END):
                parts.append(data[at : at + self._left - len(_LINE_END)])
                taken = len(parts[-1])
            elif self._left:
                taken = self._end_of_chunk(data[at : at + self._left])
            elif (line_end := data.find(b"\n", at, at + _SIZE_LINE)) >= 0:
                self._begin(data[at:line_end])
                at = line_end + 1
                continue
            elif len(data) - at < _SIZE_LINE:
                self._rest = data[at:]
                break
            else:
                raise ConnectionError(_NO_CHUNKS)
            at, self._left = at + taken, self._left - taken
            self.ended = self._is_last and not self._left
        return b"".join(parts)

    def _begin(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        if not digits.isalnum():
            raise ConnectionError(_NO_CHUNKS)
        try:
            size = int(digits, 16)
        except ValueError:
            raise ConnectionError(_NO_CHUNKS) from None
        self._left, self._is_last = size + len(_LINE_END), size == 0

    def _end_of_chunk(self, data: bytes) -> int:
        if not _LINE_END[-self._left :].startswith(data):
            raise ConnectionError(_NO_CHUNKS)
        return len(data)
