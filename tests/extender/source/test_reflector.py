"""Reflectors against a real HTTP server that loses versions, breaks connections and restarts."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from extender.source.apiserver import KubeSource
from extender.source.reflector import Backoff
from extender.source.rest import Timeouts
from tests.extender.apiserver import PATIENT, ApiServer, node, pod, source_of

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


def test_a_watch_that_waits_for_its_head_is_a_problem_meanwhile(api: ApiServer, follow: Any) -> None:
    api.script["/api/v1/pods"].extend(["", "close", "headless"])
    source, _ = follow(replace(PATIENT, stop=0.1))
    eventually(lambda: "not open for " in source.watches()["Pod"].problem)
    assert source.watches()["Pod"].closed > 2


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
