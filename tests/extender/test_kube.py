"""The live source against a real HTTP server that lists, watches, forgets, breaks off and comes back."""

from __future__ import annotations

import json
import logging
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException

from extender.follow import Backoff
from extender.kube import KubeSource, Timeouts, from_kubeconfig, in_cluster
from extender.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source import BindConflict, BindError, PodNotFound, Unavailable, Unreachable
from tests.extender.apiserver import ApiServer

QUICK = Timeouts(connect=1, bind=1, page=1, silence=0.3, stop=5)
PATIENT = Timeouts(connect=1, bind=1, page=1, silence=60, stop=5)


class Mirror:
    """What the events add up to, and how often everything was listed."""

    def __init__(self) -> None:
        self.objects: dict[str, Node | Pod] = {}
        self.lists = {"Node": 0, "Pod": 0}
        self.failures = 0

    def apply(self, events: Sequence[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the state is not ready")
        for event in events:
            match event:
                case Upserted(obj):
                    self.objects[obj.key] = obj
                case Deleted(_, key):
                    self.objects.pop(key, None)
                case Listed(kind, keys):
                    gone = [key for key, obj in self.objects.items() if obj.kind == kind and key not in keys]
                    for key in gone:
                        del self.objects[key]
                    self.lists[kind] += 1


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}"}}


def pod(name: str, node_name: str = "", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"u-{name}"},
        "spec": {"nodeName": node_name},
        **more,
    }


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "SHORTEST", 0.01)
    monkeypatch.setattr(Backoff, "LONGEST", 0.05)
    monkeypatch.setattr(Backoff, "BRIEF", 0.0)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def follow(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., tuple[KubeSource, Mirror]]]:
    sources = []

    def start(timeouts: Timeouts = PATIENT, mirror: Mirror | None = None) -> tuple[KubeSource, Mirror]:
        source, mirror = source_of(api, tmp_path, timeouts=timeouts), mirror or Mirror()
        sources.append(source)
        source.start(mirror.apply)
        return source, mirror

    yield start
    for source in sources:
        source.stop()


def source_of(
    api: ApiServer, directory: Path, user: dict[str, Any] | None = None, timeouts: Timeouts = PATIENT
) -> KubeSource:
    config = {
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "test", "user": user or {"token": "secret"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return from_kubeconfig(path, timeouts)


def caught_up(api: ApiServer, mirror: Mirror) -> bool:
    objects = api.nodes.objects | api.pods.objects
    bound = {key: obj.get("spec", {}).get("nodeName", "") for key, obj in objects.items()}
    return mirror.objects.keys() == bound.keys() and all(
        obj.node_name == bound[key] for key, obj in mirror.objects.items() if isinstance(obj, Pod)
    )


def queries(api: ApiServer, path: str = "/api/v1/pods") -> list[dict[str, str]]:
    return [query for at, query in api.requests if at == path]


def test_everything_is_listed_in_pages_and_then_watched(api: ApiServer, follow: Any) -> None:
    for number in range(5):
        api.put(node(f"n{number}"))
        api.put(pod(f"p{number}"))
    source, mirror = follow()
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    assert caught_up(api, mirror)
    api.put(pod("p0", "n1"))
    api.put(node("n9"))
    api.delete("ml/p4")
    api.delete("n3")
    eventually(lambda: caught_up(api, mirror))
    assert mirror.lists == {"Node": 1, "Pod": 1}
    assert [query.get("limit") for query in queries(api)] == ["500", "500", "500", None]
    assert api.tokens == {"Bearer secret"}
    assert source.describe() == f"kubeconfig {source._name.split()[1]} at {api.url}"


def test_pods_of_every_scheduler_and_phase_are_delivered(api: ApiServer, follow: Any) -> None:
    api.put(pod("done", "n1", status={"phase": "Succeeded"}))
    other = pod("other")
    other["spec"]["schedulerName"] = "volcano"
    api.put(other)
    _, mirror = follow()
    eventually(lambda: len(mirror.objects) == 2)
    assert mirror.objects["ml/done"].terminated
    assert mirror.objects["ml/other"].scheduler_name == "volcano"


@pytest.mark.parametrize("fault", ["cut", "hangup", "close", "500", "429", "401"])
def test_a_watch_that_breaks_goes_on_where_it_was(api: ApiServer, follow: Any, fault: str) -> None:
    api.put(pod("p0"))
    api.script["/api/v1/pods"].extend(["", fault, fault])
    _, mirror = follow()
    eventually(lambda: len(queries(api)) == 4)
    version = api.pods.version
    assert [query.get("resourceVersion") for query in queries(api)] == [None, *[str(version)] * 3]
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))
    assert mirror.lists["Pod"] == 1


