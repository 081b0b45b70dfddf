"""Writes ``deploy/monitoring/dashboard.json`` from the panels:

    python -m bench.monitoring.grafana > deploy/monitoring/dashboard.json

Format: Grafana's dashboard JSON model (grafana.com/docs/grafana/latest/dashboards/build-dashboards/
view-dashboard-json-model), with the data source as a variable, so that an import needs no input.
"""

from __future__ import annotations

import json
from typing import Any

from bench.monitoring.panels import ROWS
from bench.monitoring.queries import Panel, chosen

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_TEAMS = 'stowage_namespace_gpu_seconds_total{cluster="$cluster"}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's import format."""
    return {
        "uid": "stowage",
        "title": "Stowage",
        "description": "GPU packing: the fleet, pending pods, and the service. See docs/metrics.md.",
        "tags": ["gpu", "scheduling"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            _variable("cluster", "stowage_build_info"),
            _variable("model", 'stowage_gpus_installed{cluster="$cluster"}', all_of_them=True),
            _variable("namespace", _TEAMS, all_of_them=True),
            {"name": "price", "label": "Price of an A100-hour", "type": "textbox", "query": "1"},
        ]},
        "annotations": {"list": []},
        "panels": _panels(),
    }  # fmt: skip


def _variable(name: str, metric: str, *, all_of_them: bool = False) -> dict[str, Any]:
    """The values of a label; empty if no series has it."""
    label = "workload_namespace" if name == "namespace" else name
    several = {"includeAll": True, "multi": True, "allValue": ".*"} if all_of_them else {}
    return several | {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        })  # fmt: skip
        top += 1
        for number, panel in enumerate(row):
            x, y = number % _COLUMNS * _WIDTH, top + number // _COLUMNS * _HEIGHT
            panels.append(_panel(len(panels) + 1, panel, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}))
        top += -(-len(row) // _COLUMNS) * _HEIGHT
    return panels


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    drawn = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": chosen(query.expr),
             "legendFormat": query.legend, "editorMode": "code", "range": True}
            for i, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
