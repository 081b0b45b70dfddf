from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable

import pytest

from extender import logs as log
from extender.untrusted.limits import LOG_LINES

SECRET = "hunter2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(f"cannot read {SECRET}") from error


def log_a_failure() -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger("extender.edge").exception("filter failed for %s", "team/pod")


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    log.configure("info", stream)
    logging.getLogger("extender.cluster.state").warning("%d nodes", 3)
    assert stream.getvalue().split(" ", 1)[1] == "warning  cluster.state: 3 nodes\n"


def test_a_decision_has_its_fields_in_each_format() -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        log.configure("decision", stream, form)
        logger = logging.getLogger("extender.server.engine")
        log.log_decision(logger, "no node fits", "filter", "team/a", result="nothing fits", seconds=0.0012)
        logger.debug("more")
        line = stream.getvalue()
        if form == "text":
            end = 'decision server.engine: no node fits verb=filter pod=team/a result="nothing fits" ms=1.2\n'
            assert line.split(" ", 1)[1] == end
        else:
            keys = ["ts", "level", "logger", "msg", "verb", "pod", "result", "ms"]
            assert list(json.loads(line)) == keys


@pytest.mark.parametrize(("verbosity", "level"), [(0, "info"), (2, "decision"), (4, "debug"), (10, "debug")])
def test_verbosity_has_the_numbers_of_klog(verbosity: int, level: str) -> None:
    assert log.level_of(verbosity) == level


def test_other_streams_get_a_json_object_per_line() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    logging.getLogger("extender.cluster.state").info("line one\nline %s", "two")
    logging.getLogger("extender.cluster.state").info("ready")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["msg"]) == (
        "info",
        "cluster.state",
        "line one\nline two",
    )
    assert first["ts"].endswith("+00:00")
    assert second["msg"] == "ready"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "people"])
def test_a_traceback_never_contains_the_message(stream: io.StringIO) -> None:
    log.configure("info", stream)
    log_a_failure()
    text = stream.getvalue()
    assert "filter failed for team/pod" in text
    assert "in fail" in text
    assert "ValueError" in text
    assert "KeyError" in text
    assert SECRET not in text


def test_the_level_applies_to_our_loggers_and_others_log_warnings() -> None:
    stream = io.StringIO()
    log.configure("debug", stream)
    logging.getLogger("extender.filter").debug("a decision")
    logging.getLogger("urllib3").info("chatter")
    logging.getLogger("urllib3").warning("trouble")
    assert [json.loads(line)["msg"] for line in stream.getvalue().splitlines()] == [
        "a decision",
        "trouble",
    ]
    log.configure("info", stream)
    logging.getLogger("extender.filter").debug("another decision")
    assert "another" not in stream.getvalue()


def messages(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["msg"] for line in stream.getvalue().splitlines()]


def test_a_flood_of_one_kind_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_SECONDS", 1)
    stream, flooded = io.StringIO(), logging.getLogger("extender.server.service")
    log.configure("info", stream)
    for number in range(100):
        flooded.warning("refused %s", f"caller {number}")
        logging.getLogger("some.library").warning(f"Invalid request {number}")
    flooded.info("stopping after %s", "SIGTERM")
    said = messages(stream)
    assert said[-1] == "stopping after SIGTERM"
    assert len(said) == 2 * LOG_LINES + 1
    until(lambda: len(messages(stream)) > len(said) + 1)
    more = f"{100 - LOG_LINES} similar lines were suppressed within 1 s, the last one:"
    assert sorted(messages(stream)[-2:]) == [f"{more} Invalid request 99", f"{more} refused caller 99"]
    assert json.loads(stream.getvalue().splitlines()[-1])["level"] == "warning"
    flooded.warning("refused %s", "again")
    assert messages(stream)[-1] == "refused again"


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_was_left_out_is_said_at_the_end() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    for number in range(LOG_LINES + 3):
        logging.getLogger("extender.cluster").warning("node %d", number)
    log.configure("info", io.StringIO())
    assert "3 similar lines" in messages(stream)[-1]


@pytest.mark.parametrize("name", ["extender.server", "extender.evictor.actions"])
def test_no_eviction_is_left_out_and_no_line_of_the_level_debug(name: str) -> None:
    stream = io.StringIO()
    log.configure("debug", stream)
    for number in range(100):
        level = logging.INFO if "evictor" in name else logging.DEBUG
        logging.getLogger(name).log(level, "a decision about %d", number)
    assert len(messages(stream)) == 100
