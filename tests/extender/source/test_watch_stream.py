"""The answer to a watch, in chunks that are cut anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import PoolManager

from extender.source.watch_stream import GATHER, ChunkDecoder, WatchStream
from extender.verbs.recheck import LONGEST

BODIES = st.lists(st.binary(min_size=1, max_size=300), max_size=6)
EXTENSIONS = st.sampled_from([b"", b";a=b", b" ", b'; quoted="1"'])


def chunk(body: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(body), extension, body)


@given(BODIES, EXTENSIONS, st.lists(st.integers(0, 2000), max_size=12))
def test_chunks_that_are_cut_anywhere_give_the_whole_body(bodies, extension, cuts):
    message = b"".join(chunk(body, extension) for body in (*bodies, b""))
    decoder, at, found = ChunkDecoder(), 0, b""
    for cut in (*sorted(cut for cut in cuts if cut < len(message)), len(message)):
        assert not decoder.ended or at == len(message)
        found += decoder.feed(message[at:cut])
        at = cut
    assert found == b"".join(bodies)
    assert decoder.ended


NO_CHUNKS = [
    b"zz\r\n",
    b"-1\r\nx",
    b"\r\n",
    b"1\r\nab\r\n",
    b"1\r\na\n",
    b"1_0\r\n",
    b"0\r\nX-Trailer: 1\r\n",
    b"1" * 300,
]


@pytest.mark.parametrize("data", NO_CHUNKS)
def test_what_is_not_in_chunks_is_a_broken_connection(data):
    with pytest.raises(ConnectionError, match="not in chunks"):
        ChunkDecoder().feed(data)
    with pytest.raises(ConnectionError, match="not in chunks"):
        feed_singly(data)


def feed_singly(data: bytes) -> None:
    decoder = ChunkDecoder()
    for byte in data:
        decoder.feed(bytes([byte]))


class Server:
    """Answers every GET by ``write``, which gets a function that sends raw bytes."""

    def __init__(self, write: Callable[[Callable[[bytes], Any]], None], headers: dict[str, str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                write(lambda data: (self.wfile.write(data), self.wfile.flush()))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[Server] = []

    def start(write: Callable[[Callable[[bytes], Any]], None], **headers: str) -> str:
        chunked = {"Transfer-Encoding": "chunked"}
        servers.append(Server(write, {name.replace("_", "-"): v for name, v in headers.items()} or chunked))
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def read_all(pool: PoolManager, url: str) -> list[bytes]:
    found = []
    with closing(pool.request("GET", url, preload_content=False, timeout=20, retries=False)) as response:
        stream = WatchStream(response)
        while data := stream.read():
            found.append(data)
    return found


def test_many_chunks_that_have_arrived_are_one_read_and_the_connection_is_used_again(serve):
    lines = [b'{"n":%d}\n' % number for number in range(40)]
    url = serve(lambda send: send(b"".join(map(chunk, (*lines, b"")))))
    with PoolManager(maxsize=1) as pool:
        for _ in range(3):
            found = read_all(pool, url)
            assert b"".join(found) == b"".join(lines)
            assert len(found) <= 3  # the head may have brought some of it
        assert pool.connection_from_url(url).num_connections == 1


def test_a_stream_says_whether_there_is_more(serve):
    more: list[bool] = []

    def write(send: Callable[[bytes], Any]) -> None:
        send(chunk(b"first\n"))
        while not more:
            time.sleep(0.001)
        send(chunk(b"second\n") + chunk(b""))

    with (
        PoolManager() as pool,
        closing(pool.request("GET", serve(write), preload_content=False, timeout=20)) as response,
    ):
        stream = WatchStream(response)
        assert stream.read() == b"first\n"
        assert not stream.has_more()
        more.append(True)
        deadline = time.monotonic() + 20
        while not stream.has_more():
            assert time.monotonic() < deadline
        assert stream.read() == b"second\n"
        assert stream.has_more()  # the end, which is read at once
        assert stream.read() == b""


def test_a_watch_that_breaks_off_is_no_end(serve):
    def write(send: Callable[[bytes], Any]) -> None:
        send(b"5\r\nab")
        raise ConnectionAbortedError

    with PoolManager() as pool, pytest.raises(OSError, match="broke off"):
        read_all(pool, serve(write))


def test_an_answer_without_chunks_is_read_too(serve):
    url = serve(lambda send: send(b"one\ntwo\n"), Content_Length="8")
    with PoolManager() as pool:
        assert b"".join(read_all(pool, url)) == b"one\ntwo\n"


def test_a_refusal_waits_longer_than_events_are_gathered():
    assert GATHER * 2 < LONGEST
