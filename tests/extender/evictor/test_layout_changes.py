"""MIG layouts that change for pods that wait, against a real HTTP server and a MIG manager of the test."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from extender.evictor.layout_changes import next_write
from extender.k8s.objects import Node
from tests.examples import some
from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Manifest
from tests.extender.evictor.mig_nodes import CHANGE, CONFIG, STATE, MigManager, large, mig_node, small
from tests.extender.evictor.replica import Replica, Start, log

SETTINGS: dict[str, Any] = {
    "mig_layouts": "on",
    "consolidation_after_seconds": 20,
    "consolidation_price": 100,
    "nomination_seconds": 60,
    "mig_layout_seconds": 100,
}


@pytest.fixture
def manager(api: ApiServer) -> MigManager:
    return MigManager(api)


def begin(start: Start, **settings: Any) -> Replica:
    replica = start(**SETTINGS | settings)
    replica.now = time.time()
    return replica


async def rounds(replica: Replica, manager: MigManager, count: int, seconds: float = 10.0) -> None:
    for _ in range(count):
        await replica.rounds(1, seconds)
        manager.step()


def labels(api: ApiServer, name: str) -> dict[str, str]:
    found: dict[str, str] = api.nodes.objects[name]["metadata"]["labels"]
    return found


def step_of(api: ApiServer, name: str) -> str:
    """How far the change of the node is, "" where there is none."""
    text = api.nodes.objects[name]["metadata"].get("annotations", {}).get(CHANGE)
    return str(json.loads(text)["step"]) if text else ""


def layouts(api: ApiServer) -> dict[str, str]:
    return {name: labels(api, name)[CONFIG] for name in sorted(api.nodes.objects)}


async def test_an_idle_node_turns_back_for_a_pod_of_eight(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    for name in ("n1", "n2", "n3"):
        api.put(mig_node(name))
    api.put(small("s", "n1"))
    api.put(large("p"))
    replica = begin(start)
    await rounds(replica, manager, 15)
    assert layouts(api) == {"n1": "all-1g.10gb", "n2": "all-disabled", "n3": "all-1g.10gb"}
    assert step_of(api, "n2") == "done"
    assert [(key, node) for _, key, node in log(api, "nominate")] == [("ml/p", "n2")]
    said = [(event["regarding"]["name"], event["reason"]) for event in api.evictions.events]
    assert said == [("n2", "MigLayoutBegun"), ("p", "MigLayoutBegun"), ("n2", "MigLayoutDone")]
    assert (
        replica.metric("mig_layouts_total", result="begun"),
        replica.metric("mig_layouts_total", result="done"),
    ) == (1, 1)
    api.put(large("p", "n2"))
    await rounds(replica, manager, 30)
    assert manager.log == [("n2", "all-disabled")]


async def test_a_node_of_whole_gpus_is_divided_for_seven_small_pods(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    api.put(mig_node("n1", "all-disabled"))
    api.put(mig_node("n2", "all-disabled"))
    api.put(large("train", "n1"))
    for number in range(7):
        api.put(small(f"s{number}"))
    await rounds(begin(start), manager, 15)
    assert layouts(api) == {"n1": "all-disabled", "n2": "all-1g.10gb"}


@pytest.mark.parametrize(
    "keeps",
    [
        {"mig_layouts": "off"},
        {"mig_layouts": "recommend"},
        {"evictor": "recommend"},
        {"consolidation_after_seconds": 100_000},
    ],
)
async def test_no_layout_changes_where_the_settings_say_so(
    api: ApiServer, start: Start, manager: MigManager, keeps: dict[str, Any]
) -> None:
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start, **keeps)
    await rounds(replica, manager, 20)
    assert not log(api, "layout")
    recommends = "recommend" in keeps.values()
    assert replica.metric("mig_layouts_total", result="recommended") == recommends
    assert [event["reason"] for event in api.evictions.events] == ["MigLayoutRecommended"] * recommends


def movable(name: str, on: str) -> Manifest:
    manifest = small(name, on)
    started = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    manifest["metadata"] |= {
        "ownerReferences": [{"kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}],
        "creationTimestamp": started,
        "annotations": {
            "stowage.dev/restartable": "true",
            "stowage.dev/checkpointed-at": datetime.now(UTC).isoformat(),
        },
    }
    manifest["status"]["startTime"] = started
    return manifest


async def test_pods_that_may_move_are_moved_first(api: ApiServer, start: Start, manager: MigManager) -> None:
    for name in ("n1", "n2"):
        api.put(mig_node(name))
    api.put(movable("a", "n1"))
    api.put(small("b", "n2"))
    api.put(large("p"))
    api.evictions.ends = (datetime.now(UTC) + timedelta(seconds=1200)).isoformat()
    replica = begin(start)
    await rounds(replica, manager, 10)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/a"]
    assert (step_of(api, "n1"), labels(api, "n1")[CONFIG]) == ("drain", "all-1g.10gb")
    api.delete("ml/a")
    api.put(movable("a-again", "n2"))
    await rounds(replica, manager, 6)
    assert (step_of(api, "n1"), labels(api, "n1")[CONFIG]) == ("done", "all-disabled")


@pytest.mark.parametrize("how", ["fails", "stalls", "is_gone"])
async def test_a_manager_that_does_not_do_it_is_told_to_go_back(
    api: ApiServer, start: Start, manager: MigManager, how: str
) -> None:
    """A manager that stalls goes on once the label changes (NVIDIA/gpu-operator#2833)."""
    if how == "is_gone":
        manager.is_gone = True
    else:
        getattr(manager, how).add("all-disabled")
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start)
    await rounds(replica, manager, 40)
    assert (step_of(api, "n1"), labels(api, "n1")[CONFIG], labels(api, "n1")[STATE]) == (
        "failed",
        "all-1g.10gb",
        "success",
    )
    assert replica.metric("mig_layouts_total", result="reverted") == 1
    assert replica.metric("mig_layouts_total", result="begun") == 1  # and not again
    assert fits_small(replica)
    await rounds(replica, manager, 2, seconds=86_400)
    assert replica.metric("mig_layouts_total", result="begun") == 2  # after a day


