"""Settings for all tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from bench.monitoring.prometheus import MISSING as PROMETHEUS_MISSING
from extender.cli.kernel_cache import choose_cache
from tests.examples import USUAL

choose_cache()  # before a test imports numba

NO_CHROMIUM = "NO CHROMIUM: the page is not tested in a browser (Debian: apt-get install chromium)"

# No deadline: the time of one example depends on what else the machine does.
settings.register_profile("stowage", deadline=None, max_examples=USUAL)
settings.load_profile("stowage")


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
