"""``stowage explain`` and ``top`` ask the running Stowage: at a URL, and through an API server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.cli.explain_text import render, render_nodes
from extender.explain.pod import explain, explain_each
from extender.k8s.objects import Owner
from extender.server import run as serve
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source import stowage_service
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import manifest
from tests.extender import apiserver
from tests.extender.builders import make_node, make_pod
from tests.extender.cli.test_main import loaded_by
from tests.extender.ports import serving
from tests.extender.services import service

OBJECTS = (
    make_node("a", 8),
    make_node("b", 4),
    make_pod("holds", 2, node_name="b"),
    make_pod("waits", 9),
    make_pod("asked", 1, owner=Owner("Job", "question")),
)
MANIFEST = (
    "kind: Pod\nmetadata: {name: new}\nspec: {containers: [{resources: {limits: {nvidia.com/gpu: 6}}}]}\n"
)
TOKEN = "a-token"
ASKING = "stowage explain: asking the cluster\n"


class Running:
    """A Stowage that serves in a thread of its own, and has answered ``filter`` about the pod ``asked``."""

    def __init__(self, **settings: str) -> None:
        nodes = {one.key: one for one in OBJECTS if one.kind == "Node"}
        pods = {one.key: one for one in OBJECTS if one.kind == "Pod"}
        self.service = Service(Settings(**settings), SnapshotSource(Snapshot(nodes, pods), "test"), "1.2.3")
        self._listening = serve.listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(120)

    async def _run(self) -> None:
        await self.service.start()
        message = {"Pod": manifest("asked"), "Nodes": None, "NodeNames": ["a", "b"]}
        await self.service.answer("filter", json.dumps(message).encode())
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with serving(create_app(self.service), self._listening):
            self._ready.set()
            await self._stopping.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._listening.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    one = Running()
    yield one
    one.stop()


@pytest.fixture
def api(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[apiserver.ApiServer]:
    """An API server with other nodes than the running Stowage, so that one sees who answers."""
    server = apiserver.ApiServer()
    server.put(apiserver.node("other"))
    server.start()
    apiserver.source_of(server, tmp_path)
    server.services.target = running.url
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield server
    server.stop()


@pytest.fixture
def pod_file(tmp_path: Path) -> str:
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    return str(tmp_path / "pod.yaml")


def expected(running: Running, key: str) -> str:
    assert running.service.engine is not None
    state = running.service.engine.state
    return render(explain(state, state.pods[key]), width=100)


def test_plan_and_replay_read_what_the_service_at_a_url_knows(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--url", running.url]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"stowage plan: asking {running.url}\n")
    assert f"Reading {running.url} (2 nodes, 3 pods)\ncluster: 2 nodes with 12 GPUs" in shown.out
    assert cli.main(["replay", "--url", running.url, "-o", "wide"]) == 0
    assert capsys.readouterr().out.startswith("cluster: 2 nodes with 12 GPUs: ")
    assert cli.main(["plan", "--url", f"{running.url}/elsewhere"]) == 2
    assert capsys.readouterr().err.endswith(f"stowage plan: {running.url}/elsewhere answers 404\n")


@pytest.mark.parametrize("name", ["job/question", "job/default/question", "pod/asked"])
def test_a_workload_and_a_kind_are_known_to_the_service(
    running: Running, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert cli.main(["explain", name, "--url", running.url, "--exit-code"]) == 0
    assert capsys.readouterr().out.startswith(expected(running, "default/asked"))
    assert cli.main(["explain", name, "-n", "other", "--url", running.url]) == ("/default/" not in name)


def test_a_url_answers_with_the_explanation_and_the_decisions(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", "default/asked", "--url", running.url]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(expected(running, "default/asked"))
    assert "\nLast decisions (of " in shown.out
    assert shown.out.rstrip().endswith("filter  2 of 2 nodes fit")
    assert shown.err == f"stowage explain: asking {running.url}\nstowage explain: answered by {running.url}\n"


def test_json_has_the_explanation_and_the_decisions(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", "asked", "--output", "json", "--url", running.url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pod"], found["fits"]) == ("default/asked", 2)
    assert [one["verb"] for one in found["decisions"]] == ["filter"]


def test_each_node(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert running.service.engine is not None
    state = running.service.engine.state
    for more, nodes in ((["--all"], ["a", "b"]), (["--node", "b"], ["b"])):
        assert cli.main(["explain", "waits", *more, "--url", running.url]) == 0
        each = explain_each(state, state.pods["default/waits"], nodes)
        assert capsys.readouterr().out.rstrip() == render_nodes("default/waits", each)


def test_top_shows_what_the_service_knows(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert running.service.engine is not None
    assert cli.main(["top", "-o", "json", "--url", running.url]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = asyncio.run(running.service.engine.inspector.overview(20)).nodes
    assert [line["node"] for line in found["nodes"]] == [line.node for line in lines]
    assert cli.main(["top", "--waiting", "100000", "--url", running.url]) == 0
    assert "2 pods pending" in capsys.readouterr().out


def test_the_service_is_found_through_the_api_server(
    running: Running, api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str], pod_file: str
) -> None:
    api.services.items = [service("fake", "tenant"), service()]
    assert cli.main(["explain", pod_file]) == 0
    shown = capsys.readouterr()
    assert "default/new requests 6 nvidia.com/gpu" in shown.out
    assert "It fits on 1 of 2 nodes" in shown.out
    assert shown.err == ASKING + "stowage explain: answered by service stowage-system/stowage-debug\n"
    assert cli.main(["top"]) == 0
    assert "2 nodes with 12 GPUs" in capsys.readouterr().out


def test_a_service_that_says_https_is_asked_by_https(api: apiserver.ApiServer, running: Running) -> None:
    api.services.items = [service()]
    api.services.items[0]["spec"]["ports"][0]["appProtocol"] = "https"
    assert cli.main(["top"]) == 0
    assert any("/services/https:stowage-debug:debug/proxy/" in path for _, path in api.services.seen)


@pytest.mark.parametrize("forbidden", [{""}, {"", "stowage-system"}])
def test_who_may_list_few_services_finds_it_as_well(
    api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str], pod_file: str, forbidden: set[str]
) -> None:
    api.services.items, api.services.forbidden = [service()], forbidden
    assert cli.main(["explain", pod_file]) == 0
    assert "answered by service stowage-system/stowage-debug" in capsys.readouterr().err


FALLBACKS = {
    "no service": ([], [], "no Service in the cluster has the label stowage.dev/debug=true"),
    "none there": (
        [service()],
        ["--stowage-namespace", "gpu"],
        "no Service in namespace 'gpu' has the label stowage.dev/debug=true",
    ),
    "several": (
        [service(namespace="a"), service(namespace="b")],
        [],
        "several Services have the label stowage.dev/debug=true (a/stowage-debug, b/stowage-debug): "
        "use --stowage-namespace",
    ),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_without_a_service_the_cluster_is_read_and_one_line_says_so(
    api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str], pod_file: str, case: str
) -> None:
    api.services.items, arguments, why = FALLBACKS[case]
    assert cli.main(["explain", pod_file, *arguments]) == 0
    shown = capsys.readouterr()
    lost = "without decisions, expected start and learned demand"
    assert shown.err == f"{ASKING}stowage explain: reading the cluster directly, {lost}, because {why}\n"
    assert "of 1 node" in shown.out


def test_an_api_server_under_a_name_that_stowage_does_not_know(
    api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its proxy passes the name on."""
    api.services.items, api.services.host = [service()], "api.example.com:6443"
    assert cli.main(["explain", "default/asked"]) == 0
    assert "answered by service stowage-system/stowage-debug" in capsys.readouterr().err
    proxied = [path for _, path in api.services.seen if "/proxy/" in path]
    assert len(proxied) == 2 * len(set(proxied))


