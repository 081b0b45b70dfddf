"""Writes ``deploy/monitoring/dashboard.json`` from the panels:

    python -m bench.monitoring.grafana > deploy/monitoring/dashboard.json

Format: Grafana's dashboard JSON model (grafana.com/docs/grafana/latest/dashboards/build-dashboards/
view-dashboard-json-model), with the data source as a variable, so that an import asks for nothing.
"""

from __future__ import annotations

import json
from typing import Any

from bench.monitoring.panels import ROWS
from bench.monitoring.queries import Panel

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "stowage",
        "title": "Stowage",
        "description": "GPU packing: the fleet, waiting pods, and the service. See docs/metrics.md.",
        "tags": ["gpu", "scheduling"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "label": "Data source", "type": "datasource",
                                 "query": "prometheus"}]},
        "annotations": {"list": []},
        "panels": _panels(),
    }  # fmt: skip


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
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query.expr,
             "legendFormat": query.legend, "editorMode": "code", "range": True}
            for i, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
