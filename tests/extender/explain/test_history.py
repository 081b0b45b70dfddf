"""The history in files: read back as written, bounded, and in nobody's way if the disk fails."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from extender.cluster.end_costs import EndCosts
from extender.explain import history
from extender.explain.answers import Decision, Explanation, Refusal
from extender.explain.decision_log import Decisions
from extender.explain.history import History, _backwards
from extender.explain.inspector import Inspector
from extender.k8s.objects import Deleted, Listed, Owner, Upserted
from extender.server.engine import Engine
from packing.model.lifetimes import FEWEST
from tests.extender.builders import make_node, make_pod, make_state
from tests.extender.engines import make_engine

START = datetime(2026, 1, 1, tzinfo=UTC)
REFUSED = Explanation("default/p", {"GPUs": 8}, refusals=(Refusal("too few GPUs", 3, True, "n1"),))


def decision(
    hours: float, answer: str = "0 of 3 nodes fit", explanation: Explanation | None = REFUSED
) -> Decision:
    return Decision(START + timedelta(hours=hours), "filter", answer, explanation)


async def about(kept: History, key: str, before: datetime | None = None, most: int = 100) -> list[Decision]:
    until = before.timestamp() if before else float("inf")
    return [found for _, found in await kept.decisions(key, until, most)]


async def test_another_process_reads_what_was_written(tmp_path: Path) -> None:
    first = History(tmp_path, 1 << 20, "a")
    for hours in range(5):
        first.add_decision(make_pod("p"), decision(hours, f"answer {hours}"))
        first.add_decision(make_pod("other"), decision(hours))
    first.add("sample", {"used": 3.5}, 7.0)
    first._write()
    second = History(tmp_path, 1 << 20, "b")
    second.add_decision(make_pod("p"), decision(2.5, "of the other replica"))
    assert await about(second, "default/p", START + timedelta(hours=3), 2) == [
        decision(2.5, "of the other replica"),
        decision(2, "answer 2"),
    ]
    assert [found.answer for found in await about(second, "default/p")][::-1] == [
        "answer 0", "answer 1", "answer 2", "of the other replica", "answer 3", "answer 4",
    ]  # fmt: skip
    assert len(await second.decisions("", float("inf"), 100)) == 11
    assert await second.last(TypeAdapter(dict[str, float]), b'"sample":', 10, after=7.0) == [{"used": 3.5}]
    assert await second.last(TypeAdapter(dict[str, float]), b'"sample":', 10, after=8.0) == []
    assert second.problem == ""


async def test_an_unchanged_answer_is_written_once_an_hour(tmp_path: Path) -> None:
    kept = History(tmp_path, 1 << 20, "a")
    for minute in range(0, 150, 10):
        kept.add_decision(make_pod("p"), decision(minute / 60))
        kept.add_decision(make_pod("p"), decision(minute / 60, explanation=None))  # no time to explain it
    kept.add_decision(make_pod("p"), decision(2.6, "3 of 3 nodes fit"))
    kept.add_decision(make_pod("p", uid="new"), decision(2.6))
    minutes = [(found.at - START).seconds // 60 for found in await about(kept, "default/p")]
    assert sorted(minutes) == [0, 60, 120, 156, 156]


async def test_lines_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path) -> None:
    kept = History(tmp_path, 1 << 20, "a")
    kept.add_decision(make_pod("p"), decision(1))
    kept._write()
    file = next(tmp_path.iterdir())
    whole = file.read_bytes().strip()
    bad = [
        whole[:100],  # the process was killed
        b"\xff\x00 nothing",
        b'{"at":17',
        whole.replace(b'"verb":"filter"', b'"verb":7'),
        b'{"at":1e3,"decision":["default/p",null]}',
        b'{"at":1e3,"decision":["default/p",' + b"[" * 2000 + b"}",
    ]
    file.write_bytes(b"\n".join([*bad[:3], whole, *bad[3:]]))
    again = History(tmp_path, 1 << 20, "a")
    again.add_decision(make_pod("p"), decision(2))  # after a line that was not ended
    assert await about(again, "default/p") == [decision(2), decision(1)]
    assert again.problem == f"unreadable lines are skipped: {len(bad)}"


async def test_the_files_stay_within_their_size_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    size = 40_000
    for number in range(400):
        kept = History(tmp_path, size, f"pod-{number // 100}")
        kept.add_decision(make_pod("p"), decision(number, f"answer {number}"))
        kept._write()
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= size
    found = [int(one.answer.split()[1]) for one in await about(kept, "default/p", most=1000)]
    assert found == list(range(399, 399 - len(found), -1))
    assert len(found) > 40


async def test_a_disk_that_is_full_loses_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    kept = History(tmp_path, 1 << 20, "a")
    kept._own = Path("/dev/full")
    monkeypatch.setattr(history, "_WRITE_EVERY", 0.01)
    task = asyncio.create_task(kept.run())
    kept.add_decision(make_pod("p"), decision(1))
    while not kept.problem:
        await asyncio.sleep(0.01)
    assert "No space left on device" in kept.problem
    earlier = History(tmp_path, 1 << 20, "earlier")
    earlier.add_decision(make_pod("q"), decision(1))
    earlier._write()
    kept.add_decision(make_pod("p"), decision(1.5))
    assert await about(kept, "default/q") == [decision(1)]
    kept._own = tmp_path / "stowage-a.jsonl"
    kept.add_decision(make_pod("p"), decision(2, "later"))
    while kept.problem:
        await asyncio.sleep(0.01)
    kept.add_decision(make_pod("p"), decision(3, "last"))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert [one.answer for one in await about(History(tmp_path, 1 << 20, "b"), "default/p")] == [
        "last",
        "later",
    ]


async def test_its_end_is_not_missed_in_the_moment_in_which_a_write_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_WRITE_EVERY", 0)
    kept, written = History(tmp_path, 1 << 20, "a"), Future[None]()
    submitted = asyncio.Event()
    monkeypatch.setattr(kept._thread, "submit", lambda call: (submitted.set(), written)[1])
    task = asyncio.create_task(kept.run())
    await submitted.wait()
    await asyncio.sleep(0)  # it awaits the write
    written.set_result(None)
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


async def test_a_disk_that_does_not_answer_delays_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = History(tmp_path, 1 << 20, "a")
    monkeypatch.setattr(kept, "_files", lambda: time.sleep(0.5) or [])
    monkeypatch.setattr(history, "_LONGEST", 0.05)
    assert await about(kept, "default/p") == []
    assert kept.problem == "the disk did not answer within 0.05 s"


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))),
    st.integers(1, 50),
)
def test_lines_backwards_are_the_lines_reversed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "lines"
    file.write_bytes(b"\n".join(lines))
    before, history._BLOCK = history._BLOCK, block
    try:
        assert list(_backwards(file)) == [line for line in reversed(lines) if line]
    finally:
        history._BLOCK = before


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "stowage-x.jsonl"
    file.write_bytes(b"x" * (4 << 20))
    assert max(map(len, _backwards(file))) <= history.HISTORY_LINE


async def test_nothing_is_written_through_a_link_and_nobody_waits_for_a_fifo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_LONGEST", 3600)
    directory, other = tmp_path / "history", tmp_path / "other"
    directory.mkdir()
    other.write_text("mine")
    link = directory / "stowage-a.jsonl"
    for make in (lambda: link.symlink_to(other), lambda: os.mkfifo(link)):
        make()
        kept = History(directory, 1 << 20, "a")
        kept.add_decision(make_pod("p"), decision(1))
        async with asyncio.timeout(60):
            assert await about(kept, "default/p") == []
        assert str(link) in kept.problem
        link.unlink()
        assert await about(kept, "default/p") == []
    assert other.read_text() == "mine"
    kept.add_decision(make_pod("p"), decision(2))
    assert await about(kept, "default/p") == [decision(2)]
    assert link.stat().st_mode & 0o137 == 0  # not for others


async def test_a_file_that_goes_or_cannot_be_read_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, removed = History(tmp_path, 1 << 20, "a"), tmp_path / "stowage-removed.jsonl"
    kept.add_decision(make_pod("p"), decision(1))
    kept._write()
    files = kept._files()
    monkeypatch.setattr(kept, "_files", lambda: {removed: 7} | files)
    assert await about(kept, "default/p") == [decision(1)]
    assert kept.problem == ""
    removed.symlink_to(tmp_path / "secret")
    assert await about(kept, "default/p") == [decision(1)]
    assert kept.problem == f"{removed}: Too many levels of symbolic links"


async def test_a_file_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_LONGEST", 0.2)
    with (tmp_path / "stowage-x.jsonl").open("wb") as file:
        file.truncate(1 << 42)
    kept = History(tmp_path, 1 << 20, "a")
    await about(kept, "default/p")
    async with asyncio.timeout(60):  # all of it would take hours
        await asyncio.to_thread(kept._thread.shutdown)


async def test_lines_wait_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica may remove a file while this one looks at it."""
    kept = History(tmp_path, 1 << 20, "a")
    kept.add_decision(make_pod("p"), decision(1))
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_make_room", lambda: (tmp_path / "gone").stat())
        assert await about(kept, "default/p") == []
    assert await about(kept, "default/p") == [decision(1)]


