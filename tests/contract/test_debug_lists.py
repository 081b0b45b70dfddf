"""The lists of the debug endpoint: decisions, the overview, and all pods of a manifest."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from extender.cli.explain_text import render
from extender.explain.answers import PodReport, Replica
from extender.explain.pod import explain, explain_each
from extender.settings import Settings
from extender.untrusted.limits import DECISIONS_LISTED, EXPLAIN_PODS
from tests.contract.conftest import Start, Stowage, manifest
from tests.contract.test_debug import CLUSTER, get
from tests.extender.builders import make_pod

POD = """
kind: Pod
metadata: {name: %s, namespace: team}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
"""


async def decided(stowage: Stowage, *names: str) -> None:
    for name in names:
        await stowage.filter(manifest(name), ["a", "b"])


async def test_decisions_come_newest_first_with_every_term_as_a_number(start: Start) -> None:
    stowage = await start(*CLUSTER)
    await decided(stowage, "one", "two")
    await stowage.prioritize(manifest("one"), ["a", "b"])
    answer = await get(stowage, "/debug/decisions")
    found = [(one["pod"], one["decision"]["verb"]) for one in answer["decisions"]]
    assert found == [("default/one", "prioritize"), ("default/two", "filter"), ("default/one", "filter")]
    assert answer["next"] is None
    assert answer["replica"] == {
        "name": socket.gethostname(),
        "leads": True,  # nobody else reads a snapshot
        "leader": socket.gethostname(),
    }
    for one in answer["decisions"]:
        for option in one["decision"]["explanation"]["best"]:
            assert sum(option["terms"].values()) == pytest.approx(option["cost"], abs=1)
            assert {"slots", "fill", "stranding"} <= option["terms"].keys()


async def test_pages_show_each_decision_once(start: Start) -> None:
    stowage = await start(*CLUSTER)
    await decided(stowage, *(f"p{number}" for number in range(7)))
    seen: list[str] = []
    before: dict[str, str] = {}
    for size in (3, 3, 1):
        answer = (await stowage.http.get("/debug/decisions", params={"limit": 3, **before})).json()
        assert len(answer["decisions"]) == size
        seen += [one["pod"] for one in answer["decisions"]]
        before = {"before": answer["next"]}
    assert before == {"before": None}
    assert seen == [f"default/p{number}" for number in reversed(range(7))]


async def test_an_answer_has_a_budget_of_bytes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    stowage = await start(*CLUSTER)
    await decided(stowage, *(f"p{number}" for number in range(5)))
    whole = (await stowage.http.get("/debug/decisions")).content
    monkeypatch.setattr("extender.untrusted.limits.DECISIONS_SIZE", len(whole) // 2)
    part = await stowage.http.get("/debug/decisions")
    assert 1 <= len(part.json()["decisions"]) < 5
    assert part.json()["next"]
    monkeypatch.setattr("extender.untrusted.limits.DECISIONS_SIZE", 1)
    assert len((await get(stowage, "/debug/decisions"))["decisions"]) == 1  # else no page would ever end


@pytest.mark.parametrize("query", [f"limit={DECISIONS_LISTED + 1}", "limit=-1", "limit=x", "before=x"])
async def test_a_wrong_query_is_refused(start: Start, query: str) -> None:
    stowage = await start(*CLUSTER)
    await get(stowage, f"/debug/decisions?{query}", 422)


async def test_the_overview_is_that_of_top(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("waits", 9), make_pod("later", 1))
    assert stowage.service.engine is not None
    expected = to_jsonable_python(await stowage.service.engine.inspector.overview(1))
    answer = await get(stowage, "/debug/overview?waiting=1")
    assert answer["overview"] == expected
    assert (len(expected["waiting"]), expected["more_waiting"]) == (1, 1)


async def test_the_pending_pods_of_a_namespace_are_listed_however_many_others_there_are(start: Start) -> None:
    others = [make_pod(f"p{number}", 9) for number in range(DECISIONS_LISTED)]
    mine = replace(make_pod("mine", 9, priority=-1), namespace="team")
    stowage = await start(*CLUSTER, *others, mine)
    answer = (await get(stowage, "/debug/overview?waiting=1&namespace=team"))["overview"]
    assert ([line["pod"] for line in answer["waiting"]], answer["more_waiting"]) == (["team/mine"], 0)


async def test_all_pods_of_a_manifest(start: Start) -> None:
    stowage = await start(*CLUSTER)
    both = POD % "one" + POD % "two"
    answers = (await stowage.http.post("/debug/explain/pods", content=both)).json()["answers"]
    alone = (await stowage.http.post("/debug/explain", content=POD % "two")).json()
    assert [answer["pod"] for answer in answers] == ["team/one", "team/two"]
    assert answers[1]["explanation"] == alone
    too_many = "".join(POD % f"p{number}" for number in range(EXPLAIN_PODS + 1))
    refused = await stowage.http.post("/debug/explain/pods", content=too_many)
    assert (refused.status_code, refused.json()["detail"]) == (
        400,
        f"the manifest has {EXPLAIN_PODS + 1} pods, at most {EXPLAIN_PODS} are explained",
    )


async def test_what_each_node_says(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("waits", 4))
    assert stowage.service.engine is not None
    state = stowage.service.engine.state
    expected = to_jsonable_python(explain_each(state, state.pods["default/waits"], ["a", "b", "mig"]))
    assert (await get(stowage, "/debug/pods/default/waits/nodes"))["nodes"] == expected
    [only] = (await get(stowage, "/debug/pods/default/waits/nodes?node=b"))["nodes"]
    assert only in expected
    asked = {"every": "true"}
    answer = await stowage.http.post("/debug/explain/pods", params=asked, content=POD % "one")
    assert {node["node"] for node in answer.json()["answers"][0]["nodes"]} == {"a", "b", "mig"}
    await get(stowage, "/debug/pods/default/gone/nodes", 404)


async def test_what_would_make_a_pod_fit_is_in_the_json(start: Start) -> None:
    """All that ``stowage explain`` says in words: the text from the JSON is the text from the state."""
    high = replace(make_pod("high", 7), priority=100)
    stowage = await start(*CLUSTER, make_pod("fills", 8, node_name="a"), high)
    assert stowage.service.engine is not None
    report = TypeAdapter(PodReport).validate_python(await get(stowage, "/debug/pods/default/high"))
    state = stowage.service.engine.state
    settings = Settings(evictor="off")
    text = render(explain(state, state.pods["default/high"], now=time.time(), settings=settings))
    assert report.now is not None
    assert render(report.now) == text
    for words in (
        "What would help:\n  wait: kube-scheduler will evict ",
        "\n  b: needs 7",
        "were evicted",
    ):
        assert words in text


async def test_pods_by_name_alone(start: Start) -> None:
    stowage = await start(*CLUSTER, replace(make_pod("holds"), namespace="other"))
    assert await get(stowage, "/debug/pods?name=holds") == {"pods": ["default/holds", "other/holds"]}
    assert await get(stowage, "/debug/pods?name=old") == {"pods": []}


async def test_a_running_pod_is_explained_on_request(start: Start) -> None:
    stowage = await start(*CLUSTER)
    report = await get(stowage, "/debug/pods/default/holds?explained=true")
    assert (report["node"], report["now"]["node"], report["now"]["fits"]) == ("b", "b", 2)


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        (Replica("a", True, "a"), ""),
        (Replica("a", False, "b"), "kube-scheduler calls the leader, b"),
        (Replica("a", False), "there is no leader now"),
        (Replica("a"), "query the others"),
    ],
)
def test_where_the_decisions_are(replica: Replica, words: str) -> None:
    text = replica.without_decisions()
    assert words in text
    assert bool(text) == bool(words)


async def test_where_one_process_knows_all_no_others_are_named(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("waits", 9))
    report: dict[str, Any] = await get(stowage, "/debug/pods/default/waits")
    assert report["note"].startswith("kube-scheduler has not called Stowage for this pod")
    assert "replica" not in report["note"]


async def test_a_report_has_the_gang_its_members_and_what_is_asked_for(start: Start) -> None:
    gang = {"stowage.dev/gang": "train", "stowage.dev/gang-min": "2"}
    members = [make_pod("first", 1, labels=gang, node_name="b"), make_pod("second", 9, labels=gang)]
    stowage = await start(*CLUSTER, *members)
    for pod in ("first", "second"):
        report = await get(stowage, f"/debug/pods/default/{pod}")
        assert "default/train: 1 of 2 members run" in report["gang"]
        assert report["members"] == [["default/first", "b"], ["default/second", ""]]
    assert report["asked"] == "1 CPU, 1 GiB of memory, 9 nvidia.com/gpu"


async def test_the_pods_with_gpus_of_some_nodes_and_what_matches_nothing(start: Start) -> None:
    bound = replace(make_pod("holder", 2, node_name="a", labels={"app": "train"}), namespace="team")
    stowage = await start(*CLUSTER, bound)
    [line] = (await get(stowage, "/debug/pods?node=a&selector=app=train&namespace=team"))["holders"]
    assert (line["pod"], line["node"], line["gpus"]) == ("team/holder", "a", 2.0)
    for query in ("/debug/pods?node=nope", "/debug/pods?selector=app=nope", "/debug/overview?namespace=nope"):
        assert "nope" in (await get(stowage, query, 400))["detail"]
