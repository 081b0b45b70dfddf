"""The page at ``/`` in Chromium: shows what ``/debug`` says, by mouse and keyboard, and asks nobody else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from bench.chromium import Page
from bench.page_cluster import manifests
from tests.browser.conftest import serving, write_snapshot

READY = "document.body?.dataset.ready"
TILES = """
[...document.querySelectorAll(".row")].flatMap((row) => [...row.querySelectorAll(".gpu")].flatMap((gpu) => {
  const box = gpu.getBoundingClientRect();
  return [...gpu.querySelectorAll(".part[data-pod]")].map((part) => {
    const own = part.getBoundingClientRect();
    return [row.dataset.node, Number(gpu.dataset.gpu), part.dataset.pod,
            (own.left - box.left) / box.width, own.width / box.width];
  });
}))
"""


def open_page(page: Page, url: str, fragment: str = "") -> None:
    page.open("about:blank")
    page.open(f"{url}/{fragment}")
    page.wait_for(READY)


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({selector!r})?.innerText ?? ''"))


def active(page: Page) -> str:
    """The id of the cell that the keyboard is on."""
    return str(page.run("document.getElementById('fleet-grid').getAttribute('aria-activedescendant')"))


def fleet(url: str) -> dict[str, Any]:
    return dict(httpx.get(f"{url}/debug/fleet").json())


def test_each_pod_is_where_the_api_says(page: Page, fleet_url: str) -> None:
    """All rows, with a window that is high enough; MIG instances also in their places."""
    page.resize(1440, 3000)
    open_page(page, fleet_url, "#view=rows")
    shown = page.run(TILES)
    nodes = fleet(fleet_url)["nodes"]
    expected = Counter(
        (node["name"], gpu, node["pods"][pod][0])
        for node in nodes
        for gpu, pod, _, devices, milli, mib, _, _ in node["parts"]
        if pod >= 0
        for _ in range(_rectangles(node, gpu, devices, milli, mib))
    )
    assert Counter((node, gpu, pod) for node, gpu, pod, *_ in shown) == expected
    places = {(node, gpu, pod): (left, width) for node, gpu, pod, left, width in shown}
    checked = 0
    for node in nodes:
        for gpu, pod, _, _, _, _, start, size in node["parts"]:
            if pod >= 0 and size:
                slices = node["gpus"][gpu][2]
                found = places[node["name"], gpu, node["pods"][pod][0]]
                assert found == pytest.approx((start / slices, size / slices), abs=0.02)
                checked += 1
    assert checked > 100
    assert page.problems == []


def _rectangles(node: dict[str, Any], gpu: int, devices: int, milli: int, mib: int) -> int:
    """Each device has one; a share has one for compute and one for memory."""
    counted = any(part[0] == gpu and part[2] >= 0 for part in node["parts"])
    return devices if counted else bool(milli) + bool(mib)


def test_the_pods_of_debug_nodes_are_those_of_the_tiles(fleet_url: str) -> None:
    """The feed says what ``/debug/nodes`` says: known GPUs are the same, counted devices as many."""
    views = {node["name"]: node for node in httpx.get(f"{fleet_url}/debug/nodes").json()["nodes"]}
    for node in fleet(fleet_url)["nodes"]:
        shown: dict[str, Counter[int]] = {}
        for gpu, pod, _, devices, *_ in node["parts"]:
            if pod >= 0:
                shown.setdefault(node["pods"][pod][0], Counter())[gpu] += devices
        for holder in views[node["name"]]["holders"]:
            gpus = shown.get(holder["pod"], Counter())
            if holder["gpus"]:
                assert sorted(gpus) == sorted(holder["gpus"])
            else:
                assert gpus.total() == sum(holder["devices"].values())


def test_nothing_is_fetched_from_elsewhere(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url)
    for key in ("v", "c", "?", "Escape", "w"):
        page.press(key)
    assert len(page.requests) > 10
    assert {urlsplit(url).netloc for url in page.requests} == {urlsplit(fleet_url).netloc}
    assert page.problems == []


def test_the_keyboard_reaches_everything(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url, "#view=rows&sort=name")
    first, *_, last = sorted(node["name"] for node in fleet(fleet_url)["nodes"])
    page.run("document.getElementById('fleet-grid').focus()")
    page.press("ArrowDown")
    assert active(page) == f"cell-{first}-node"
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert active(page) == f"cell-{first}-1"
    label = page.run(f"document.getElementById('cell-{first}-1').getAttribute('aria-label')")
    assert label.startswith("GPU 1: ")
    page.press("Enter")
    assert text(page, "#panel h2") == f"GPU 1 of {first}"
    page.press("Escape")
    assert text(page, "#panel h2").endswith("pending pods")
    page.press("End")
    assert active(page).startswith(f"cell-{last}-")
    page.press("/")
    page.type("mig")
    page.wait_for("document.querySelectorAll('.row').length === 8")
    page.press("Enter")
    page.press("Escape")
    assert page.run("document.getElementById('filter').value") == ""
    page.press("v")
    page.press("ArrowLeft")
    assert active(page) == "map-cell"
    assert text(page, "#map-cell")
    page.press("?")
    assert page.run("document.getElementById('help-dialog').open")


def test_a_link_shows_the_same_again(page: Page, fleet_url: str) -> None:
    pod = next(pod for node in fleet(fleet_url)["nodes"] for pod, *_ in node["pods"])
    open_page(
        page, fleet_url, f"#view=map&color=use&sort=free&q=is%3Amig&sel=pod%2F{pod.replace('/', '%2F')}"
    )
    page.wait_for("document.querySelector('#panel pre')")
    assert text(page, "#panel h2") == pod
    values = "[...document.querySelectorAll('select, #filter')].map((one) => one.value)"
    assert page.run(values) == ["is:mig", "use", "free"]
    assert page.run("document.querySelector('#view [aria-pressed=true]').value") == "map"
    page.run("document.querySelector('#view [value=rows]').click()")
    assert "view=rows" in page.run("location.hash")


def test_a_waiting_pod_says_why_and_what_would_help(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url)
    waiting = text(page, "#panel")
    assert "16 nvidia.com/gpu" in waiting  # as explain says it
    assert "request at most 192 CPUs per pod: h100-006 has no more" in waiting
    page.run(
        "[...document.querySelectorAll('.wait button')].find((b) => b.textContent.includes('wide')).click()"
    )
    page.wait_for("document.querySelector('#panel table.costs')")
    assert "node has fewer GPUs than requested" in text(page, "#panel")


def test_a_click_on_the_map_opens_the_gpu_under_it(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url, "#view=map&sort=name")
    box = page.run("(({left, top}) => [left, top])(document.querySelector('canvas').getBoundingClientRect())")
    page.click(box[0] + 12 + 1.5 + 14 * 2 + 6, box[1] + 30)  # the third bar of the first block
    first = min(node["name"] for node in fleet(fleet_url)["nodes"])
    assert text(page, "#panel h2") == f"GPU 2 of {first}"


LAYOUT = """
(() => {
  const box = (one) => one.getBoundingClientRect();
  const seen = (one) => box(one).width > 0 && box(one).height > 0;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const name = (one) => `${one.className || one.id || one.tagName}: ${one.textContent.slice(0, 30)}`;
  const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]) > 1;
  const overlap = (a, b) => shared(a, b, "left", "right") && shared(a, b, "top", "bottom");
  const parts = ".row > *, .top > *, .card > *, .toolbar > *, .legend > *, .who > *, .facts > *";
  const overlaps = all(parts).flatMap((one) => [...one.parentNode.children]
    .filter((other) => other !== one && seen(other) && overlap(box(one), box(other)))
    .map((other) => `${name(one)} over ${name(other)}`));
  const inside = ".islands, .left, .sub, .card, .label, .value, .toolbar, .legend, .panel, .top, main, .wait";
  const wide = all(inside).filter((one) => one.scrollWidth > one.clientWidth + 1);
  const high = all(".row").filter((one) => one.scrollHeight > one.clientHeight + 1);
  const narrowest = (selector) => Math.min(...all(selector).map((one) => box(one).width));
  return {
    wide: document.documentElement.scrollWidth - innerWidth, overlaps, cut: [...wide, ...high].map(name),
    gpus: narrowest(".row .islands"), tiles: narrowest(".row .gpu"),
  };
})()
"""


@pytest.fixture(scope="module")
def long_names_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The mixed fleet with names of 63 characters, zones, and a team for each pod."""
    items = manifests(40)["items"]
    names: dict[str, str] = {}
    for number, item in enumerate(items):
        metadata = item["metadata"]
        if item["kind"] == "Node":
            names[metadata["name"]] = f"gke-production-europe-west4-{metadata['name']:-<31}{number:04}"
            metadata["name"] = names[metadata["name"]]
            metadata["labels"]["topology.kubernetes.io/zone"] = f"europe-west4-{'abc'[number % 3]}"
            metadata["labels"]["pool"] = "odd" if number % 2 else "even"
        else:
            metadata["name"] = f"{metadata['name']:-<63}"
            metadata.setdefault("labels", {})["team"] = ("blue", "green")[number % 2]
            if node := item["spec"].get("nodeName"):
                item["spec"]["nodeName"] = names[node]
    with serving(write_snapshot(tmp_path_factory.mktemp("page") / "long.json", *items)) as url:
        yield url