@pytest.mark.parametrize("fault", ["410", "gone", "garbage"])
def test_a_watch_that_is_lost_means_a_new_list(api: ApiServer, follow: Any, fault: str) -> None:
    api.put(pod("p0"))
    api.script["/api/v1/pods"].extend(["", fault])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 2)
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


@pytest.mark.parametrize("fault", ["cut", "hangup", "garbage", "500", "403"])
def test_a_list_that_breaks_goes_on_with_the_page_that_broke(api: ApiServer, follow: Any, fault: str) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    api.script["/api/v1/pods"].extend(["", fault, fault])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    assert caught_up(api, mirror)
    assert len([query for query in queries(api) if query.get("limit") and "continue" not in query]) == 1


def test_what_went_while_nobody_watched_is_gone_after_the_new_list(api: ApiServer, follow: Any) -> None:
    for number in range(3):
        api.put(pod(f"p{number}"))
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.stop()
    api.delete("ml/p1")
    api.put(pod("p2", "n1"))
    api.pods.compact()
    api.start()
    eventually(lambda: caught_up(api, mirror))
    assert mirror.lists == {"Node": 1, "Pod": 2}


def test_a_restarted_server_that_remembers_is_watched_on(api: ApiServer, follow: Any) -> None:
    api.put(pod("p0"))
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.stop()
    api.put(pod("p1"))
    time.sleep(0.1)  # some tries find nobody there
    assert caught_up(api, mirror) is False
    assert mirror.objects.keys() == {"ml/p0"}  # the last known state stays
    api.start()
    eventually(lambda: caught_up(api, mirror))
    assert mirror.lists["Pod"] == 1


@pytest.mark.parametrize("script", [["silent"], ["", "silent"]], ids=["list", "watch"])
def test_a_half_open_connection_is_given_up(api: ApiServer, follow: Any, script: list[str]) -> None:
    api.put(pod("p0"))
    api.script["/api/v1/pods"].extend(script)
    _, mirror = follow(QUICK)
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


def test_an_expired_continue_token_does_not_loop(api: ApiServer, follow: Any) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    api.script["/api/v1/pods"].extend(["", "410"])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    assert caught_up(api, mirror)
    assert [sorted(query) for query in queries(api)][:3] == [["limit"], ["continue", "limit"], []]


def test_events_that_the_state_could_not_take_come_again(
    api: ApiServer, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod("p0"))
    mirror = Mirror()
    mirror.failures = 3
    follow(mirror=mirror)
    eventually(lambda: "ml/p0" in mirror.objects)
    assert "the state is not ready" in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_mirror_catches_up(api: ApiServer, follow: Any, seed: int) -> None:
    rng = random.Random(seed)
    _, mirror = follow(QUICK)
    faults = ["", "410", "500", "hangup", "cut", "gone", "garbage", "close"]
    for _ in range(60):
        key = f"p{rng.randrange(8)}"
        if rng.random() < 0.3 and f"ml/{key}" in api.pods.objects:
            api.delete(f"ml/{key}")
        else:
            api.put(pod(key, rng.choice(["", "n1", "n2"])))
        match rng.randrange(8):
            case 0:
                api.pods.compact()
            case 1:
                api.hang_up()
            case 2 | 3:
                api.script["/api/v1/pods"].append(rng.choice(faults))
        time.sleep(0.005)
    eventually(lambda: caught_up(api, mirror))


def test_staleness_is_endless_before_the_first_contact(api: ApiServer, follow: Any, tmp_path: Path) -> None:
    assert source_of(api, tmp_path).staleness() == {"Node": math.inf, "Pod": math.inf}
    source, mirror = follow()
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    assert all(seconds < 20 for seconds in source.staleness().values())
    api.stop()
    before = source.staleness()["Pod"]
    eventually(lambda: source.staleness()["Pod"] > before + 0.1)
    api.start()


