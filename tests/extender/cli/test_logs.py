from __future__ import annotations

import io
import json
import logging

import pytest

from extender.cli import logs as log

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


def test_other_streams_get_a_json_object_per_line() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    logging.getLogger("extender.cluster.state").info("line one\nline %s", "two")
    logging.getLogger("extender.cluster.state").info("ready")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "info",
        "cluster.state",
        "line one\nline two",
    )
    assert first["time"].endswith("+00:00")
    assert second["message"] == "ready"


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
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "a decision",
        "trouble",
    ]
    log.configure("info", stream)
    logging.getLogger("extender.filter").debug("another decision")
    assert "another" not in stream.getvalue()