@pytest.mark.parametrize("fleet_of", ["fleet_url", "long_names_url"])
def test_nothing_is_cut_or_overprinted(page: Page, request: pytest.FixtureRequest, fleet_of: str) -> None:
    open_page(page, request.getfixturevalue(fleet_of), "#view=rows")
    for view, width in product(("rows", "map"), (390, 500, 768, 1024, 1440)):
        page.run(f"document.querySelector('#view [value={view}]').click()")
        page.resize(width, 900)
        page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found = page.run(LAYOUT)
        assert (width, found["overlaps"], found["cut"]) == (width, [], [])
        assert found["wide"] <= 0
        if view == "rows":
            assert (width, found["gpus"] > 100, found["tiles"] >= 8) == (width, True, True)


def test_a_phone_shows_what_is_selected(page: Page, fleet_url: str) -> None:
    page.resize(390, 844)
    open_page(page, fleet_url, "#sel=node%2Fh100-001")
    page.wait_for("document.getElementById('panel').getBoundingClientRect().top < innerHeight - 200")
    assert text(page, "#panel h2") == "h100-001"
    page.resize(1440, 900)


def test_a_pod_shows_when_its_job_had_gpus(page: Page, fleet_url: str) -> None:
    pod = next(pod[0] for node in fleet(fleet_url)["nodes"] for pod in node["pods"])
    page.resize(390, 844)
    open_page(page, fleet_url, f"#sel=pod/{pod}")
    page.wait_for("document.querySelector('#panel .gantt .run')")
    assert page.run("document.getElementById('panel').getBoundingClientRect().top >= 0")
    assert "GPUs of this pod over time" in text(page, "#panel")
    label = page.run("document.querySelector('#panel .gantt .run').ariaLabel")
    assert re.match(r"[\d.]+ GPUs on \S+ for ", label)
    page.resize(1440, 900)
    assert page.problems == []


