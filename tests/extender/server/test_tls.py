"""TLS on real sockets, with the event loop of Python and with uvloop, which production uses."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives import serialization
from prometheus_client import generate_latest

from extender.server import port as ports
from extender.server import run as serve
from extender.server.app import create_app
from extender.server.service import Service
from extender.server.tls import Tls, TlsError, TlsFiles, load
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.untrusted.limits import TLS_FILE
from tests.certificates import DAY, Authority, Pair, Secret
from tests.contract.conftest import manifest
from tests.extender.builders import make_node
from tests.extender.ports import serving

FILTER = json.dumps({"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]}).encode()
CA, OTHER_CA = Authority(), Authority("other-ca")
SCHEDULER = CA.client("system:kube-scheduler", "spiffe://cluster.local/ns/kube-system/sa/scheduler")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    """With a certificate of the server, and the CA of clients."""
    made = Secret(tmp_path / "secret")
    made.certify(CA.server("stowage"), CA.pem)
    return made


def files_in(secret: Secret) -> TlsFiles:
    return TlsFiles(secret.path("tls_crt"), secret.path("tls_key"), secret.path("ca_crt"))


@dataclass
class Port:
    """The port of the verbs, with TLS."""

    number: int
    service: Service
    tls: Tls
    server: ports.Port
    open: list[Stream] = field(default_factory=list)

    async def connect(self, context: ssl.SSLContext) -> Stream:
        stream = await asyncio.open_connection("127.0.0.1", self.number, ssl=context)
        self.open.append(stream)
        return stream

    async def call(self, context: ssl.SSLContext) -> tuple[int, bytes]:
        """Status and body of a filter request on a new connection."""
        return await exchange(await self.connect(context))

    def metric(self, sample: str) -> float:
        lines = generate_latest(self.service.metrics.registry).decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " "))

    def failed_handshakes(self, reason: str) -> float:
        return self.metric(f'stowage_tls_handshake_failures_total{{reason="{reason}"}}')


def get(context: ssl.SSLContext, port: int, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    """The session of a GET over a blocking socket, which sends alerts as Go's does (asyncio's does not)."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
    ):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: s\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        return connection.session


async def exchange(stream: Stream) -> tuple[int, bytes]:
    """Status and body of a filter request. Raises OSError if the connection ends, with the alert if any."""
    reader, writer = stream
    head = "POST /scheduler/filter HTTP/1.1\r\nHost: stowage\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(FILTER)}\r\n\r\n"
    writer.write(head.encode() + FILTER)
    async with asyncio.timeout(60):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        except asyncio.IncompleteReadError:
            raise ConnectionResetError from None
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)


