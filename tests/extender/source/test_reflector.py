"""Reflectors against a real HTTP server that loses versions, breaks connections and restarts."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source.apiserver import KubeSource
from extender.source.reflector import Backoff
from extender.source.rest import Timeouts
from extender.source.watched_kinds import WATCHED_KINDS
from tests.examples import examples
from tests.extender.apiserver import CARDS, DEVICES, PATIENT, ApiServer, node, pod, source_of
from tests.extender.apistore import Store

QUICK = Timeouts(connect=1, bind=1, page=1, silence=0.3, stop=5)


class Mirror:
    """The objects that the events result in, and the number of lists; ``optional``: those of optional
    kinds."""

    def __init__(self) -> None:
        self.objects: dict[str, Node | Pod] = {}
        self.lists: Counter[str] = Counter()
        self.optional: Counter[str] = Counter()
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
                    (self.lists if kind in ("Node", "Pod") else self.optional)[kind] += 1


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "SHORTEST", 0.01)
    monkeypatch.setattr(Backoff, "LONGEST", 0.05)
    monkeypatch.setattr(Backoff, "BRIEF", 0.0)


Follow = Callable[..., tuple[KubeSource, Mirror]]


@pytest.fixture
def follow_all(api: ApiServer, tmp_path: Path, hasty: None) -> Iterator[Follow]:
    sources = []

    def start(timeouts: Timeouts = PATIENT, mirror: Mirror | None = None) -> tuple[KubeSource, Mirror]:
        source, mirror = source_of(api, tmp_path, timeouts=timeouts), mirror or Mirror()
        sources.append(source)
        source.start(mirror.apply)
        return source, mirror

    yield start
    for source in sources:
        source.stop()


@pytest.fixture
def follow(few_kinds: None, follow_all: Follow) -> Follow:
    return follow_all


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


def test_a_list_says_when_it_began(api: ApiServer, follow: Any) -> None:
    """That is before the request for its first page: what happened earlier is in the list, or is over."""
    began: list[float] = []
    asked: list[float] = []
    for number in range(3):
        api.put(pod(f"p{number}"))

    class Times(Mirror):
        def apply(self, events: Sequence[Event]) -> None:
            super().apply(events)
            if any(isinstance(one, Upserted) and isinstance(one.obj, Pod) for one in events):
                asked.append(time.monotonic())
            began.extend(one.began for one in events if isinstance(one, Listed) and one.kind == "Pod")

    before = time.monotonic()
    source, _ = follow(mirror=Times())
    eventually(lambda: len(began) == 1)
    assert before < began[0] < asked[0] < asked[1]  # two pages
    before = time.monotonic()
    asyncio.run(source.relist())
    assert before < began[1] < asked[2] < asked[3]


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
def test_a_broken_watch_continues_at_its_version(api: ApiServer, follow: Any, fault: str) -> None:
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
def test_a_watch_without_its_version_relists(api: ApiServer, follow: Any, fault: str) -> None:
    api.put(pod("p0"))
    api.script["/api/v1/pods"].extend(["", fault])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 2)
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


@pytest.mark.parametrize("fault", ["cut", "hangup", "garbage", "500", "403"])
def test_a_broken_list_continues_with_the_same_page(api: ApiServer, follow: Any, fault: str) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    api.script["/api/v1/pods"].extend(["", fault, fault])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    assert caught_up(api, mirror)
    assert len([query for query in queries(api) if query.get("limit") and "continue" not in query]) == 1


def test_objects_deleted_without_a_watch_are_gone_after_the_relist(api: ApiServer, follow: Any) -> None:
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


def test_a_restarted_server_that_has_the_version_is_not_relisted(api: ApiServer, follow: Any) -> None:
    api.put(pod("p0"))
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.stop()
    api.put(pod("p1"))
    time.sleep(0.1)  # the first attempts fail
    assert caught_up(api, mirror) is False
    assert mirror.objects.keys() == {"ml/p0"}  # the last known state stays
    api.start()
    eventually(lambda: caught_up(api, mirror))
    assert mirror.lists["Pod"] == 1


@pytest.mark.parametrize("script", [["silent"], ["", "silent"]], ids=["list", "watch"])
def test_a_half_open_connection_times_out(api: ApiServer, follow: Any, script: list[str]) -> None:
    api.put(pod("p0"))
    api.script["/api/v1/pods"].extend(script)
    _, mirror = follow(QUICK)
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


HASTY = Timeouts(connect=1, bind=1, page=0.5, whole_page=0.5, head=0.5, line=0.5, silence=60, stop=5)


@pytest.mark.parametrize(
    "script", [["", "headless"], ["", "slow head"], ["slow head"], ["", "trickle"], ["trickle"]]
)
def test_a_read_that_never_ends_is_given_up_and_reported(
    api: ApiServer, follow: Any, script: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A watch without changes may be silent for minutes, so its limit of silence is no help."""
    api.script["/api/v1/pods"].extend(script)
    source, mirror = follow(HASTY)
    eventually(lambda: mirror.lists["Pod"] == 1)
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))
    assert "timed out" in caplog.text
    eventually(lambda: not source.watches()["Pod"].problem)


