"""``stowage audit`` in each of its formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from extender.cli import main as cli
from tests.extender import apiserver
from tests.extender.plan.clusters import GPU, node, pod
from tests.extender.plan.test_audit import fragmented, without_cpu
from tests.extender.plan.test_bill import DAY, ran

ODD = "<script>alert(1)</script>"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    items = [*fragmented("a").items, *without_cpu("b").items, node("spare", 2), node("gone", 4)]
    items[-1]["spec"]["unschedulable"] = True
    items[-2]["metadata"]["labels"]["karpenter.sh/nodepool"] = ODD
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["audit", *words]) == 0
    return capsys.readouterr().out


def test_the_largest_waste_and_its_mend_come_first(cluster, capsys) -> None:
    out = printed(capsys, "--snapshot", str(cluster))
    assert out.startswith("cluster: 38 of 54 GPUs wasted (70 %). A month like this moment: 27,740 GPU-hours.")
    first = out[out.index("1. ") : out.index("2. ")]
    assert first.startswith("1. 16 GPUs idle: too fragmented for pending pods\n   mend: stowage plan moves ")
    assert "frees 16 GPUs; 2 pending pods can start: ml/a-large-0, ml/a-large-1" in first
    assert "kubectl uncordon gone" in out
    assert "needed by ml/b-w-0, but not enough free CPU" in out


def test_a_mend_does_what_it_promises_when_its_command_is_run(cluster, capsys) -> None:
    audit = json.loads(printed(capsys, "--snapshot", str(cluster), "-o", "json"))
    moves = next(step["mend"] for step in audit["steps"] if step["step"] == "fragmented")
    assert cli.main([*moves["command"].split()[1:], "--snapshot", str(cluster), "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["check"][0]["replayed"] - plan["check"][0]["today"] == moves["frees"] / 8


def test_costs_are_those_of_the_prices(cluster, capsys, tmp_path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nhours_per_month: 100\ngpus: {H100: 2}\n")
    found = json.loads(printed(capsys, "--snapshot", str(cluster), "--prices", str(prices), "-o", "json"))
    assert (found["gpuHours"], found["cost"], found["currency"]) == (3800, 7600, "EUR")
    assert sum(step["cost"] for step in found["steps"]) == 54 * 200


@pytest.mark.parametrize("by", ["team", "model", "pool"])
def test_sums_by_team_model_and_pool_add_up(cluster, capsys, by) -> None:
    found = json.loads(printed(capsys, "--snapshot", str(cluster), "--by", by, "-o", "json"))
    assert sum(group["gpus"] for group in found["groups"]) == found["installed"]
    assert sum(group["wasted"] for group in found["groups"]) == found["wasted"]
    names = {"team": {"ml", ""}, "model": {"H100 SXM5 80GB"}, "pool": {ODD, "H100 SXM5 80GB"}}
    assert {group["name"] for group in found["groups"]} == names[by]


class Tags(HTMLParser):
    """The tags of a page, those that are open, and the addresses that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.open += [tag] * (tag not in ("meta", "rect"))

    def handle_endtag(self, tag: str) -> None:
        assert tag == "rect" or self.open.pop() == tag


def test_the_page_is_one_file_without_scripts_and_escapes_names(cluster, capsys) -> None:
    page = printed(capsys, "--snapshot", str(cluster), "--by", "pool", "-o", "html")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses == []
    assert tags.seen.isdisjoint({"script", "link", "iframe", "img", "object"})
    assert "url(" not in page
    assert "38 of 54 GPUs wasted (70 %)" in page
    assert page.count("<i title=") == len(re.findall("linear-gradient", page)) + page.count('<i title=""')
    assert "&lt;script&gt;" in page


def test_markdown_has_the_text_as_a_block(cluster, capsys) -> None:
    text = printed(capsys, "--snapshot", str(cluster), "-o", "wide").rstrip()
    assert printed(capsys, "--snapshot", str(cluster), "-o", "md").rstrip() == (
        f"# GPU audit\n\n```text\n{text}\n```"
    )