def test_each_table_of_the_panel_can_be_downloaded(page: Page, fleet_url: str) -> None:
    pending = fleet(fleet_url)["waiting"][0]["pod"]
    open_page(page, fleet_url, f"#sel=pod/{pending}")
    page.wait_for("document.querySelector('#panel table.costs')")
    page.run(
        "(() => { URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; });"
        " return ''; }; HTMLAnchorElement.prototype.click = () => {}; })()"
    )
    page.run("document.querySelector('#panel table.costs + button').click()")
    page.wait_for("window.saved")
    assert page.run("window.saved").startswith('"')


def test_figures_say_what_they_were_before(page: Page, fleet_url: str) -> None:
    """As in the demo, whose pods come within seconds."""
    open_page(page, fleet_url)
    page.run("""(async () => {
      const { Strip } = await import("./page/strip.js");
      const history = await (await fetch("debug/fleet/history")).json();
      const now = Date.now() / 1000;
      const columns = Object.values(history).filter(Array.isArray);
      for (const values of columns) values.splice(0, values.length, 7, values.at(-1));
      history.at = [now - 60, now];
      new Strip().show(history);
    })()""")
    totals = fleet(fleet_url)["totals"]
    assert f"{totals['whole']} was 7, 60 s ago" in text(page, "#strip").replace("\n", " ")


def test_a_filter_by_zone_namespace_and_label(page: Page, long_names_url: str) -> None:
    nodes = fleet(long_names_url)["nodes"]
    pods = {pod[0]: pod[4] for node in nodes for pod in node["pods"]}
    team = sum("team=blue" in labels for labels in pods.values())
    assert 0 < team < len(pods)
    holds = {
        "zone:europe-west4-b": lambda node: node["zone"] == "europe-west4-b",
        "label:pool=odd": lambda node: "pool=odd" in node["labels"],
        "label:team=blue": lambda node: any("team=blue" in pod[4] for pod in node["pods"]),
        "ns:speech": lambda node: any(pod[0].startswith("speech/") for pod in node["pods"]),
    }
    for word, test in holds.items():
        expected = sum(map(test, nodes))
        open_page(page, long_names_url, f"#view=map&q={word.replace(':', '%3A').replace('=', '%3D')}")
        assert text(page, "#filter-count") == f"{expected} of 40 nodes"
        page.run("document.getElementById('filter').dispatchEvent(new Event('focus'))")
        offered = page.run("[...document.querySelectorAll('#words option')].map((one) => one.value)")
        assert f"{word} ns:speech" in offered