def test_a_watch_without_a_head_ends_behind_a_proxy_that_closes_connections(
    api: ApiServer, follow: Any
) -> None:
    """The socket then belongs to the answer and not to the connection, which has no limit any more."""
    api.one_answer_each = True
    api.script["/api/v1/pods"].extend(["", "close", "headless"])
    _, mirror = follow(HASTY)
    eventually(lambda: not api.script["/api/v1/pods"])
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


@pytest.mark.parametrize("closes", [False, True])
def test_a_quiet_watch_is_not_ended(api: ApiServer, follow: Any, closes: bool) -> None:
    """Neither by the limit for its head nor by that for an event that has begun."""
    api.one_answer_each = closes
    source, mirror = follow(HASTY)
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    time.sleep(1.5)
    assert source.watches()["Pod"].ends == {}
    assert source.watches()["Pod"].closed == 0
    api.put(pod("p1"))
    eventually(lambda: caught_up(api, mirror))


def test_a_watch_that_waits_for_its_head_is_a_problem_meanwhile(api: ApiServer, follow: Any) -> None:
    api.script["/api/v1/pods"].extend(["", "close", "headless"])
    source, _ = follow()
    eventually(lambda: "not open for " in source.watches()["Pod"].problem)
    assert source.watches()["Pod"].closed > 2


def test_an_expired_continue_token_does_not_loop(api: ApiServer, follow: Any) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    api.script["/api/v1/pods"].extend(["", "410"])
    _, mirror = follow()
    eventually(lambda: mirror.lists["Pod"] == 1)
    assert caught_up(api, mirror)
    assert [sorted(query) for query in queries(api)][:3] == [["limit"], ["continue", "limit"], []]


def test_events_that_the_state_could_not_apply_are_delivered_again(
    api: ApiServer, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(pod("p0"))
    mirror = Mirror()
    mirror.failures = 3
    follow(mirror=mirror)
    eventually(lambda: "ml/p0" in mirror.objects)
    assert "the state is not ready" in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_after_random_faults_the_mirror_catches_up(api: ApiServer, follow: Any, seed: int) -> None:
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


def test_silence_is_infinite_before_the_first_bytes(api: ApiServer, follow: Any, tmp_path: Path) -> None:
    assert source_of(api, tmp_path).watches()["Pod"].silent == math.inf
    source, mirror = follow()
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    assert source.watches()["Pod"].silent < 20
    api.stop()
    before = source.watches()["Pod"].silent
    eventually(lambda: source.watches()["Pod"].silent > before + 0.1)
    api.start()


def test_ends_of_watches_are_counted_by_how(api: ApiServer, follow: Any) -> None:
    api.script["/api/v1/pods"].extend(["", "close", "gone", "500"])  # the list, two watches, the next list
    source, mirror = follow()
    eventually(lambda: source.watches()["Pod"].ends == {"in_time": 1, "relist": 1, "error": 1})
    eventually(lambda: mirror.lists["Pod"] == 2)
    assert source.watches()["Node"].ends == {}


def test_stop_ends_the_threads_during_a_watch(api: ApiServer, follow: Any) -> None:
    source, mirror = follow()
    eventually(lambda: mirror.lists == {"Node": 1, "Pod": 1})
    eventually(lambda: len(api.requests) == 4)
    source.stop()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("follow-")] == []
    api.put(pod("late"))
    time.sleep(0.05)
    assert mirror.objects == {}
    source.stop()