def test_what_cannot_be_counted_is_said(capsys, tmp_path) -> None:
    unknown = node("bare", 8, devices={GPU: "0"})
    del unknown["metadata"]["labels"]
    claims = pod("by-claim", gpus=0, resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("a", 8), unknown, claims]}))
    assert "1 pending pod without a known number of GPUs" in printed(capsys, "--snapshot", str(path))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[apiserver.ApiServer]:
    server = apiserver.ApiServer()
    server.put(node("node-a", 8))
    server.put(pod("p", "node-a", 3))
    server.start()
    apiserver.source_of(server, tmp_path)
    yield server
    server.stop()


@pytest.mark.parametrize("may_list", [True, False])
def test_gpus_are_never_idle_for_a_user_who_may_not_list_pods(api, capsys, tmp_path, may_list) -> None:
    if not may_list:
        api.script["/api/v1/pods"].extend(["403"] * 9)
    audit = json.loads(printed(capsys, "--kubeconfig", str(tmp_path / "kubeconfig"), "-o", "json"))
    steps = {step["step"]: step["gpus"] for step in audit["steps"] if step["gpus"]}
    assert sum(steps.values()) == audit["installed"] > 0
    assert ("idle" in steps) is may_list
    assert (steps == {"notReadable": audit["installed"]}) is not may_list
    assert any(note.startswith("pods ") for note in audit["notes"]) is not may_list


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prices", "nowhere.yaml"], "nowhere.yaml"),
        (["-n", "ml"], "nodes run the pods of all namespaces"),
        (["--prometheus", "ftp://x"], "expected a URL"),
    ],
)
def test_unusable_options_are_said_in_one_line(cluster, capsys, words, message) -> None:
    assert cli.main(["audit", "--snapshot", str(cluster), *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_what_has_changed_since_an_earlier_file_is_shown(cluster, capsys, tmp_path) -> None:
    items = json.loads(cluster.read_text())["items"]
    earlier = tmp_path / "earlier.json"
    left = [item for item in items if item["metadata"]["name"] != "gone"]
    stamped = pod("old", "spare", 2) | {"status": {"phase": "Running", "startTime": "2025-12-31T22:00:00Z"}}
    for item in left:
        item["status"].pop("startTime", None)
    earlier.write_text(json.dumps({"kind": "List", "items": [*left, stamped]}))
    out = printed(capsys, "--snapshot", str(cluster), "--before", str(earlier))
    change = "Since 2025-12-31 22:00 UTC: +6.0 GPUs; 70 GPU-hours."  # 32 and 38 GPUs for two hours
    assert f"38 of 54 GPUs wasted (70 %). {change}" in out
    lines = {line.split("  ")[0]: line.split()[-1] for line in out.splitlines() if line}
    assert (lines["on closed nodes"], lines["idle: no pending pod needs them"]) == ("+4", "+2")
    assert lines["idle: too fragmented for pending pods"] == "GPU-hours"


def test_the_bill_of_the_last_day_is_shown(capsys, tmp_path) -> None:
    """Two pods with one GPU are on one node each, so that one with two waits for an hour."""
    nodes = [node(name, 2) for name in ("a", "b")]
    pods = [ran("one", 1, 0, 0, 7_200), ran("two", 1, 60, 60, 7_200), ran("both", 2, 3_600, 7_200, 7_200)]
    last = ran("last", 1, DAY, DAY, 60)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [*nodes, *pods, last]}))
    out = printed(capsys, "--snapshot", str(path), "--bill", "-o", "wide")
    assert "The last 24 hours, replayed: 4 jobs. With Stowage, 1 would have started earlier than with " in out
    assert "0 later, and pods would have been pending for 2 GPU-hours less." in out
    assert re.search(r"kube-scheduler, least allocated +8.0 +2.0\n", out)
    assert re.search(r"Stowage +8.0 +0.0 +1 +0\n", out)
    page = printed(capsys, "--snapshot", str(path), "--bill", "-o", "html")
    assert "<td>Stowage</td><td>8.0</td><td>0.0</td><td>1</td><td>0</td>" in page
