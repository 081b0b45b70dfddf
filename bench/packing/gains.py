"""Gain of one policy over the best of the others, over seeds with equal arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from bench.packing.trace_runs import Rows

OURS = "inventory"
HEAD = ["mix", "load", OURS, "best of the others", "gain", "±", "bound"]


def mean_and_error(figures: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 for a single figure."""
    error = stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0
    return fmean(figures), error


def gains(rows: Rows) -> list[list[str]]:
    """A row for each mix and load: our mean, the other policy with the best mean, and the gain over it in
    points, ± its standard error over paired seeds. The input has the policies on the same seeds; the bound is
    blank if there is none. Raises ``ValueError`` unless the input contains ours and another policy."""
    lines = [HEAD]
    for mix, load in dict.fromkeys((row["mix"], row["load"]) for row in rows):
        of_mix = [row for row in rows if (row["mix"], row["load"]) == (mix, load)]
        found: dict[str, dict[int, float]] = {}
        for row in of_mix:
            found.setdefault(row["policy"], {})[row["seed"]] = row["allocation"]
        if OURS not in found or len(found) < 2:
            raise ValueError(f"--output gains needs {OURS} and another policy")
        means = {policy: fmean(by_seed.values()) for policy, by_seed in found.items()}
        best = max((policy for policy in found if policy != OURS), key=means.__getitem__)
        gain, error = mean_and_error([found[OURS][seed] - found[best][seed] for seed in found[OURS]])
        bounds = [row["bound"] for row in of_mix if row["policy"] == OURS and "bound" in row]
        figures = [f"{means[OURS]:.2f}", f"{means[best]:.2f} {best}", f"{gain:+.2f}", f"{error:.2f}"]
        lines.append([mix, str(load), *figures, f"{fmean(bounds):.2f}" if bounds else ""])
    return lines