async def test_a_time_without_a_zone_is_not_read(tmp_path: Path) -> None:
    """It could not be compared with the others."""
    kept = History(tmp_path, 1 << 20, "a")
    kept.add_decision(make_pod("p"), decision(1))
    kept._write()
    file = next(tmp_path.iterdir())
    text = file.read_bytes()
    assert b"01:00:00Z" in text
    file.write_bytes(text + text.replace(b"01:00:00Z", b"01:00:00"))
    assert await about(kept, "default/p") == [decision(1)]


async def test_what_is_in_memory_is_shown_if_the_disk_fails(tmp_path: Path) -> None:
    kept = History(tmp_path / "file" / "history", 1 << 20, "a")
    decisions = Decisions(10, record=kept.add_decision)
    inspector = Inspector(make_state(), decisions, kept=kept)
    decisions.add(make_pod("p"), decision(1))
    assert await inspector.decisions(float("inf"), 10) == [("default/p", decision(1))]  # from both
    decisions.add(make_pod("q"), decision(2))
    kept._directory.rename(tmp_path / "away")
    kept._directory.write_text("no directory")
    assert await inspector.decisions(float("inf"), 10) == [
        ("default/q", decision(2)),
        ("default/p", decision(1)),
    ]
    assert await inspector.decisions(decision(2).at.timestamp(), 10) == [("default/p", decision(1))]