def test_a_service_that_does_not_answer(
    api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str], pod_file: str
) -> None:
    api.services.items, api.services.target = [service()], ""
    assert cli.main(["explain", pod_file]) == 0
    shown = capsys.readouterr()
    assert "because service stowage-system/stowage-debug: 503 no endpoints available" in shown.err
    assert len(api.services.seen) == 2  # one attempt


@pytest.mark.parametrize("more", [["--local"], ["--config", "settings.yaml"]])
def test_it_is_not_looked_for_where_that_is_not_wanted(
    api: apiserver.ApiServer,
    capsys: pytest.CaptureFixture[str],
    pod_file: str,
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text("shortlist: 1\n")
    api.services.items = [service()]
    assert cli.main(["explain", pod_file, *more]) == 0
    assert capsys.readouterr().err == "stowage explain: reading the cluster\n"
    assert api.services.seen == []


def test_what_stowage_refuses_is_an_error_and_not_read_again(
    api: apiserver.ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    api.services.items = [service()]
    assert cli.main(["explain", "default/gone"]) == 1
    assert capsys.readouterr().err == ASKING + "stowage explain: pod default/gone is not known\n"
    assert cli.main(["explain", "gone"]) == 1
    assert "gone is not a file, and the cluster has no such pod" in capsys.readouterr().err


def test_nobody_at_the_url_is_one_clear_error(capsys: pytest.CaptureFixture[str], pod_file: str) -> None:
    with serve.listen("127.0.0.1", 0) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for command in (["explain", pod_file], ["top"]):
        assert cli.main([*command, "--url", url]) == 1
        error = capsys.readouterr().err
        assert error.startswith(
            f"stowage {command[0]}: asking {url}\nstowage {command[0]}: {url} does not answer: "
        )
        assert "Connection refused" in error


def test_an_answer_of_a_service_takes_no_compiler(running: Running) -> None:
    commands = ["top"], ["explain", "default/waits"], ["explain", "default/waits", "--all"]
    loaded = loaded_by(*([*command, "--url", running.url] for command in commands))
    assert [{"numba", "numpy", "kubernetes"} & one for one in loaded] == [set()] * len(commands)


@pytest.fixture
def guarded(api: apiserver.ApiServer, tmp_path: Path) -> Iterator[Running]:
    """A Stowage that requires the token in a file, or one of those that the API server creates."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    one = Running(debug_token_file=str(file))
    api.services.items, api.services.target = [service()], one.url
    yield one
    one.stop()


@pytest.fixture
def reviewed(guarded: Running, api: apiserver.ApiServer, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The digests of the tokens that have expired; ``guarded`` accepts all others that were created."""
    expired: set[str] = set()
    auth = guarded.service.debug_auth
    assert auth is not None

    def accepts(digest: bytes) -> bool:
        known = {hashlib.sha256(token.encode()).digest() for token in set(api.services.tokens) - expired}
        return digest in known

    monkeypatch.setattr(auth._file, "matches", accepts)
    return expired


def test_a_given_token_goes_only_where_it_belongs(
    api: apiserver.ApiServer,
    guarded: Running,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pod_file: str,
) -> None:
    file = str(tmp_path / "token")
    assert cli.main(["explain", pod_file, "--token-file", file]) == 0
    assert "answered by service stowage-system/stowage-debug" in capsys.readouterr().err
    assert cli.main(["explain", pod_file, "--url", guarded.url, "--token-file", file]) == 0
    assert "answered by http://" in capsys.readouterr().err
    api.services.items = [service("fake", "tenant")]
    assert cli.main(["explain", pod_file, "--token-file", file]) == 0
    assert "no Service in namespace 'stowage-system'" in capsys.readouterr().err
    assert {token for _, token in api.services.sent} == {TOKEN}
    assert not any("tenant" in path for _, path in api.services.seen)


def test_each_command_asks_for_a_token_of_its_own_and_keeps_it_nowhere(
    api: apiserver.ApiServer,
    reviewed: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    pod_file: str,
) -> None:
    api.services.viewers = {"stowage-system/stowage-viewer"}
    with caplog.at_level(logging.DEBUG):
        for command in (["explain", pod_file], ["top"], ["explain", "default/asked"]):
            assert cli.main([*command]) == 0
            shown = capsys.readouterr()
            assert "answered by service stowage-system/stowage-debug" in shown.err
            assert "secret-" not in shown.out + shown.err
    assert len(api.services.tokens) == 3
    assert [token for _, token in api.services.sent] == api.services.tokens
    assert "secret-" not in caplog.text
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if b"secret-" in file.read_bytes()]


def test_a_token_that_expires_is_asked_for_anew(
    api: apiserver.ApiServer, reviewed: set[str], tmp_path: Path
) -> None:
    api.services.viewers = {"stowage-system/stowage-viewer"}
    source = apiserver.source_of(api, tmp_path)
    stowage = stowage_service.behind_service(source.rest, None, "")
    for _ in range(2):
        assert stowage.get("/debug/overview")["overview"]["nodes"]
    assert len(api.services.tokens) == 1
    reviewed |= {*api.services.tokens}
    assert stowage.get("/debug/overview")["overview"]["nodes"]
    assert len(api.services.tokens) == 2


@pytest.mark.parametrize("elsewhere", ["tenant", "stowage-systen"])
def test_no_token_is_asked_for_or_sent_to_a_service_in_another_namespace(
    api: apiserver.ApiServer,
    reviewed: set[str],
    capsys: pytest.CaptureFixture[str],
    pod_file: str,
    elsewhere: str,
) -> None:
    api.services.items = [service(namespace=elsewhere)]
    api.services.viewers = {f"{namespace}/stowage-viewer" for namespace in ("stowage-system", elsewhere)}
    assert cli.main(["explain", pod_file]) == 0
    assert "answers 401 a bearer token is needed" in capsys.readouterr().err
    assert (api.services.tokens, api.services.sent) == ([], [])
    assert cli.main(["explain", pod_file, "--stowage-namespace", elsewhere]) == 0  # the user names it
    assert "answered by" in capsys.readouterr().err


def test_a_viewer_of_one_namespace_asks_with_its_account(
    api: apiserver.ApiServer, reviewed: set[str], capsys: pytest.CaptureFixture[str], pod_file: str
) -> None:
    api.services.viewers = {"stowage-system/stowage-viewer-default"}
    for command in (
        ["explain", "default/asked"],
        ["explain", pod_file, "-n", "default"],
        ["top", "-n", "default"],
    ):
        api.services.seen.clear()
        assert cli.main(command) == 0
        assert "answered by service stowage-system/stowage-debug" in capsys.readouterr().err
        assert "/proxy/namespaces/default/debug/" in api.services.seen[-1][1]
    for command in (["explain", pod_file], ["explain", "other/asked"], ["top", "-n", "other"], ["top"]):
        cli.main(command)
        assert 'serviceaccounts "stowage-viewer" is forbidden' in capsys.readouterr().err


def test_who_may_create_no_token_is_told_so_first(
    api: apiserver.ApiServer, reviewed: set[str], capsys: pytest.CaptureFixture[str], pod_file: str
) -> None:
    assert cli.main(["explain", pod_file]) == 0
    assert capsys.readouterr().err == (
        f"{ASKING}stowage explain: reading the cluster directly, without decisions, expected start and "
        "learned demand, because service stowage-system/stowage-debug requires a token: 403 serviceaccounts "
        '"stowage-viewer" is forbidden: User "test" cannot create resource "x"; needed: the Role '
        "stowage-kubectl of namespace stowage-system (viewers in the chart), -n NAMESPACE for viewers of one "
        "namespace, or --token-file\n"
    )
    assert api.services.sent == []


def test_an_empty_token_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pod_file: str
) -> None:
    (tmp_path / "token").write_text("")
    token = str(tmp_path / "token")
    assert cli.main(["explain", pod_file, "--url", "http://127.0.0.1:1", "--token-file", token]) == 1
    assert "has no token" in capsys.readouterr().err
