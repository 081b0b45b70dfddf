"""What a panel of the dashboard is, and the forms that its queries take."""

from __future__ import annotations

from dataclasses import dataclass

RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the name of a series: text, with labels in ``{{...}}``."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time; ``unit`` as Grafana names it. ``may_be_empty``: why there may be no series."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    may_be_empty: str = ""


def by(label: str, metric: str, *, function: str = "max") -> str:
    return f"{function} by ({label}) ({metric})"


def of_models(metric: str) -> str:
    """The sum over GPU models of what any replica says."""
    return f"sum(max by (model) ({metric}))"


def rate(labels: str, metric: str) -> str:
    return f"sum by ({labels}) (rate({metric}{RATE}))"


def quantile(q: float, label: str, metric: str) -> str:
    return f"histogram_quantile({q}, {rate(f'le, {label}', metric + '_bucket')})"
