"""More and fewer nodes: which pending pods then fit, and where the pods of removed nodes run."""

from __future__ import annotations

from typing import Any

import pytest

from extender.explain.pod import explain
from extender.explain.words import Word
from extender.k8s.node_filter import Rule
from extender.plan.change import added_nodes, change_report
from extender.plan.prices import NO_COSTS
from extender.source.errors import BadInput
from packing.model.reasons import Reason
from tests.extender.plan.clusters import GPU, H100, Manifest, node, pod, source_of
from tests.extender.plan.test_property import quiet

GPU_MODEL = "nvidia.com/gpu.product"
OTHER = {GPU_MODEL: "NVIDIA-L4"}
TAINTED = [{"key": "team", "value": "a", "effect": "NoSchedule"}]


def report_of(source, add=(), remove=()):
    added = [one for text in add for one in added_nodes(text, source.nodes())]
    return change_report(source, added, list(remove), NO_COSTS, quiet)


def figures(report) -> dict[str, tuple[float, float | None, float]]:
    return {gain.what: (gain.today, gain.promised, gain.replayed) for gain in report.gains}


def test_pods_that_wait_fit_on_more_nodes():
    source = source_of(node("a", 4), pod("x", "a", 4), pod("one", gpus=2), pod("two", gpus=4))
    report = report_of(source, ["2xa"])
    assert figures(report)["pending pods that fit"] == (0, 2, 2)
    assert figures(report)["GPUs entirely free"] == (0, 2, 2)
    assert figures(report)["largest NVLink island request"] == (0, 2, 2)
    assert report.agrees


def test_pods_of_a_lost_node_go_elsewhere_or_not():
    items = node("a", 4), node("b", 4), pod("x", "a", 2), pod("y", "b", 3), pod("bare", "b", 0, owner="")
    report = report_of(source_of(*items, pod("agent", "b", 0, owner="DaemonSet")), remove=["b"])
    assert report.sentences[1] == "0 of 1 pod of the removed nodes can run elsewhere."
    moved, ends = report.tables[1], report.tables[2]
    assert list(moved.rows) == [("ml/y", "-", "-", "not enough free GPUs")]
    assert dict(ends.rows) == {
        "ml/agent": "it is a static pod or belongs to a DaemonSet",
        "ml/bare": "no controller would recreate it",
    }
    report = report_of(source_of(*items), add=["1xH100"], remove=["b"])
    assert figures(report)["pods of removed nodes that run"] == (1, 1, 1)


def test_a_waiting_pod_may_lose_its_place():
    source = source_of(node("a", 4), node("b", 4), pod("waits", gpus=4), pod("x", "a", 1))
    report = report_of(source, remove=["b"])
    assert figures(report)["pending pods that fit"] == (1, 0, 0)
    assert report.sentences[1] == "1 pending pod that fits today would no longer fit."


def test_added_nodes_are_like_existing_ones():
    nodes = source_of(
        node("a", 8, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
        node("b", 4),
        node("c", 4),
    ).nodes()
    assert [one.allocatable["nvidia.com/gpu"] for one in added_nodes("2xa", nodes)] == ["8", "8"]
    assert added_nodes("1xa", nodes)[0].taints == ()
    assert added_nodes("1xh100", nodes)[0].allocatable["nvidia.com/gpu"] == "4"  # the most frequent kind
    assert len({one.name for one in added_nodes("3xb", nodes)}) == 3
    first = {one.name for one in added_nodes("2xb", nodes)}
    assert not {one.name for one in added_nodes("2xb", nodes, first)} & first


def test_a_gpu_of_the_catalog_needs_a_description():
    nodes = source_of(node("a")).nodes()
    (one,) = added_nodes("1xB200:gpus=8,cpu=192,memory=2Ti", nodes)
    assert one.labels["nvidia.com/gpu.product"] == "NVIDIA-B200"
    assert dict(one.allocatable) == {"cpu": "192", "memory": "2Ti", "nvidia.com/gpu": "8", "pods": "110"}
    for text, says in [
        ("1xB200", "describe one"),
        ("1xB200:gpus=8", "describe one"),
        ("1xB200:gpus=8,cpu=1,memory=1Gi,disk=4", "describe one"),
        ("1xZ9000:gpus=8,cpu=192,memory=2Ti", "is named 'Z9000'; known GPUs"),
        ("H100", "expected COUNTxTYPE"),
        ("0xH100", "expected COUNTxTYPE"),
        ("9999xH100", "at most 2000 nodes"),
    ]:
        with pytest.raises(BadInput, match=says):
            added_nodes(text, nodes)


def test_a_node_that_is_not_there_cannot_be_removed():
    with pytest.raises(BadInput, match="there is no node z"):
        report_of(source_of(node("a")), remove=["z"])


def gang(count: int, gpus: int = 4, **more: Any) -> list[Manifest]:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(count)}
    return [pod(f"w{n}", gpus=gpus, labels=labels, **more) for n in range(count)]


