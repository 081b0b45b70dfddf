"""Golden replies, byte for byte, for each verb and each mode of kube-scheduler."""

from __future__ import annotations

import json

import pytest

from packing.model.reasons import Reason
from tests.contract.conftest import GPU, Start, manifest
from tests.extender.builders import make_node, make_pod

TAKEN = Reason.NO_FREE_GPUS.text
FULL = (make_node("a"), make_node("b"), make_pod("on-b", 6, node_name="b"), make_node("c", 4))


async def test_filter_with_names(start: Start) -> None:
    stowage = await start(*FULL, shortlist=0)
    assert await stowage.filter(manifest(gpus=4), ["c", "b", "a", "gone"]) == (
        b'{"Nodes":null,"NodeNames":["c","a"],"FailedNodes":null,"FailedAndUnresolvableNodes":'
        b'{"gone":"Stowage has not seen this node yet","b":"not enough free GPUs"},"Error":""}'
    )


async def test_filter_with_whole_nodes_returns_them_unchanged(start: Start) -> None:
    stowage = await start(*FULL)
    items = [
        {"metadata": {"name": name, "uid": f"n-{name}"}, "status": {"images": [{"sizeBytes": 12345678901}]}}
        for name in "abc"
    ]
    response = await stowage.post(
        "filter", {"Pod": manifest(gpus=4), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    )
    assert response.json() == {
        "Nodes": {"metadata": {}, "items": [items[0], items[2]]},
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }


async def test_if_nothing_fits_every_node_has_its_reason_and_there_is_no_error(start: Start) -> None:
    stowage = await start(*FULL)
    assert await stowage.filter(manifest(gpus=8), ["b", "c"]) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":null,"FailedAndUnresolvableNodes":'
        b'{"c":"node has fewer GPUs than requested","b":"not enough free GPUs"},"Error":""}'
    )


@pytest.mark.parametrize(("version", "failed"), [("1.37", None), ("v1.38.0-alpha.1", {"b": TAKEN})])
async def test_from_1_38_on_reasons_that_eviction_can_remove_are_separate(
    start: Start, version: str, failed: object
) -> None:
    stowage = await start(*FULL, kubernetes_version=version)
    stowage.service.engine.set_server_version("")
    reply = json.loads(await stowage.filter(manifest(gpus=8), ["b", "c"]))
    assert reply["FailedNodes"] == failed
    assert set(reply["FailedNodes"] or {}) | set(reply["FailedAndUnresolvableNodes"]) == {"b", "c"}


async def test_without_a_setting_the_version_of_the_api_server_counts(start: Start) -> None:
    stowage = await start(*FULL)
    stowage.service.engine.set_server_version("1.38")
    assert json.loads(await stowage.filter(manifest(gpus=8), ["b"]))["FailedNodes"] == {"b": TAKEN}


async def test_reasons_contain_no_node_name_and_no_number() -> None:
    assert not [reason for reason in Reason if any(char.isdigit() for char in reason.text)]


