"""Settings for all tests."""

import gc
import logging
import os
from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import settings

from bench.monitoring.prometheus import MISSING as PROMETHEUS_MISSING
from extender.cli.precompile import choose_cache
from tests import expected
from tests.examples import NIGHTLY, USUAL

choose_cache()  # before numba is imported
import_module("numba")  # or the first question that a test asks would turn its process to plain Python

gc.set_threshold(100_000)

os.environ["COLUMNS"] = "100"  # the width of the samples in docs/; without it, piped lines are whole

NO_CHROMIUM = "NO CHROMIUM: the page is not tested in a browser (Debian: apt-get install chromium)"

# No deadline: the time of one example depends on what else the machine does. The nightly run draws new ones.
settings.register_profile("stowage", deadline=None, max_examples=USUAL, derandomize=not NIGHTLY)
settings.load_profile("stowage")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what is said now (tests/expected.py)")


def pytest_configure(config: pytest.Config) -> None:
    expected.rewriting = config.getoption("rewrite")
    if expected.rewriting and config.getoption("numprocesses", None):
        raise pytest.UsageError("--rewrite writes files: without -n")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a process, a socket or a timer."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the nightly run does."""
    if NIGHTLY:
        return
    long = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=long)


def pytest_collection_finish() -> None:
    gc.freeze()  # all that is imported stays


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """A command that runs in the test's process configures the logs of the whole process."""
    root = logging.getLogger()
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, ("extender", "packing")))}
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each program at the end of every run that skips tests because it is not there."""
    skipped = terminalreporter.stats.get("skipped", [])
    for missing in (PROMETHEUS_MISSING, NO_CHROMIUM):
        if count := sum(missing in str(report.longrepr) for report in skipped):
            terminalreporter.write_line(f"{count} tests were SKIPPED: {missing}", red=True)
