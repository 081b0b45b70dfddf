"""What a soak has shown, as a table."""

import os
import resource
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .injector import Done, Injector
from .ledger import tally
from .load import Load
from .plan import KINDS
from .watch import Watch


@dataclass
class Report:
    """The figures of one run; times in seconds."""

    command: str
    seconds: float
    pods: int
    placed: int
    faults: Counter[str]
    cpu_s: tuple[float, float]
    checks: Counter[str]
    evictions: Counter[str]
    recovery: dict[str, list[float]]
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        every = sorted(second for seconds in self.recovery.values() for second in seconds)
        return "\n".join(
            [
                self.command,
                f"{self.seconds:.0f} s, {self.pods} pods created, {self.placed} placed "
                f"({self.placed / self.seconds:.1f} a second), {sum(self.faults.values())} faults",
                f"CPU: {self.cpu_s[1]:.0f} s of the programs, {self.cpu_s[0]:.0f} s of the test, on "
                f"{os.cpu_count()} CPUs with a load of {os.getloadavg()[1]:.1f}",
                "",
                f"{'fault':24} {'times':>5}  seconds from its end to the next placed pod: median, p99, most",
                *(
                    _line(kind, self.faults[kind], self.recovery.get(kind, []))
                    for kind in KINDS
                    if self.faults[kind]
                ),
                _line("all", sum(self.faults.values()), every),
                "",
                *(f"{name:40} {count:>9}" for name, count in sorted(self.checks.items())),
                *(f"{'evicted, ' + what:40} {count:>9}" for what, count in sorted(self.evictions.items())),
                "",
                f"violations: {len(self.findings)} {dict(tally([one[9:] for one in self.findings])) or ''}",
                *self.findings[:40],
            ]
        )


def report(
    command: str,
    seconds: float,
    cpu_s: tuple[float, float],
    load: Load,
    watch: Watch,
    injector: Injector,
    findings: list[str],
) -> Report:
    """The figures so far."""
    with watch.lock:
        return Report(
            command,
            seconds,
            load.created,
            len(watch.bound_at),
            injector.by_kind(),
            cpu_s,
            Counter(watch.checks),
            Counter(watch.evictions.outcome),
            recoveries(list(injector.done), watch.bound_at),
            findings,
        )


def recoveries(done: list[Done], bound_at: list[float]) -> dict[str, list[float]]:
    """By kind of fault, the seconds from the end of each fault to the next placed pod.

    If other faults ended before that pod was placed, the seconds from the end of the last of them.
    """
    ends = sorted(one.end for one in done if one.end is not None)
    found: dict[str, list[float]] = {}
    for one in done:
        if one.end is not None and (next_one := bisect_right(bound_at, one.end)) < len(bound_at):
            placed = bound_at[next_one]
            found.setdefault(one.planned.kind, []).append(placed - ends[bisect_right(ends, placed) - 1])
    return found


def cpu_seconds() -> tuple[float, float]:
    """CPU time of this process, and of the programs that it has started."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    running = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                running += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime + running


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _line(name: str, times: int, seconds: list[float]) -> str:
    if not seconds:
        return f"{name:24} {times:>5}"
    ordered = sorted(seconds)
    median, late = percentile(ordered, 0.5), percentile(ordered, 0.99)
    return f"{name:24} {times:>5}  {median:6.2f} {late:6.2f} {ordered[-1]:6.2f}"
