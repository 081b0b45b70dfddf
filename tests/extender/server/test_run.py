"""``stowage serve`` as a process: sockets, signals and exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.cli import main as cli
from extender.data import CLUSTER
from extender.server import port
from extender.server import run as serve
from tests.certificates import Authority, Secret

READY_SECONDS = 120
FILTER = {
    "Pod": {"metadata": {"uid": "u"}, "spec": {"containers": [{}]}},
    "Nodes": None,
    "NodeNames": ["h100-01"],
}


class Process:
    """``stowage serve`` with these arguments; ``urls`` are where it says that it listens."""

    def __init__(self, *arguments: str, python: Sequence[str] = (), **settings: str) -> None:
        """``python``: other arguments of the interpreter than those that run the command line."""
        python = python or ("-m", "extender.cli.main")
        command = [sys.executable, *python, "serve", "--port", "0", *arguments]
        self._log: list[str] = []
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=_environment(**settings)
        )
        listens = re.compile(r"listening for .* on (https?://[^\"]+)")
        self.urls = [self.wait_for(listens)[1] for _ in range(1 + ("--debug-port" in arguments))]

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, verify: ssl.SSLContext | bool = True) -> None:
        end = time.monotonic() + READY_SECONDS
        with httpx.Client(verify=verify) as client:  # a new one for each question would read all known CAs
            while client.get(f"{self.urls[0]}/readyz").status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        return self._process.wait(READY_SECONDS)

    def log(self) -> list[dict[str, Any]]:
        """Its log lines; call it after the end of the process."""
        assert self._process.stderr is not None
        return [json.loads(line) for line in [*self._log, *self._process.stderr.read().splitlines()]]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def wait_for(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """The next match of a line of its log."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it does not log {pattern}: {self._log}")