async def test_the_shortlist_returns_the_best_nodes_without_reasons_of_others(start: Start) -> None:
    stowage = await start(*FULL, shortlist=1, policy="best-fit")
    assert await stowage.filter(manifest(gpus=2), ["a", "b", "c"]) == (
        b'{"Nodes":null,"NodeNames":["b"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )


async def test_one_node_and_no_node(start: Start) -> None:
    stowage = await start(*FULL)
    assert json.loads(await stowage.filter(manifest(), ["a"]))["NodeNames"] == ["a"]
    assert json.loads(await stowage.filter(manifest(), []))["NodeNames"] == []
    assert await stowage.prioritize(manifest(), []) == b"[]"


async def test_prioritize_gives_integers_and_ten_only_to_the_best(start: Start) -> None:
    stowage = await start(*FULL, policy="best-fit")
    assert await stowage.prioritize(manifest(gpus=2), ["a", "b", "gone"]) == (
        b'[{"Host":"a","Score":0},{"Host":"b","Score":10},{"Host":"gone","Score":0}]'
    )


async def test_equal_nodes_are_ordered_the_same_way_each_time(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i}") for i in range(20)))
    names = [f"n{i}" for i in range(20)]
    scores, reversed_scores = [
        {host["Host"]: host["Score"] for host in json.loads(await stowage.prioritize(manifest(), order))}
        for order in (names, names[::-1])
    ]
    assert scores == reversed_scores
    assert sorted(scores.values())[-2:] == [9, 10]


PREEMPTOR = manifest(gpus=4, spec={"priority": 10, "containers": [{"resources": {"requests": {GPU: "4"}}}]})
VICTIMS = (
    make_node("a", 4),
    make_pod("small", 1, node_name="a", priority=1),
    make_pod("large", 3, node_name="a", priority=5),
    make_node("b", 4),
    make_pod("other", 4, node_name="b"),
)


@pytest.mark.parametrize(
    ("field", "pods"),
    [
        ("NodeNameToMetaVictims", [{"UID": "uid-small"}, {"UID": "uid-large"}]),
        ("NodeNameToVictims", [{"metadata": {"uid": "uid-small"}}, {"metadata": {"uid": "uid-large"}}]),
    ],
    ids=["names", "whole pods"],
)
async def test_preempt_answers_in_short_form_highest_priority_first(
    start: Start, field: str, pods: list[object]
) -> None:
    stowage = await start(*VICTIMS)
    message = {"Pod": PREEMPTOR, "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
    message[field] = {"a": {"Pods": pods, "NumPDBViolations": 1}}
    assert (await stowage.post("preempt", message)).content == (
        b'{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"uid-large"},{"UID":"uid-small"}],"NumPDBViolations":0}}}'
    )


@pytest.mark.parametrize("uids", [[], ["uid-small"]])
async def test_preempt_answers_with_victims_of_its_own(start: Start, uids: list[str]) -> None:
    """kube-scheduler found none, or too few."""
    stowage = await start(*VICTIMS)
    candidate = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
    reply = json.loads(await stowage.preempt(PREEMPTOR, {"a": candidate}))
    assert reply["NodeNameToMetaVictims"]["a"]["Pods"] == [{"UID": "uid-large"}, {"UID": "uid-small"}]


@pytest.mark.parametrize("uids", [["uid-small", "uid-other"], ["nobody"]])
async def test_preempt_leaves_out_a_node_whose_victims_are_not_there(start: Start, uids: list[str]) -> None:
    """One on another node, an unknown one."""
    stowage = await start(*VICTIMS)
    candidate = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
    assert await stowage.preempt(PREEMPTOR, {"a": candidate}) == b'{"NodeNameToMetaVictims":{}}'


async def test_bind_is_off_by_default(start: Start) -> None:
    stowage = await start(*FULL, make_pod("waits"))
    assert b"binding is off in Stowage" in await stowage.bind(manifest("waits"), "a")


async def test_bind_reserves_the_room_at_once_and_may_be_repeated(start: Start) -> None:
    stowage = await start(make_node("a", 1), make_node("b", 1), make_pod("waits"), bind=True)
    assert await stowage.bind(manifest("waits"), "a") == b'{"Error":""}'
    assert json.loads(await stowage.filter(manifest("next"), ["a", "b"]))["NodeNames"] == ["b"]
    assert await stowage.bind(manifest("waits"), "a") == b'{"Error":""}'
    assert json.loads(await stowage.bind(manifest("waits"), "b"))["Error"] == "pod is bound to another node"


async def test_bind_knows_pods_that_filter_was_asked_about(start: Start) -> None:
    stowage = await start(make_node("a", 1), bind=True)
    stranger = {"Error": "pod is unknown, or was recreated under its name"}
    assert json.loads(await stowage.bind(manifest("new"), "a")) == stranger
    await stowage.filter(manifest("new"), ["a"])
    assert await stowage.bind(manifest("new"), "a") == b'{"Error":""}'
    assert json.loads(await stowage.bind(manifest("late"), "a")) == stranger


async def test_bind_refuses_a_node_that_has_become_full(start: Start) -> None:
    stowage = await start(make_node("a", 1), make_pod("holds", node_name="a"), make_pod("waits"), bind=True)
    assert json.loads(await stowage.bind(manifest("waits"), "a")) == {"Error": TAKEN}
    assert json.loads(await stowage.bind(manifest("waits"), "gone")) == {"Error": Reason.UNKNOWN_NODE.text}