def test_totals_by_team(page: Page, long_names_url: str) -> None:
    """Those of namespaces and of a label add up to the census, and a click filters by the team."""
    answer = fleet(long_names_url)
    open_page(page, long_names_url, "#view=map")
    rows = "[...document.querySelectorAll('#teams tr')].slice(1).map((one) => one.innerText.split('\\t'))"
    for by in ("namespace", "team"):
        page.run(f"((one) => {{ one.value = '{by}'; one.dispatchEvent(new Event('change')); }})(team)")
        found = page.run(rows)
        assert sum(float(row[1]) for row in found) == pytest.approx(answer["totals"]["used"], abs=1)
        assert sum(int(row[-1]) for row in found) == answer["totals"]["waiting"]
        heads = page.run("[...document.querySelectorAll('#teams th')].map((one) => one.innerText)")
        assert heads[2:-2] == ([] if by == "team" else ["GPU-hours", "value"])
    assert {row[0] for row in found} == {"blue", "green"}
    page.run("document.querySelector('#teams button').click()")
    assert page.run("document.getElementById('filter').value") == f"label:team={found[0][0]}"
    page.run("localStorage.removeItem('stowage-team')")


def test_the_use_of_the_gpus_adds_up_to_all(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url)
    page.wait_for("document.querySelectorAll('#use tr').length > 1")
    rows = "[...document.querySelectorAll('#use tr')].slice(1).map((one) => one.innerText.split('\\t'))"
    found = page.run(rows)
    assert sum(float(row[1]) for row in found) == pytest.approx(fleet(fleet_url)["totals"]["gpus"], abs=0.5)
    assert page.run("document.querySelectorAll('#use .wasted').length") > 0


def test_names_are_on_the_map(page: Page, fleet_url: str) -> None:
    open_page(page, fleet_url, "#view=rows")
    page.run(
        "(() => { window.drawn = []; const before = CanvasRenderingContext2D.prototype.fillText;"
        " CanvasRenderingContext2D.prototype.fillText = function (one, ...at) {"
        " window.drawn.push(one); before.call(this, one, ...at); }; })()"
    )
    page.resize(1440, 2000)
    page.run("document.querySelector('#view [value=map]').click()")
    page.wait_for("window.drawn.length > 40")
    assert {node["name"] for node in fleet(fleet_url)["nodes"]} <= set(page.run("window.drawn"))


def test_a_job_of_nodes_with_long_names_on_a_phone(page: Page, tmp_path: Path) -> None:
    """Names without their common end, one entry for the pods of a job, and the list before the fleet."""
    items, names = manifests(4)["items"], {}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sweep", "uid": "sweep", "controller": True}
    for number, item in enumerate(items):
        metadata, spec = item["metadata"], item["spec"]
        if item["kind"] == "Node":
            names[metadata["name"]] = f"ip-10-0-7-{number}.eu-west-1.compute.internal"
            metadata["name"] = names[metadata["name"]]
        elif node := spec.get("nodeName"):
            spec["nodeName"] = names[node]
        else:
            waiting = item
    for name in ("a", "b", "c"):
        metadata = {**waiting["metadata"], "name": name, "uid": name, "ownerReferences": [owner]}
        items.append({**waiting, "metadata": metadata})
    with serving(write_snapshot(tmp_path / "eks.json", *items)) as url:
        page.resize(390, 844)
        open_page(page, url, "#view=rows")
        shown = page.run("[...document.querySelectorAll('.row .name')].map((one) => one.innerText)")
        assert {one.replace("\n", "") for one in shown} == {one.partition(".")[0] for one in names.values()}
        assert "and 2 more pods of Job sweep" in text(page, "#panel")
        top = "document.querySelector('{}').getBoundingClientRect().top"
        assert page.run(f"{top.format('#panel')} < {top.format('.fleet')}")
        page.run("document.querySelector('#strip button').click()")
        assert page.run("document.getElementById('panel').contains(document.activeElement)")
        assert page.problems == []
        page.resize(1440, 900)