def client(pair: Pair | None, directory: Path, ca: Authority = CA) -> ssl.SSLContext:
    """A caller that trusts `ca` and shows the certificate, as kube-scheduler with `tlsConfig`."""
    context = ssl.create_default_context(cadata=ca.pem.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    if pair is not None:
        (directory / "client.pem").write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(directory / "client.pem")
    return context


@asynccontextmanager
async def listening(secret: Secret, *names: str) -> AsyncIterator[Port]:
    service = Service(Settings(), SnapshotSource(Snapshot({"a": make_node("a")}), "test"), "0")
    await service.start()
    tls = Tls(files_in(secret), service.metrics.registry, frozenset(names))
    with serve.listen("127.0.0.1", 0) as sock:
        app = create_app(service, debug=False, clients=tls.client_names)
        async with serving(app, sock, tls.verbs, grace=1) as server:
            port = Port(sock.getsockname()[1], service, tls, server)
            try:
                yield port
            finally:
                for _, writer in port.open:
                    writer.transport.abort()


Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on an event loop of this kind."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda scenario: runner.run(scenario())


def test_new_connections_get_a_new_certificate_and_open_ones_go_on(
    run: Run, secret: Secret, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with listening(secret) as port:
            context = client(SCHEDULER, tmp_path)
            open_one = await port.connect(context)
            assert (await exchange(open_one))[0] == 200
            before, expiry = served(open_one), port.metric("stowage_tls_certificate_expiry_timestamp_seconds")
            assert port.tls.reload() is False
            secret.certify(CA.server("stowage", lasts=9 * DAY), CA.pem)
            assert port.tls.reload() is False  # the client CA is the same
            assert json.loads((await exchange(open_one))[1])["NodeNames"] == ["a"]
            new = await port.connect(context)
            assert served(new) != before
            assert new[1].get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            assert new[1].get_extra_info("ssl_object").version() == "TLSv1.3"
            expires = port.metric("stowage_tls_certificate_expiry_timestamp_seconds")
            assert expires == pytest.approx(expiry + 8 * DAY.total_seconds(), abs=300)

    run(scenario)


def served(stream: Stream) -> bytes:
    certificate: bytes = stream[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate


def test_callers_without_a_certificate_of_the_client_ca_are_refused(
    run: Run, secret: Secret, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with listening(secret) as port:
            for pair in (None, OTHER_CA.client("system:kube-scheduler"), CA.server("stowage"), EXPIRED):
                with pytest.raises(ssl.SSLError, match=r"(?i)alert"):  # the client is told why
                    await port.call(client(pair, tmp_path))
            assert port.failed_handshakes("client_certificate") == 4
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(get, client(SCHEDULER, tmp_path, OTHER_CA), port.number, None)
            reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
            port.open.append((reader, writer))
            writer.write(b"POST /scheduler/bind HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            assert port.failed_handshakes("refused_by_client") == 1
            assert port.failed_handshakes("no_tls") == 1
            assert port.failed_handshakes("other") == 0
            assert (await port.call(client(SCHEDULER, tmp_path)))[0] == 200
            assert port.metric('stowage_verb_seconds_count{verb="filter"}') == 1  # no other was read

    run(scenario)


EXPIRED = CA.client("system:kube-scheduler", lasts=-DAY)


def test_only_the_named_clients_may_call(run: Run, secret: Secret, tmp_path: Path) -> None:
    uri = "spiffe://cluster.local/ns/kube-system/sa/scheduler"

    async def scenario() -> None:
        async with listening(secret, "somebody", uri) as port:
            assert (await port.call(client(SCHEDULER, tmp_path)))[0] == 200
            assert (await port.call(client(CA.client("somebody"), tmp_path)))[0] == 200
            status, body = await port.call(client(CA.client("system:node:a"), tmp_path))
            assert (status, json.loads(body)["NodeNames"]) == (200, None)  # kube-scheduler reads only 200
            assert "'system:node:a' is not allowed to call Stowage" in json.loads(body)["Error"]
            assert port.metric('stowage_verb_results_total{result="forbidden",verb="filter"}') == 1

    run(scenario)


def test_a_new_client_ca_ends_connections_of_the_former_one(run: Run, secret: Secret, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening(secret) as port:
            old, new = client(SCHEDULER, tmp_path), client(OTHER_CA.client("new"), tmp_path)
            idle = await port.connect(old)
            assert (await exchange(idle))[0] == 200
            secret.certify(CA.server("stowage"), CA.pem + OTHER_CA.pem)  # both, while callers change
            assert port.tls.reload() is True
            port.server.close_connections()
            with pytest.raises(ConnectionResetError):
                await exchange(idle)
            assert [(await port.call(one))[0] for one in (old, new)] == [200, 200]
            secret.certify(CA.server("stowage"), OTHER_CA.pem)
            assert port.tls.reload() is True
            with pytest.raises(ssl.SSLError, match=r"(?i)unknown ca"):
                await port.call(old)
            assert (await port.call(new))[0] == 200

    run(scenario)


def test_files_are_watched(run: Run, secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.server.tls.CHECK_SECONDS", 0.01)

    async def scenario() -> None:
        async with listening(secret) as port:
            new_ca = asyncio.Event()
            watching = asyncio.create_task(port.tls.watch(new_ca.set))
            secret.write(tls_crt=b"", tls_key=b"", ca_crt=OTHER_CA.pem)
            async with asyncio.timeout(60):
                while not port.tls.problem:
                    await asyncio.sleep(0.01)
                assert not new_ca.is_set()
                secret.certify(CA.server("stowage"), OTHER_CA.pem)
                await new_ca.wait()
            watching.cancel()

    run(scenario)


def test_a_handshake_that_began_before_a_new_client_ca_ends_in_vain(
    run: Run, secret: Secret, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with listening(secret) as port:
            waiting = await asyncio.open_connection("127.0.0.1", port.number)
            port.open.append(waiting)
            async with asyncio.timeout(60):
                while not port.server.handshakes:
                    await asyncio.sleep(0.01)
            secret.certify(CA.server("stowage"), OTHER_CA.pem)
            assert port.tls.reload()
            port.server.close_connections()
            await waiting[1].start_tls(client(SCHEDULER, tmp_path), server_hostname="127.0.0.1")
            with pytest.raises(ConnectionResetError):
                await exchange(waiting)
            assert port.metric('stowage_verb_results_total{result="forbidden",verb="filter"}') == 0
            assert generate_latest(port.service.metrics.registry).count(b"stowage_verb_seconds_count{") == 0

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_outlives_the_client_ca(
    run: Run, secret: Secret, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """A resumed session would show no certificate again."""

    async def scenario() -> None:
        async with listening(secret) as port:
            context = client(SCHEDULER, tmp_path)
            context.maximum_version = version
            session = await asyncio.to_thread(get, context, port.number, None)
            secret.certify(CA.server("stowage"), OTHER_CA.pem)
            assert port.tls.reload()
            with pytest.raises(ssl.SSLError, match=r"(?i)unknown ca"):
                await asyncio.to_thread(get, context, port.number, session)

    run(scenario)


def test_old_connections_are_renewed(
    run: Run, secret: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody calls for long with a certificate that has expired."""
    monkeypatch.setattr(ports, "TLS_CONNECTION_SECONDS", 0)

    async def scenario() -> None:
        async with listening(secret) as port:
            stream = await port.connect(client(SCHEDULER, tmp_path))
            stream[1].write(b"GET /healthz HTTP/1.1\r\nHost: s\r\n\r\n")
            answer = await stream[0].read()
            assert b"connection: close" in answer
            assert answer.endswith(b"ok")

    run(scenario)


def test_handshakes_that_do_not_end_lock_nobody_out(
    run: Run, secret: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "CONNECTIONS", 20)

    async def scenario() -> None:
        async with listening(secret) as port:
            context = client(SCHEDULER, tmp_path)
            scheduler = await port.connect(context)
            assert (await exchange(scheduler))[0] == 200
            for _ in range(50):
                port.open.append(await asyncio.open_connection("127.0.0.1", port.number))
            async with asyncio.timeout(60):
                while len(port.server.handshakes) < 19:
                    await asyncio.sleep(0.01)
            assert (await exchange(scheduler))[0] == 200
            assert (await port.call(context))[0] == 200
            assert len(port.server.handshakes) + len(port.server.server_state.connections) <= 20

    run(scenario)


def test_a_handshake_has_a_limit_of_time(run: Run, secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "HEADER_SECONDS", 0.1)

    async def scenario() -> None:
        async with listening(secret) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
            port.open.append((reader, writer))
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            assert not port.server.handshakes

    run(scenario)


ENCRYPTED = serialization.load_pem_private_key(SCHEDULER.key, None).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)
SERVER = CA.server("stowage")
BAD = {
    "the key of another certificate": (SERVER.certificate, CA.server("stowage").key, CA.pem),
    "half of the certificate": (SERVER.certificate[:200], SERVER.key, CA.pem),
    "half of the key": (SERVER.certificate, SERVER.key[:100], CA.pem),
    "half of the client CA": (SERVER.certificate, SERVER.key, CA.pem[:-40]),
    "half of the second client CA": (SERVER.certificate, SERVER.key, CA.pem + OTHER_CA.pem[:-40]),
    "no client CA": (SERVER.certificate, SERVER.key, b""),
    "an encrypted key": (SERVER.certificate, ENCRYPTED, CA.pem),
    "the certificate of a client": (SCHEDULER.certificate, SCHEDULER.key, CA.pem),
    "bytes": (bytes(range(256)), SERVER.key, CA.pem),
    "a file that is too large": (SERVER.certificate + b"\n" * TLS_FILE, SERVER.key, CA.pem),
    "an expired certificate": (*vars(CA.server("stowage", lasts=-DAY)).values(), CA.pem),
}


@pytest.mark.parametrize("bad", BAD)
def test_files_that_cannot_be_used_change_nothing(
    secret: Secret, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Settings(), SnapshotSource(Snapshot(), "test"), "0")
    tls = Tls(files_in(secret), service.metrics.registry)
    before = tls.verbs(), tls.debug()
    certificate, key, client_ca = BAD[bad]
    secret.write(tls_crt=certificate, tls_key=key, ca_crt=client_ca)
    for _ in range(3):
        assert not tls.reload()
        assert (tls.verbs(), tls.debug()) == before
        assert str(secret.directory) in tls.problem or "encrypted" in tls.problem
        assert b"stowage_tls_reload_failed 1.0" in generate_latest(service.metrics.registry)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    secret.certify(CA.server("stowage"), CA.pem)
    tls.reload()
    assert not tls.problem
    assert tls.verbs() is not before[0]
    assert b"stowage_tls_reload_failed 0.0" in generate_latest(service.metrics.registry)


def test_a_missing_file_is_looked_for_again(secret: Secret) -> None:
    service = Service(Settings(), SnapshotSource(Snapshot(), "test"), "0")
    tls = Tls(files_in(secret), service.metrics.registry)
    data = secret.directory / "..data"
    data.rename(secret.directory / "..away")
    tls.reload()
    assert "No such file" in tls.problem
    (secret.directory / "..away").rename(data)
    tls.reload()
    assert not tls.problem


def test_unchanged_files_are_not_read_again(secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = Tls(files_in(secret), Service(Settings(), SnapshotSource(Snapshot(), "t"), "0").metrics.registry)
    secret.write(tls_crt=b"", tls_key=b"", ca_crt=b"")
    reads = []
    monkeypatch.setattr("extender.server.tls.load", lambda files: reads.append(files) or load(files))
    for _ in range(5):
        tls.reload()
    assert len(reads) == 1


def test_the_start_fails_with_files_that_cannot_be_used(secret: Secret, tmp_path: Path) -> None:
    registry = Service(Settings(), SnapshotSource(Snapshot(), "test"), "0").metrics.registry
    with pytest.raises(TlsError, match=r"cannot read .*nothing: No such file"):
        Tls(TlsFiles(secret.path("tls_crt"), tmp_path / "nothing"), registry)


def test_it_starts_with_an_expired_certificate(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    """A new one will come; until then the other port is there to be asked."""
    secret.certify(CA.server("stowage", lasts=-datetime.timedelta(hours=2)), CA.pem)
    Tls(files_in(secret), Service(Settings(), SnapshotSource(Snapshot(), "t"), "0").metrics.registry)
    assert "expired on" in caplog.text
