"""Runs every query of the dashboard and of the alerts: a real Prometheus scrapes a real Stowage under load.

    python -m bench.dashboard --out DIR --seconds 90

Writes one picture for each row of the dashboard and prints the queries without results. The exit code is 1 if
a query unexpectedly has no results, or an alert names a nonexistent metric. Requires Prometheus (Debian: apt
install prometheus) and matplotlib.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass
from pathlib import Path

from bench.monitoring.draw import draw, legend_of
from bench.monitoring.load import loaded_cluster
from bench.monitoring.panels import ROWS
from bench.monitoring.prometheus import MISSING, Prometheus, Series, installed, prometheus
from bench.monitoring.queries import Panel, chosen

_NOT_IN_THE_LOAD = {"stowage_evictor_errors_total": "the evictor does not run"}
_PAUSE = 0.25  # seconds between two arrivals


@dataclass(frozen=True, slots=True)
class Result:
    """The series of each panel, problems, and the alerts that are pending or firing."""

    answers: dict[str, list[tuple[str, Series]]]
    problems: list[str]
    alerts: list[str]


def run(seconds: float) -> Result:
    """Load the service for ``seconds``, then run all queries."""
    with (
        tempfile.TemporaryDirectory(prefix="stowage-prometheus-") as directory,
        loaded_cluster() as (cluster, running),
        prometheus([running.port], Path(directory)) as server,
    ):
        start = time.time()
        until = time.monotonic() + seconds
        disturbed = False
        while time.monotonic() < until:
            cluster.step()
            if not disturbed and time.monotonic() > until - seconds / 2:
                cluster.disturb()
                disturbed = True
            time.sleep(_PAUSE)
        return _ask(server, start, time.time())


def _ask(server: Prometheus, start: float, end: float) -> Result:
    answers: dict[str, list[tuple[str, Series]]] = {}
    problems: list[str] = []
    for panel in (panel for row in ROWS.values() for panel in row):
        answers[panel.title] = _answers(server, panel, start, end, problems)
    alerts = []
    for rule in server.rules():
        problems += [f"alert {rule['name']}: {rule['lastError']}"] if rule.get("lastError") else []
        for metric in sorted({*re.findall(r"stowage_\w+", rule["query"])} - _NOT_IN_THE_LOAD.keys()):
            if not server.between(metric, start, end, 5.0):
                problems.append(f"alert {rule['name']}: no series of {metric}")
        if rule["state"] != "inactive":
            alerts.append(f"{rule['name']} ({rule['state']})")
    return Result(answers, problems, alerts)


def _answers(
    server: Prometheus, panel: Panel, start: float, end: float, problems: list[str]
) -> list[tuple[str, Series]]:
    found: list[tuple[str, Series]] = []
    for query in panel.queries:
        series = server.between(_filled(query.expr), start, end)
        if not series and "DCGM_" not in query.expr:
            problems.append(f"panel {panel.title!r}: nothing for {query.expr}")
        found += [(legend_of(query.legend, one.labels), one) for one in series]
    return found


def _filled(expr: str) -> str:
    """The query with the default values of the variables."""
    expr = chosen(expr).replace("$cluster", "").replace("$price", "1")
    return expr.replace("$model", ".*").replace("$namespace", ".*")


def main() -> int:
    """Run, draw, and print the result."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output directory of the pictures"
    )
    parser.add_argument("--seconds", type=float, default=90, help="duration of the load (90)")
    args = parser.parse_args()
    if not installed():
        print(MISSING, file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    result = run(args.seconds)
    for number, (title, panels) in enumerate(ROWS.items(), 1):
        path = args.out / f"{number}-{title.lower().replace(' ', '-')}.png"
        draw(title, panels, result.answers, path)
        print(path)
    series = sum(map(len, result.answers.values()))
    print(
        f"{len(result.answers)} panels, {series} series; alerts: {', '.join(result.alerts) or 'all silent'}"
    )
    for problem in result.problems:
        print(problem, file=sys.stderr)
    return bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())