def test_stop_ends_the_threads_during_a_pause(
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


def test_relist_works_at_any_time(api: ApiServer, follow: Any) -> None:
    """Before the first list, between list and watch, during the watch: the list begins after the call."""
    source, mirror = follow()
    pods = source._reflectors["Pod"]
    for number in range(examples(100, least=20)):
        with api.changed:
            api.pods.put(pod(f"p{number}"))  # no watch delivers it
        call = pods.relist()
        if number % 2:
            time.sleep(number / 10_000)
            call = pods.relist()
        eventually(lambda call=call: pods.has_listed(call))
        assert f"ml/p{number}" in mirror.objects


@pytest.mark.parametrize("status", [404, 403])
def test_a_cluster_without_the_optional_kinds_is_followed(
    api: ApiServer, follow_all: Any, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """One line names all kinds that are not there."""
    caplog.set_level(logging.INFO, logger="extender.source")
    optional = {kind for kind, watched in WATCHED_KINDS.items() if watched.optional}
    api.without_devices = status
    api.put(node("a"))
    source, mirror = follow_all()
    eventually(lambda: caught_up(api, mirror) and mirror.lists.total() == 2)
    eventually(lambda: mirror.optional.total() == len(optional))
    eventually(lambda: len(caplog.records) > 0)
    [line] = caplog.records
    names = line.getMessage().removeprefix("not served, or not to be listed by Stowage: ").split(", ")
    assert {*names} == {WATCHED_KINDS[kind].resource for kind in optional}
    assert line.levelname == "INFO"
    assert mirror.lists == {"Node": 1, "Pod": 1}
    eventually(lambda: mirror.optional == dict.fromkeys(optional, 1))
    assert asyncio.run(source.caught_up())


def test_a_kind_that_was_served_is_asked_for_again_soon(
    api: ApiServer, follow_all: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An API server that has just started answers 403 or 404 until it has read roles and CRDs."""
    store = api.stores[DEVICES + "deviceclasses"] = Store()
    store.put({"metadata": {"name": "gpu.example.com"}})
    _, mirror = follow_all()
    eventually(lambda: "gpu.example.com" in mirror.objects)
    del api.stores[DEVICES + "deviceclasses"]
    with caplog.at_level(logging.WARNING, logger="extender.source.reflector"):
        api.hang_up()
        eventually(lambda: "deviceclasses: 404" in caplog.text)
    api.stores[DEVICES + "deviceclasses"] = store
    store.put({"metadata": {"name": "other.example.com"}})
    eventually(lambda: "other.example.com" in mirror.objects)


def test_a_kind_that_a_starting_server_refuses_is_asked_for_again_soon(
    api: ApiServer, follow_all: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Stowage starts while the API server starts, as after a power failure: 403 says nothing yet. If it did,
    Stowage would be ready without the cluster's devices, and not look for them for five minutes."""
    caplog.set_level(logging.DEBUG, logger="extender.source.reflector")
    api.without_devices = 403
    asked: list[int] = []  # how often it was refused before the kind was said to be absent

    class Asked(Mirror):
        def apply(self, events: Sequence[Event]) -> None:
            super().apply(events)
            if any(isinstance(one, Listed) and one.kind == "ResourceSlice" for one in events):
                asked.append(caplog.text.count("resourceslices: 403"))

    _, mirror = follow_all(mirror=Asked())
    eventually(lambda: bool(asked))
    assert asked[0] == 2  # and a third time, which is logged later
    for resource in ("resourceslices", "resourceclaims", "deviceclasses"):
        api.stores[DEVICES + resource] = Store()
    api.stores[DEVICES + "resourceslices"].put({"metadata": {"name": "s"}, "spec": {"driver": "d"}})
    eventually(lambda: "s" in mirror.objects)


def test_the_optional_kinds_are_followed(api: ApiServer, follow_all: Any) -> None:
    for resource in ("resourceslices", "resourceclaims", "deviceclasses"):
        api.stores[DEVICES + resource] = Store()
    api.stores[DEVICES + "deviceclasses"].put({"metadata": {"name": "gpu.example.com"}})
    api.stores[DEVICES + "resourceclaims"].put({"metadata": {"namespace": "ml", "name": "c"}, "spec": 7})
    api.stores[CARDS] = Store()
    api.stores[CARDS].put({"metadata": {"name": "n"}, "spec": {"devices": [{"type": "gpu", "minor": 0}]}})
    _, mirror = follow_all(mirror=Mirror())
    eventually(lambda: mirror.objects.keys() == {"gpu.example.com", "ml/c", "n"})
    with api.changed:
        api.stores[DEVICES + "resourceslices"].put({"metadata": {"name": "s"}, "spec": {"driver": "d"}})
        api.stores[DEVICES + "resourceclaims"].delete("ml/c")
        api.stores[CARDS].delete("n")
        api.changed.notify_all()
    eventually(lambda: mirror.objects.keys() == {"gpu.example.com", "s"})


def test_backoff_doubles_to_thirty_seconds_and_has_jitter() -> None:
    def pauses(fraction: float) -> list[float]:
        backoff = Backoff(lambda: fraction)
        return [backoff.pause(0.0, clean=False) for _ in range(8)]

    assert pauses(1.0) == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses(0.0) == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_a_minute_with_answers_resets_the_backoff() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.pause(0.0, clean=False) for _ in range(3)] == [1, 2, 4]
    backoff.answered(100.0)
    assert backoff.pause(159.0, clean=False) == 8
    backoff.answered(200.0)
    backoff.answered(230.0)  # health counts from the first answer on
    assert backoff.pause(260.0, clean=False) == 1


def test_a_watch_that_ended_by_itself_is_reopened_at_once_unless_it_was_brief() -> None:
    backoff = Backoff(lambda: 1.0)
    for start in range(0, 300, 30):  # as behind a proxy that allows half a minute
        backoff.answered(start)
        assert backoff.pause(start + 30.0, clean=True) == 0
    assert Backoff(lambda: 1.0).pause(0.0, clean=True) == 1
    hasty = Backoff(lambda: 1.0)
    hasty.answered(10.0)
    assert hasty.pause(10.5, clean=True) == 1
    hasty.answered(12.0)
    assert hasty.pause(12.5, clean=True) == 2


def test_the_first_relist_in_a_minute_has_no_pause() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(3):
        backoff.pause(0.0, clean=False)  # a server that restarted and no longer has our version
    assert backoff.before_relist(10.0) == 0
    assert [backoff.before_relist(11.0), backoff.before_relist(70.0)] == [8, 16]
    assert backoff.before_relist(130.0) == 0


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans(), st.booleans()), max_size=30), st.floats(0, 1))
def test_any_pause_is_bounded(history: list[tuple[float, bool, bool]], chance: float) -> None:
    backoff, now = Backoff(lambda: chance), 0.0
    for seconds, answered, clean in history:
        if answered:
            backoff.answered(now)
        now += seconds
        pause = backoff.pause(now, clean=clean)
        assert 0.5 <= pause <= 30 or (pause == 0 and clean and answered)