def fits_small(replica: Replica) -> bool:
    spec = replica.state.fleet.spec_of("n1")
    return spec is not None and not spec.blocked


async def test_a_manager_that_cannot_even_go_back_is_left_alone(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    manager.fails |= {"all-disabled", "all-1g.10gb"}
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start)
    await rounds(replica, manager, 40)
    assert (step_of(api, "n1"), labels(api, "n1")[STATE]) == ("failed", "failed")
    assert manager.log == [("n1", "all-disabled"), ("n1", "all-1g.10gb")]
    assert replica.metric("mig_layouts_total", result="failed") == 1


@pytest.mark.parametrize("change", ["cordon", "label"])
@pytest.mark.parametrize("at", ["drain", "apply", "revert"])
async def test_what_somebody_else_changes_is_theirs(
    api: ApiServer, start: Start, manager: MigManager, at: str, change: str
) -> None:
    manager.stalls.add("all-disabled")
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start)
    while step_of(api, "n1") != at:
        await rounds(replica, manager, 1)
    node = api.nodes.objects["n1"]
    if change == "cordon":
        api.put(node | {"spec": {"unschedulable": True}})
    else:
        metadata = node["metadata"] | {"labels": node["metadata"]["labels"] | {CONFIG: "all-7g.80gb"}}
        api.put(node | {"metadata": metadata})
    before = labels(api, "n1")[CONFIG]
    await rounds(replica, manager, 2)
    assert (step_of(api, "n1"), labels(api, "n1")[CONFIG]) == ("", before)
    assert replica.metric("mig_layouts_total", result="taken_over") == 1


BREAKS = [
    ("", "crash"),
    ("", "lost"),
    ("", "hangup"),
    ("stalls", "crash"),
    ("fails", "crash"),
    ("fails both", "lost"),
]


@pytest.mark.parametrize(
    ("how", "fault", "writes"),
    some([(how, fault, writes) for writes in range(6) for how, fault in BREAKS], 5),
)
async def test_no_change_is_forgotten_whatever_breaks_off(
    api: ApiServer, start: Start, manager: MigManager, how: str, fault: str, writes: int
) -> None:
    """The leader dies before a write, or after one without an answer, and a pod must move. The next leader
    goes on. In the end the node has the layout of its label, and takes pods."""
    manager.fails |= {"fails": {"all-disabled"}, "fails both": {"all-disabled", "all-1g.10gb"}}.get(
        how, set()
    )
    manager.stalls |= {"all-disabled"} if how == "stalls" else set()
    api.put(mig_node("n1"))
    api.put(mig_node("n2"))
    api.put(movable("a", "n1"))
    api.put(small("b", "n2"))
    api.put(large("p"))
    api.evictions.instant = True
    replica = begin(start)
    if fault != "crash":
        for action in ("layout", "evict"):
            api.evictions.faults[action].extend([""] * writes + [fault] * 2)
    replica.leader.lose_after = writes
    await rounds(replica, manager, 12)
    for _ in range(3):  # as many leaders as may be
        now, replica = replica.now, begin(start)
        replica.now = now
        replica.leader.lose_after = writes + 1
        await rounds(replica, manager, 15)
    now, replica = replica.now, begin(start)
    replica.now = now
    await rounds(replica, manager, 45)
    assert step_of(api, "n1") in ("done", "failed")
    assert labels(api, "n1")[CONFIG] == ("all-1g.10gb" if how else "all-disabled")
    assert labels(api, "n1")[STATE] == ("failed" if how == "fails both" else "success")
    spec = replica.state.fleet.spec_of("n1")
    assert spec is not None
    assert not spec.blocked
    assert not api.nodes.objects["n1"].get("spec", {}).get("unschedulable")