def _environment(**settings: str) -> dict[str, str]:
    ours = {f"STOWAGE_{key.upper()}": value for key, value in settings.items()}
    return {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")} | ours


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def starting(*arguments: str, **settings: Any) -> Process:
        processes.append(Process(*arguments, **settings))
        return processes[-1]

    yield starting
    for process in processes:
        process.end()


def warns_of_binds(log: list[dict[str, Any]]) -> bool:
    return any("can bind pods" in line["msg"] for line in log if line["level"] == "warning")


def open_request(url: str, body: bytes) -> socket.socket:
    """A connection with a filter request whose last byte is missing."""
    address = httpx.URL(url)
    connection = socket.create_connection((address.host, address.port or 80), timeout=30)
    head = f"POST /scheduler/filter HTTP/1.1\r\nHost: stowage\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:-1])
    return connection


HANGS = """
import sys, time
import extender.explain.history as history
from extender.cli.main import main
history._open = lambda *_: print('{"msg": "hangs"}', file=sys.stderr, flush=True) or time.sleep(1e6)
sys.exit(main())
"""


def test_sigterm_finishes_running_requests_and_exits_with_0(start: Start, tmp_path: Path) -> None:
    """Also where the disk of the history hangs."""
    settings = {"history_path": str(tmp_path), "drain_seconds": "1"}
    process = start("--snapshot", str(CLUSTER), python=("-c", HANGS), **settings)
    body = json.dumps(FILTER).encode()
    process.wait_until_ready()
    process.wait_for("hangs")
    with httpx.Client(base_url=process.urls[0]) as client, open_request(process.urls[0], body) as connection:
        assert client.post("/scheduler/filter", json=FILTER).json()["NodeNames"] == ["h100-01"]
        process.signal(signal.SIGTERM)
        while client.get("/readyz").status_code == 200:  # the signal is on its way
            time.sleep(0.01)
        assert "[-]shutdown failed: draining\n" in client.get("/readyz").text
        assert client.post("/scheduler/filter", json=FILTER).json()["NodeNames"] == ["h100-01"]
        with suppress(httpx.ConnectError):  # as soon as the sockets are closed
            while True:
                httpx.get(f"{process.urls[0]}/healthz", verify=False)
                time.sleep(0.05)
        connection.sendall(body[-1:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
    assert process.exit_code() == 0
    messages = [line["msg"] for line in process.log()]
    assert any(message.startswith("ready: ") for message in messages)
    assert messages[-1] == "stopping after SIGTERM"


def test_it_can_be_stopped_during_its_start(start: Start) -> None:
    """By then it has warned that anyone who can reach its port can bind pods, without a client CA."""
    process = start("--snapshot", str(CLUSTER), "--host", "0.0.0.0", drain_seconds="60", bind="true")
    assert httpx.get(f"{process.urls[0]}/healthz").status_code == 200
    process.signal(signal.SIGINT)
    assert process.exit_code() == 0
    assert warns_of_binds(process.log())


def test_metrics_can_be_scraped_while_the_verbs_stay_on_loopback(start: Start, tmp_path: Path) -> None:
    """The log has a line for each decision while that is wanted, without anything that the pod contains."""
    (tmp_path / "token").write_text("the-token")
    hosts = ("--host", "127.0.0.1", "--debug-host", "127.0.0.2")
    settings = {"bind": "true", "drain_seconds": "60", "debug_token_file": str(tmp_path / "token")}
    process = start("--example", *hosts, "--debug-port", "0", "--log-format", "json", "-v", "2", **settings)
    process.wait_until_ready()
    main, debug = process.urls
    assert (httpx.URL(main).host, httpx.URL(debug).host) == ("127.0.0.1", "127.0.0.2")
    secret = {"env": [{"name": "KEY", "value": "hunter2"}]}
    with httpx.Client(headers={"authorization": "Bearer the-token"}) as client:

        def ask(name: str) -> None:
            metadata = {"name": name, "namespace": "team", "uid": name, "annotations": {"note": "hunter2"}}
            pod = {"metadata": metadata, "spec": {"containers": [secret]}}
            client.post(f"{main}/scheduler/filter", json=FILTER | {"Pod": pod}).raise_for_status()

        def set_level(number: str, **headers: str) -> httpx.Response:
            return client.put(f"{debug}/debug/flags/v", content=number, headers=headers)

        assert client.get(f"{main}/version").json()["source"].startswith("the bundled example (")
        assert client.get(f"{main}/metrics").status_code == 404
        assert "stowage_nodes" in client.get(f"{debug}/metrics").text
        assert client.get(f"{debug}/healthz").status_code == 200
        assert client.post(f"{debug}/scheduler/filter", json=FILTER).status_code == 404
        with pytest.raises(httpx.ConnectError):
            client.get(f"http://127.0.0.2:{httpx.URL(main).port}/healthz")
        ask("first")
        assert set_level("0", authorization="Bearer wrong").status_code == 401
        assert set_level("loud").status_code == 400
        assert set_level("0").text == "the log level is now info\n"
        ask("second")
        assert set_level("3").text == "the log level is now decision\n"
        ask("third")
        process.signal(signal.SIGTERM)
        while client.get(f"{main}/readyz").status_code == 200:
            time.sleep(0.01)
    process.signal(signal.SIGTERM)  # impatient: no draining
    assert process.exit_code() == 0
    lines = process.log()
    assert not warns_of_binds(lines)
    decisions = [line for line in lines if line["level"] == "decision"]
    ms = [line.pop("ms") for line in decisions]
    assert all(isinstance(one, float) and 0 < one < 10_000 for one in ms)
    assert [{key: value for key, value in line.items() if key != "ts"} for line in decisions] == [
        {
            "level": "decision",
            "logger": "server.engine",
            "msg": "1 of 1 nodes fit",
            "verb": "filter",
            "pod": f"team/{name}",
            "node": "h100-01",
            "result": "fits",
        }
        for name in ("first", "third")
    ]
    assert "hunter2" not in str(lines)
    assert "the-token" not in str(lines)


def test_tls_on_both_ports_and_client_certificates_on_one(start: Start, tmp_path: Path) -> None:
    ca = Authority()
    secret = Secret(tmp_path)
    secret.certify(ca.server(), ca.pem)
    files = {"--tls-cert": "tls_crt", "--tls-key": "tls_key", "--client-ca": "ca_crt"}
    arguments = [word for flag, name in files.items() for word in (flag, str(secret.path(name)))]
    process = start("--example", "--debug-port", "0", *arguments)
    main, debug = process.urls
    trusts = ssl.create_default_context(cadata=ca.pem.decode())
    assert httpx.get(f"{debug}/healthz", verify=trusts).text == "ok"
    assert "stowage_tls_reload_failed 0.0" in httpx.get(f"{debug}/metrics", verify=trusts).text
    with pytest.raises(httpx.TransportError, match="certificate required"):
        httpx.get(f"{main}/healthz", verify=trusts)
    client = ca.client("system:kube-scheduler")
    (tmp_path / "client.pem").write_bytes(client.certificate + client.key)
    trusts.load_cert_chain(tmp_path / "client.pem")
    assert httpx.get(f"{main}/healthz", verify=trusts).text == "ok"
    process.signal(signal.SIGINT)
    assert process.exit_code() == 0


def test_idle_connections_are_kept_for_longer_than_by_go() -> None:
    """Go's default transport closes idle connections after 90 s, and does not retry a POST."""
    assert port.KEEP_ALIVE > 90


def test_a_port_in_use_is_a_clear_error() -> None:
    with (
        serve.listen("127.0.0.1", 0) as first,
        pytest.raises(
            serve.PortInUse, match=r"cannot listen on 127\.0\.0\.1 port \d+: Address already in use"
        ),
    ):
        serve.listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1"])
def test_an_invalid_address_is_a_clear_error(host: str) -> None:
    with pytest.raises(serve.PortInUse, match=f"cannot listen on {re.escape(host)} port 0"):
        serve.listen(host, 0)


def test_ipv6_is_served_if_the_machine_has_it() -> None:
    if not socket.has_ipv6:
        return
    with serve.listen("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


def written(history: Path) -> bytes:
    return b"".join(file.read_bytes() for file in history.iterdir())


def test_decisions_and_the_past_outlive_a_kill(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explain(*options: str) -> str:
        assert cli.main(["explain", "team/train", "--url", second.urls[0], *options]) == 0
        return capsys.readouterr().out

    settings = {"history_path": str(tmp_path / "history"), "drain_seconds": "0"}
    huge = {"requests": {"nvidia.com/gpu": "64"}}
    spec = {"containers": [{"resources": huge}]}
    pod = {"metadata": {"uid": "u", "name": "train", "namespace": "team"}, "spec": spec}
    first = start("--example", **settings)
    first.wait_until_ready()
    asked = {**FILTER, "Pod": pod}
    assert not httpx.post(f"{first.urls[0]}/scheduler/filter", json=asked).json()["NodeNames"]
    before = httpx.get(f"{first.urls[0]}/debug/pods/team/train").json()["decisions"]
    assert before[0]["explanation"]["refusals"][0]["reason"] == "node has fewer GPUs than requested"
    while not (b"team/train" in (text := written(tmp_path / "history")) and b'"sample"' in text):
        time.sleep(0.1)
    first.signal(signal.SIGKILL)
    first.exit_code()
    second = start("--example", **settings)
    second.wait_until_ready()
    found = httpx.get(f"{second.urls[0]}/debug/pods/team/train").json()
    assert (found["note"], found["decisions"]) == ("team/train does not exist now", before)
    query = {"before": before[0]["at"]}
    listed = httpx.get(f"{second.urls[0]}/debug/decisions", params=query).json()["decisions"]
    assert listed == []
    query["before"] = "2100-01-01T00:00:00"
    listed = httpx.get(f"{second.urls[0]}/debug/decisions", params=query).json()["decisions"]
    assert [one["decision"] for one in listed] == before
    with httpx.Client() as client:
        while len(client.get(f"{second.urls[0]}/debug/fleet/history").json()["at"]) < 2:
            time.sleep(0.1)
    told = explain("--before", "2100-01-01T00:00")
    assert told == explain("--before", "0s")
    assert "0 of 1 nodes fit (1: node has fewer GPUs than requested)" in told
    assert "team/train does not exist now" in explain()
