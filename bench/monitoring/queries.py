"""The panels of the dashboard, and the forms of their queries."""

from __future__ import annotations

import re
from dataclasses import dataclass

RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the name of a series: text with labels in ``{{...}}``."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time; ``unit`` is Grafana's name. ``may_be_empty``: the reason there may be no series."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    may_be_empty: str = ""


def by(label: str, metric: str, *, function: str = "max") -> str:
    return f"{function} by ({label}) ({metric})"


def of_models(metric: str) -> str:
    """The sum over GPU models of the maximum over replicas."""
    return f"sum(max by (model) ({metric}))"


def rate(labels: str, metric: str) -> str:
    return f"sum by ({labels}) (rate({metric}{RATE}))"


def quantile(q: float, label: str, metric: str) -> str:
    return f"histogram_quantile({q}, {rate(f'le, {label}', metric + '_bucket')})"


_OF_MODELS = re.compile(
    r"stowage_(gpus_(installed|used|on_offer|free|whole)|nodes_(on_offer|whole)|largest_|stranded_|mig_"
    r"|gpu_value|namespace_)"
)


def chosen(expr: str) -> str:
    """The query for the values of the dashboard's variables: filtered by model only if all metrics have
    models. An empty cluster is one without that label."""
    ours = re.findall(r"stowage_\w+", expr)
    model = ['model=~"$model"'] if ours and all(map(_OF_MODELS.match, ours)) else []

    def select(found: re.Match[str]) -> str:
        name, labels = found[1], [found[2][1:-1]] if found[2] else []
        labels += ['cluster="$cluster"', *(model if name in ours else [])]
        labels += ['workload_namespace=~"$namespace"'] if "_namespace_" in name else []
        return f"{name}{{{', '.join(labels)}}}"

    return re.sub(r"\b((?:stowage|DCGM)_\w+)(\{[^}]*\})?", select, expr)
