"""deploy/monitoring: the dashboard is the one of the panels, the alerts are tested and explained."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.monitoring.grafana import dashboard
from bench.monitoring.panels import ROWS
from bench.monitoring.prometheus import MISSING, Series, installed
from bench.monitoring.queries import Panel, Query

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
PAGE = ROOT / "docs" / "metrics.md"
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def groups() -> list[dict[str, Any]]:
    return yaml.load((MONITORING / "alerts.yaml").read_text(), yaml.CSafeLoader)["groups"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"]]


def metrics_in(expr: str) -> set[str]:
    """Names of metrics, histograms without their suffix."""
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"stowage_\w+", expr)}


def test_the_dashboard_is_the_one_of_the_panels() -> None:
    written = json.loads((MONITORING / "dashboard.json").read_text())
    assert written == dashboard(), "python -m bench.monitoring.grafana > deploy/monitoring/dashboard.json"


def test_panels_have_a_place_of_their_own() -> None:
    cells = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & mine
        assert max(x for x, _ in mine) < 24
        cells |= mine
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len({*ids})


def test_the_object_for_the_operator_has_the_same_rules() -> None:
    rule = yaml.safe_load((MONITORING / "prometheus-rule.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"]["groups"] == groups()


def test_the_pod_monitor_finds_the_pods_of_both_layouts() -> None:
    monitor = yaml.safe_load((MONITORING / "pod-monitor.yaml").read_text())
    [selector] = monitor["spec"]["selector"]["matchExpressions"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for layout in ("behind-a-service", "beside-kube-scheduler"):
        objects = yaml.safe_load_all((ROOT / "deploy" / f"{layout}.yaml").read_text())
        deployment = next(one for one in objects if one["kind"] == "Deployment")
        assert deployment["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        template = deployment["spec"]["template"]
        assert template["metadata"]["labels"][selector["key"]] in selector["values"]
        pod = template["spec"]
        containers = [*pod.get("initContainers", ()), *pod["containers"]]
        ports = [port["name"] for container in containers for port in container.get("ports", ())]
        assert endpoint["port"] in ports


def test_queries_name_only_metrics_that_the_page_lists() -> None:
    listed = {*re.findall(r"`(stowage_\w+)`", PAGE.read_text())}
    queries = [query.expr for row in ROWS.values() for panel in row for query in panel.queries]
    for expr in (*queries, *(rule["expr"] for rule in rules())):
        assert metrics_in(expr) <= listed, expr


def test_every_alert_names_a_section_of_its_own() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    address = f"{source}/blob/main/docs/{RUNBOOKS.name}#"
    assert [rule["annotations"]["runbook_url"] for rule in rules()] == [
        address + rule["alert"].lower() for rule in rules()
    ]
    sections = re.findall(
        r"^### (\w+)\n(\w+)\. .+?\n\n- See: .+?\n- Do: .+?\n$", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL
    )
    assert [(name, severity.lower()) for name, severity in sections] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in rules()
    ]


def test_every_alert_is_tested_to_fire_and_to_be_silent() -> None:
    tests = yaml.load((MONITORING / "alerts-test.yaml").read_text(), yaml.CSafeLoader)["tests"]
    cases = [
        (case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]
    ]
    assert {*cases} == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


def test_promtool_accepts_the_rules() -> None:
    if not installed():
        pytest.skip(MISSING)
    command = ["promtool", "test", "rules", "alerts-test.yaml"]  # reads the rules, too
    run = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_picture_is_drawn_also_of_a_panel_without_data(tmp_path: Path) -> None:
    from bench.monitoring.draw import draw, legend_of  # each worker would import it

    query = Query("x", "{{queue}} p{{q}}")
    panels = [
        Panel("full", "", "s", (query,)),
        Panel("area", "", "s", (query,), stacked=True),
        Panel("empty", "", "s", (query,), may_be_empty="nothing happened"),
    ]
    name = legend_of(query.legend, {"queue": "batch", "q": "50"})
    assert name == "batch p50"
    series = [(name, Series({}, [10.0, 11.0], [1.0, 2.0])), ("late", Series({}, [11.0], [3.0]))]
    draw("title", panels, {"full": series, "area": series, "empty": []}, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 1000