def test_stop_ends_the_threads_in_the_middle_of_a_watch(api: ApiServer, follow: Any) -> None:
    source, mirror = follow()
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    eventually(lambda: len(api.requests) == 4)
    source.stop()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("follow-")] == []
    api.put(pod("late"))
    time.sleep(0.05)
    assert mirror.objects == {}
    source.stop()


def test_stop_ends_the_threads_while_they_wait_to_try_again(
    api: ApiServer, follow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Backoff, "SHORTEST", 1000.0)
    monkeypatch.setattr(Backoff, "LONGEST", 2000.0)
    caplog.set_level(logging.WARNING)
    for script in api.script.values():
        script.append("503")
    source, _ = follow()
    eventually(lambda: len(caplog.records) == 2)
    assert "503 scripted, next try in" in caplog.text
    source.stop()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("follow-")] == []


async def test_bind_sets_node_and_annotations_of_this_very_pod(api: ApiServer, tmp_path: Path) -> None:
    api.put(pod("p0"))
    source = source_of(api, tmp_path)
    await source.bind(Pod("ml", "p0", "u-p0"), "n1", {"stowage.dev/gpu": "3"})
    bound = api.pods.objects["ml/p0"]
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"stowage.dev/gpu": "3"}
    with pytest.raises(BindConflict, match="already assigned"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n2")


async def test_bind_refused(api: ApiServer, tmp_path: Path) -> None:
    api.put(pod("p0"))
    source = source_of(api, tmp_path)
    with pytest.raises(BindConflict, match="UID in precondition"):
        await source.bind(Pod("ml", "p0", "another"), "n1")
    with pytest.raises(PodNotFound, match='pods "p1" not found'):
        await source.bind(Pod("ml", "p1", "u-p1"), "n1")
    api.refusal = (403, "pods/binding is forbidden")
    with pytest.raises(BindError, match="forbidden") as caught:
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")
    assert not isinstance(caught.value, BindConflict | PodNotFound | Unreachable)
    api.refusal = (503, "etcd is away")
    with pytest.raises(Unreachable, match="etcd is away"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")


async def test_bind_without_a_server(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    api.stop()
    with pytest.raises(Unreachable, match="did not answer"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")
    api.start()


async def test_binds_share_a_connection(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    for number in range(5):
        api.put(pod(f"p{number}"))
        await source.bind(Pod("ml", f"p{number}", f"u-p{number}"), "n1")
    assert api.connections == 1


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"major": "1", "minor": "36+"}, "1.36"),
        ({"major": "1", "minor": "9"}, "1.9"),
        ({}, ""),
        ({"major": 1, "minor": None}, ""),
    ],
)
def test_the_version_of_the_server(
    api: ApiServer, tmp_path: Path, answer: dict[str, Any], version: str
) -> None:
    api.version = answer
    assert source_of(api, tmp_path).server_version() == version


def test_the_version_of_a_server_that_is_away(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    api.stop()
    assert source.server_version() == ""
    api.start()


def test_a_token_may_come_from_a_plugin(api: ApiServer, tmp_path: Path) -> None:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    text = json.dumps(credential | {"status": {"token": "from-a-plugin"}})
    command = {"command": sys.executable, "args": ["-c", f"print({text!r})"]}
    plugin = {"apiVersion": credential["apiVersion"], "interactiveMode": "Never", **command}
    assert source_of(api, tmp_path, {"exec": plugin}).server_version() == "1.36"
    assert api.tokens == {"Bearer from-a-plugin"}


async def test_a_token_that_cannot_be_renewed_is_a_server_out_of_reach(api: ApiServer) -> None:
    def renew(_: object) -> None:
        raise ConfigException("Token file exists but empty.")

    configuration = Configuration(host=api.url, api_key={"BearerToken": "old"})
    configuration.refresh_api_key_hook = renew  # type: ignore[assignment]
    source = KubeSource(ApiClient(configuration), "test")
    assert source.server_version() == ""
    with pytest.raises(Unreachable, match="Token file exists but empty"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")


@pytest.mark.parametrize("content", ["", "a: [", "just words", "kind: Config", "current-context: nowhere"])
def test_a_kubeconfig_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(Unavailable, match=f"kubeconfig {path}: "):
        from_kubeconfig(path)


def test_a_kubeconfig_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"kubeconfig .*missing: "):
        from_kubeconfig(tmp_path / "missing")


def test_in_and_outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert in_cluster() is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(Unavailable, match="service account of the pod: "):
        in_cluster()
