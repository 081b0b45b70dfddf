"""The list-then-watch protocol against a model of the API server."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from extender.source.list_watch import ListWatch, ProtocolError
from extender.source.watched_kinds import WATCHED_KINDS
from tests.examples import examples
from tests.extender.apistore import Store, bookmark, error, line, page


def manifest(key: str, version: int, node: str = "") -> dict[str, Any]:
    namespace, name = key.split("/")
    metadata = {"namespace": namespace, "name": name, "uid": f"u{version}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def watching(version: int = 7, *keys: str) -> ListWatch:
    protocol = ListWatch(WATCHED_KINDS["Pod"])
    protocol.next_request()
    protocol.page(page([manifest(key, 1) for key in keys], version))
    protocol.next_request()
    return protocol


def pods(events: Iterable[Event]) -> list[str]:
    return [e.obj.key for e in events if isinstance(e, Upserted)]


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_in_the_stream_means_a_new_list(code: int) -> None:
    protocol = watching(7, "a/1")
    events = protocol.chunk(
        line("ADDED", manifest("a/2", 8)) + error(code) + line("ADDED", manifest("a/3", 9))
    )
    assert pods(events) == ["a/2"]  # what came before counts, what comes after does not
    assert not protocol.watching
    assert protocol.next_request().query == {"limit": "500"}
    assert protocol.page(page([manifest("a/3", 9)]))[-1] == Listed("Pod", frozenset({"a/3"}))


def test_gone_as_a_status_means_a_new_list() -> None:
    protocol = watching()
    assert protocol.rejected(410) is True
    assert not protocol.next_request().watch


def test_an_expired_continue_token_means_a_list_without_pages() -> None:
    protocol = ListWatch(WATCHED_KINDS["Pod"])
    protocol.page(page([manifest("a/1", 3)], more="token"))
    protocol.rejected(410)
    assert protocol.next_request().query == {}
    assert protocol.page(page([manifest("a/2", 9)]))[-1] == Listed("Pod", frozenset({"a/2"}))
    protocol.relist()
    assert protocol.next_request().query == {"limit": "500"}


def test_a_broken_item_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    events = ListWatch(WATCHED_KINDS["Pod"]).page(
        page([manifest("a/1", 3), {"spec": 5}, None, manifest("a/2", 4)])
    )
    assert pods(events) == ["a/1", "a/2"]
    assert [r.getMessage() for r in caplog.records] == [
        "ignored a Pod that cannot be parsed: spec: Expected object, got int",
        "ignored a Pod that cannot be parsed: Expected object, got null",
    ]


def test_an_unknown_change_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    protocol = watching()
    data = line("INVENTED", {}) + line("ADDED", manifest("a/1", 9))
    assert pods(protocol.chunk(data)) == ["a/1"]
    assert len(caplog.records) == 1
    assert protocol.watching


def test_a_change_of_an_object_without_a_name_means_a_new_list() -> None:
    """Nobody knows which object has changed, or is gone."""
    protocol = watching()
    assert pods(protocol.chunk(line("DELETED", {"metadata": 5}) + line("ADDED", manifest("a/1", 9)))) == []
    assert not protocol.watching


def test_a_stream_with_invalid_json_means_a_new_list(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "extender")  # other tests may have configured it
    protocol = watching()
    assert protocol.chunk(b"<html>\n") == []
    assert not protocol.watching
    assert "invalid JSON" in caplog.text


@given(st.lists(st.integers(0, 2), max_size=5), st.data())
def test_events_do_not_depend_on_where_the_bytes_are_cut(ends: list[int], data: st.DataObject) -> None:
    lines = [line("ADDED", manifest(f"a/{number}", 9)) + b"\n" * end for number, end in enumerate(ends)]
    whole = b"".join(lines) + b'{"type": '
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    protocol, at_once = watching(), watching()
    events = [event for piece in pieces for event in protocol.chunk(piece)]
    assert events == at_once.chunk(whole)
    assert len(events) == len(ends)
    assert protocol.in_line


KEYS = st.sampled_from([f"{namespace}/{name}" for namespace in "ab" for name in "1234"])


class Following(RuleBasedStateMachine):
    """A client of a server that changes objects, loses versions and closes connections at random."""

    @initialize()
    def start(self) -> None:
        self.server, self.protocol = Store(), ListWatch(WATCHED_KINDS["Pod"])
        self.mirror: dict[str, tuple[str, str]] = {}
        self.synced = False

    @rule(key=KEYS, node=st.sampled_from(["", "n1", "n2"]))
    def put(self, key: str, node: str) -> None:
        self.server.put(manifest(key, self.server.version, node))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key in self.server.objects:
            self.server.delete(key)

    @rule()
    def forget(self) -> None:
        self.server.compact()

    @rule(lost=st.booleans(), garbage=st.booleans())
    def ask(self, lost: bool, garbage: bool) -> None:
        request = self.protocol.next_request()
        if not request.watch and not lost:
            self.take_page(dict(request.query), garbage=garbage)

    @precondition(lambda self: self.protocol.watching)
    @rule(data=st.data(), as_status=st.booleans(), with_bookmark=st.booleans())
    def watch(self, data: st.DataObject, as_status: bool, with_bookmark: bool) -> None:
        """One watch: some of the due events, cut anywhere; the connection ends in the middle of a line."""
        due = self.server.since(int(self.protocol.next_request().query["resourceVersion"]))
        if due is None:
            if as_status:
                self.protocol.rejected(410)
            else:
                self.apply(self.protocol.chunk(error(410)))
            return
        stream = due + (bookmark(self.server.version) if with_bookmark else b"")
        end = data.draw(st.just(len(stream)) | st.integers(0, len(stream)))
        middle = data.draw(st.integers(0, end))
        self.apply(self.protocol.chunk(stream[:middle]) + self.protocol.chunk(stream[middle:end]))

    @rule()
    def flush(self) -> None:
        for _ in range(2):  # a watch may find its version forgotten; the list after it finds the truth
            while not self.protocol.watching:
                self.take_page(dict(self.protocol.next_request().query), garbage=False)
            due = self.server.since(int(self.protocol.next_request().query["resourceVersion"]))
            if due is not None:
                self.apply(self.protocol.chunk(due))
                break
            self.protocol.rejected(410)
        assert self.synced
        expected = {k: (p["metadata"]["uid"], p["spec"]["nodeName"]) for k, p in self.server.objects.items()}
        assert self.mirror == expected

    @invariant()
    def versions_never_come_from_the_future(self) -> None:
        request = self.protocol.next_request()
        assert int(request.query.get("resourceVersion", 0)) <= self.server.version

    def take_page(self, query: dict[str, str], *, garbage: bool) -> None:
        status, body = self.server.list(query)
        if status != 200:
            self.protocol.rejected(status)
        elif garbage:
            with pytest.raises(ProtocolError):
                self.protocol.page(body[:-1])
        else:
            self.apply(self.protocol.page(body))

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Upserted(Pod() as pod):
                    self.mirror[pod.key] = (pod.uid, pod.node_name)
                case Deleted(_, key):
                    self.mirror.pop(key, None)
                case Listed(_, keys):
                    self.synced = True
                    self.mirror = {key: state for key, state in self.mirror.items() if key in keys}


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=examples(150), stateful_step_count=40)
