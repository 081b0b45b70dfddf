"""More and fewer nodes: which pending pods then fit, and where the pods of removed nodes run."""

from __future__ import annotations

from typing import Any

import pytest

from extender.plan.change import added_nodes, change_report
from extender.plan.prices import NO_COSTS
from extender.source.errors import BadInput
from packing.model.reasons import Reason
from tests.extender.plan.clusters import GPU, Manifest, node, pod, source_of
from tests.extender.plan.test_property import quiet


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


def test_a_member_fits_by_itself_once_another_one_is_bound() -> None:
    first, second = gang(2)
    first["spec"]["nodeName"], first["status"]["phase"] = "a", "Running"
    assert (
        figures(report_of(source_of(node("a", 8), first, second), ["1xa"]))["pending pods that fit"][1] == 1
    )


def test_a_gang_starts_with_a_member_that_asks_for_no_gpu() -> None:
    launcher, *workers = gang(3)
    for amounts in launcher["spec"]["containers"][0]["resources"].values():
        amounts.pop(GPU, None)
    items = node("a", 4), node("b", 4), launcher, *workers
    assert figures(report_of(source_of(*items)))["pending pods that fit"] == (2, 2, 2)
    assert figures(report_of(source_of(*items), remove=["b"]))["pending pods that fit"] == (2, 0, 0)