def test_the_help_lists_every_filter() -> None:
    files = Path(__file__).parents[2] / "extender" / "data" / "page"
    known = re.search(r"const IS = \{(.*?)\n\};", (files / "fleet.js").read_text(), re.DOTALL)
    assert known
    words = re.findall(r"^  (\w+):", known[1], re.MULTILINE)
    assert len(words) > 5
    assert [f"is:{word}" for word in words] == re.findall(r"is:\w+", (files / "index.html").read_text())


def test_the_story_of_a_gang_has_its_members_and_evictions(page: Page, tmp_path: Path) -> None:
    gang = {"stowage.dev/gang": "train", "stowage.dev/gang-min": "2"}
    items = manifests(2)["items"]
    waiting = next(one for one in items if one["kind"] == "Pod" and not one["spec"].get("nodeName"))
    for name in ("one", "two"):
        metadata = {**waiting["metadata"], "name": name, "uid": name, "labels": gang}
        items.append({**waiting, "metadata": metadata})
    namespace = waiting["metadata"]["namespace"]
    with serving(write_snapshot(tmp_path / "gang.json", *items)) as url:
        open_page(page, url, f"#sel=pod%2F{namespace}%2Fone")
        page.wait_for("document.querySelector('#panel pre')")
        story = text(page, "#panel")
        assert f"{namespace}/train: 0 of 2 members run" in story
        assert f"{namespace}/two" in story
        assert "viction" in story
        assert "query the others" not in story
        assert page.problems == []


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_light_and_dark(page: Page, fleet_url: str, scheme: str, is_dark: bool) -> None:
    page.prefer(scheme)
    open_page(page, fleet_url)
    channels = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
    brightness = f"{channels}.reduce((sum, one) => sum + Number(one), 0)"
    assert (page.run(brightness) < 200) is is_dark
    for theme, dark in (("light", False), ("dark", True), ("auto", is_dark)):
        page.run("document.getElementById('theme').click()")
        assert text(page, "#theme") == f"Theme: {theme}"
        assert (page.run(brightness) < 200) is dark


HOSTILE = "<img src=x onerror=alert(1)>"
HIDDEN = "\u202e\u200b"


def test_hostile_names_are_text(page: Page, tmp_path: Path) -> None:
    """Names that the API server would refuse, as a snapshot may hold them."""
    items = manifests(4)["items"]
    for item in items:
        metadata = item["metadata"]
        if item["kind"] == "Node":
            metadata["labels"]["nvidia.com/gpu.product"] = HOSTILE + HIDDEN
        else:
            metadata["name"] = f"{HOSTILE}{HIDDEN}{metadata['name']}"
            metadata["labels"] = {"stowage.dev/queue": HOSTILE + HIDDEN}
    items[0]["metadata"]["name"] = f"{HOSTILE}\"'`${{1}}"
    with serving(write_snapshot(tmp_path / "hostile.json", *items)) as url:
        open_page(page, url, "#view=rows&color=pod")
        assert page.run("document.querySelectorAll('img[src=x]').length") == 0
        assert HOSTILE in text(page, "#fleet-grid")
        assert HOSTILE in text(page, "#panel")
        html = page.run("document.documentElement.outerHTML")
        assert r"\u202e\u200b" in html
        assert not set(HIDDEN) & set(html)
        page.run("document.querySelector('.gpu .part[data-pod]').click()")
        page.wait_for("document.querySelector('#panel .facts')")
        page.run("document.querySelector('.row .name').click()")
        assert page.run("document.querySelectorAll('img[src=x]').length") == 0
        assert [one for one in page.problems if "404" not in one] == []


def test_a_token_is_asked_for_and_kept_for_the_tab(page: Page, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-battery-staple")
    snapshot = write_snapshot(tmp_path / "fleet.json", *manifests(2)["items"])
    with serving(snapshot, debug_token_file=str(token)) as url:
        page.open(url)
        page.wait_for("document.getElementById('token-dialog')?.open")
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.getElementById('token-problem').textContent")
        page.type(token.read_text())
        page.press("Enter")
        page.wait_for(READY)
        assert page.run("document.querySelectorAll('.row').length") == 2
        open_page(page, url)
        assert not page.run("document.getElementById('token-dialog').open")
        assert token.read_text() not in page.run("document.documentElement.outerHTML + location.href")


def test_without_nodes_and_after_the_service_ended(page: Page, tmp_path: Path) -> None:
    with serving(write_snapshot(tmp_path / "empty.json")) as url:
        open_page(page, url)
        assert text(page, "#message").startswith("No node has GPUs")
    page.wait_for("document.getElementById('live').dataset.state === 'lost'")
    assert re.fullmatch(r"connection lost, figures are \d+ s old", text(page, "#live-text"))