async def test_samples_of_a_clock_that_was_ahead_are_not_restored(tmp_path: Path) -> None:
    kept, now = History(tmp_path, 1 << 20, "a"), time.time()
    for at in (now - 7200, now + 86_400, now - 3600):
        kept.add("sample", {"at": at}, at)
    inspector = Inspector(make_state(make_node("n")), Decisions(10), kept=kept)
    await inspector._restore(kept)
    assert inspector.history.columns()["at"] == [now - 7200, now - 3600]


async def test_learned_run_times_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_WRITE_EVERY", 0.01)

    def started() -> tuple[EndCosts, Engine, asyncio.Task[None]]:
        engine = make_engine(history_path=str(tmp_path / "files"))
        engine.apply([Upserted(make_node("n")), Listed("Node", frozenset("n")), Listed("Pod", frozenset())])
        return engine.state.end_costs, engine, asyncio.create_task(dict(engine.tasks())["history on disk"]())

    _, engine, task = started()
    files, kind = tmp_path / "files", ("default", "Job", "train")
    while sum(file.read_text().count('"learned"') for file in files.glob("*")) < FEWEST:
        pod = make_pod("p", 1, uid=str(time.monotonic()), node_name="n", owner=Owner("Job", "train-1"))
        running = replace(pod, started=time.time() - 600)
        engine.apply(
            [Upserted(running), Upserted(replace(running, phase="Succeeded")), Deleted("Pod", pod.key)]
        )
        await asyncio.sleep(0.01)
    second, _, task_of_second = started()
    while (known := second.ends.lifetimes.of(kind)) is None:
        await asyncio.sleep(0.01)
    assert known.median == pytest.approx(600, rel=0.1)
    for running_task in (task, task_of_second):
        running_task.cancel()