async def test_an_error_about_one_node_holds_up_no_other(
    api: ApiServer, start: Start, manager: MigManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start, mig_layouts_at_once=2)
    while not step_of(api, "n1"):
        await rounds(replica, manager, 1)

    def fails(node: Node, *arguments: Any, **more: Any) -> Any:
        if node.name == "n1":
            raise ValueError
        return next_write(node, *arguments, **more)

    monkeypatch.setattr("extender.evictor.layout_changes.next_write", fails)
    api.put(mig_node("n2"))
    api.put(large("q"))
    await rounds(replica, manager, 30)
    assert (step_of(api, "n1"), step_of(api, "n2")) == ("drain", "done")
    assert replica.metric("errors_total") > 0


class Agent:
    """The agent of a node, which writes what it likes to its own node."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self._api, self._name = api, name

    def write(self, step: str, now: float) -> None:
        before, after = ({"name": name, "devices": {}} for name in ("all-1g.10gb", "all-disabled"))
        text = json.dumps({"from": before, "to": after, "step": step, "since": now, "until": now + 40_000})
        node = self._api.nodes.objects[self._name]
        self._api.put(node | {"metadata": node["metadata"] | {"annotations": {CHANGE: text}}})


@pytest.mark.parametrize(
    ("step", "per_hour"),
    some(product(["drain", "apply", "revert", "done", "given_up", "failed"], [1, 4]), 5),
)
async def test_what_the_agent_of_a_node_writes_delays_its_own_node_only(
    api: ApiServer, start: Start, manager: MigManager, step: str, per_hour: int
) -> None:
    for name in ("n1", "n2"):
        api.put(mig_node(name))
    api.put(small("s", "n1"))
    replica, agent = begin(start, mig_layouts_per_hour=per_hour), Agent(api, "n1")
    await rounds(replica, manager, 1)
    api.put(large("p"))
    for _ in range(15):
        agent.write(step, replica.now)
        await rounds(replica, manager, 1)
    assert labels(api, "n2")[CONFIG] == "all-disabled"
    written = [entry for entry in log(api, "layout") if entry[1] == "n1"]
    assert len(written) <= 3  # in 150 seconds


@pytest.mark.parametrize("step", some(["drain", "apply", "revert", "failed"], 1))
async def test_a_leader_waits_for_a_change_that_it_finds_only_as_long_as_it_can_take(
    api: ApiServer, start: Start, manager: MigManager, step: str
) -> None:
    for name in ("n1", "n2"):
        api.put(mig_node(name))
    api.put(small("s", "n1"))
    api.put(large("p"))
    agent, now = Agent(api, "n1"), time.time()
    agent.write(step, now)
    replica = begin(start)
    for passed in range(0, 5400, 60):
        agent.write(step, now + passed)
        await rounds(replica, manager, 1, seconds=60)
    assert labels(api, "n2")[CONFIG] == "all-disabled"


@pytest.mark.parametrize("text", ["", "{", "[]", "x" * 10_000, '{"from": 1}', '{"step": "drain"}'])
async def test_an_annotation_that_cannot_be_read_closes_no_node(
    api: ApiServer, start: Start, manager: MigManager, text: str
) -> None:
    node = mig_node("n1")
    api.put(node | {"metadata": node["metadata"] | {"annotations": {CHANGE: text}}})
    replica = begin(start)
    await rounds(replica, manager, 2)
    assert fits_small(replica)
    assert not log(api)


async def test_a_node_whose_pods_do_not_leave_in_time_keeps_its_layout(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    """A pod of another scheduler has come."""
    api.put(mig_node("n1"))
    api.put(large("p"))
    replica = begin(start)
    while not step_of(api, "n1"):
        await rounds(replica, manager, 1)
    api.put(small("other", "n1"))
    await rounds(replica, manager, 15)
    assert (step_of(api, "n1"), labels(api, "n1")[CONFIG]) == ("given_up", "all-1g.10gb")
    assert fits_small(replica)
    assert not log(api, "evict")
    assert replica.metric("mig_layouts_total", result="given_up") == 1
    api.delete("ml/other")
    await rounds(replica, manager, 30)
    assert replica.metric("mig_layouts_total", result="begun") == 1  # it is left alone for an hour
    await rounds(replica, manager, 1, seconds=3600)
    await rounds(replica, manager, 15)
    assert step_of(api, "n1") == "done"


async def test_outside_of_windows_no_layout_changes(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    api.put(mig_node("n1"))
    api.put(large("p"))
    opens = (time.time() // 60 + 30) * 60
    at = time.gmtime(opens)
    windows = [{"cron": f"{at.tm_min} {at.tm_hour} * * *", "duration": 600}]
    replica = begin(start, windows=windows)
    await rounds(replica, manager, 30)
    assert log(api, "label", "annotate") == []
    (event,) = api.evictions.events
    assert event["reason"] == "MigLayoutRecommended"
    assert event["note"].endswith(time.strftime("%H:%M UTC", at))
    replica.now = opens + 600 - 90  # a change takes up to 100 seconds
    await rounds(replica, manager, 5)
    assert step_of(api, "n1") == ""
    replica.now = opens + 86_400
    await rounds(replica, manager, 15)
    assert layouts(api) == {"n1": "all-disabled"}