def test_a_gang_fits_as_a_whole_or_not_at_all() -> None:
    source = source_of(node("a", 4), *gang(2))
    report = report_of(source, ["1xa"])
    assert report.sentences[0] == "2 pending pods fit (0 without the change), 2 of them only with the change."
    assert figures(report)["pending pods that fit"] == (0, 2, 2)
    report = report_of(source_of(node("a", 4), *gang(3)), ["1xa"])
    assert figures(report)["pending pods that fit"] == (0, 0, 0)
    assert {row[4] for row in report.tables[0].rows} == {Reason.GANG_DOES_NOT_FIT.text}
    assert report.agrees


def test_the_room_that_a_gang_does_not_take_is_there_for_others() -> None:
    source = source_of(node("a", 4), *gang(2), pod("x", gpus=4))
    rows = {row[0]: row[2] for row in report_of(source).tables[0].rows}
    assert rows == {"ml/w0": "-", "ml/w1": "-", "ml/x": "a"}


def test_a_member_with_gates_cannot_start_so_its_gang_does_not() -> None:
    first, second = gang(2)
    second["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    report = report_of(source_of(node("a", 8), first, second), ["1xa"])
    assert figures(report)["pending pods that fit"] == (0, 0, 0)


def test_a_member_fits_by_itself_once_another_one_is_bound() -> None:
    first, second = gang(2)
    first["spec"]["nodeName"], first["status"]["phase"] = "a", "Running"
    assert (
        figures(report_of(source_of(node("a", 8), first, second), ["1xa"]))["pending pods that fit"][1] == 1
    )


def test_members_are_placed_the_largest_first() -> None:
    small, large = gang(2, 1), gang(2, 4)
    items = node("a", 4), node("b", 4), pod("x", "b", 3), small[0], large[1]
    assert figures(report_of(source_of(*items), ["1xa"]))["pending pods that fit"] == (2, 2, 2)


def test_a_gang_starts_with_a_member_that_asks_for_no_gpu() -> None:
    launcher, *workers = gang(3)
    for amounts in launcher["spec"]["containers"][0]["resources"].values():
        amounts.pop(GPU, None)
    items = node("a", 4), node("b", 4), launcher, *workers
    assert figures(report_of(source_of(*items)))["pending pods that fit"] == (2, 2, 2)
    assert figures(report_of(source_of(*items), remove=["b"]))["pending pods that fit"] == (2, 0, 0)


@pytest.mark.parametrize(
    ("nodes", "cpu", "why"),
    [
        ([node("a")], "65", "no node allowed by its rules is large enough for it, even without other pods"),
        ([node("a")], "64", Reason.NO_FREE_CPU.text),
        ([node("a", unschedulable=True)], "1", Rule.CORDONED),
        ([node("a", 0), node("b", 0), node("c", 2)], "1", Reason.TOO_FEW_GPUS.text),
        (
            [node("a", labels=OTHER), node("b", labels=OTHER), node("c", taints=TAINTED)],
            "1",
            Rule.NOT_TOLERATED,
        ),
    ],
)
def test_why_not_is_what_explain_says(nodes: list[Manifest], cpu: str, why: str) -> None:
    items = *nodes, pod("x", "a", 0), pod("waits", gpus=4, cpu=cpu, nodeSelector={GPU_MODEL: H100[GPU_MODEL]})
    source = source_of(*items)
    (row,) = report_of(source).tables[0].rows
    assert row[4] == why
    state = source.state()
    said = explain(state, state.pods["ml/waits"]).verdict.why
    assert said.startswith(why) or (said == f"{Word.TOO_LARGE()}." and ("large" in why or "fewer" in why))
