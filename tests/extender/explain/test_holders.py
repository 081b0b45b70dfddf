"""Who holds which GPUs, since when and until when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extender.cluster.state import State
from extender.explain.answers import HolderLine
from extender.explain.holders import holder_lines
from extender.explain.pod import explain
from extender.k8s.affinity import label_requirements
from extender.k8s.objects import Deleted
from extender.settings import Settings
from extender.untrusted.limits import LABEL_SELECTOR
from tests.cases.answers import cluster as cluster_of
from tests.extender.builders import make_node, make_pod, make_state

CASES = Path(__file__).parents[2] / "cases"


def holders(state: State, *nodes: str, namespace: str = "", selector: str = "") -> list[HolderLine]:
    return asyncio.run(holder_lines(state, nodes, namespace, selector))


def test_the_pods_with_gpus_of_each_node_the_largest_first() -> None:
    small, large = make_pod("small", 1, node_name="b"), make_pod("large", 4, node_name="b", priority=7)
    state = make_state(
        *(make_node("b", 8), make_node("a", 8), small, large, make_pod("cpu", 0, node_name="b")),
        *(make_pod("first", 2, node_name="a"), make_pod("pending", 8)),
    )
    found = [(line.node, line.pod, line.gpus, line.resources) for line in holders(state)]
    assert found == [
        ("a", "default/first", 2.0, {"nvidia.com/gpu": 2}),
        ("b", "default/large", 4.0, {"nvidia.com/gpu": 4}),
        ("b", "default/small", 1.0, {"nvidia.com/gpu": 1}),
    ]
    assert [line.pod for line in holders(state, "a")] == ["default/first"]
    assert [line.priority for line in holders(state, "b")] == [7, 0]


def test_since_and_until_when() -> None:
    pods = [
        make_pod("limited", 1, node_name="a", started=1e9, created=9e8, deadline=600.0, grace=30.0),
        make_pod("open", 1, node_name="a", created=1e9),
        make_pod("going", 1, node_name="a", started=1e9, deleting=True, deleted=1.5e9, ends=1.5e9 + 30),
        make_pod("unknown", 1, node_name="a"),
    ]
    found = {
        line.pod: (line.since, line.until, line.limit)
        for line in holders(make_state(make_node("a", 8), *pods))
    }
    assert found == {
        "default/limited": (1e9, 1e9 + 630, "activeDeadlineSeconds"),
        "default/open": (1e9, None, ""),
        "default/going": (1e9, 1.5e9 + 30, "deletionGracePeriodSeconds"),
        "default/unknown": (None, None, ""),
    }


def test_the_gpus_of_shares_and_of_claims_are_named() -> None:
    shares = holders(cluster_of(CASES / "hami-containers-on-two-gpus" / "cluster.json", Settings()))
    assert shares
    assert all(0 < line.gpus < 8 and line.devices[0].startswith("GPU ") for line in shares), shares
    claims = holders(cluster_of(CASES / "amd-dra-partitions" / "cluster.json", Settings()))
    assert claims
    assert all(line.gpus and "/" in line.devices[0] for line in claims), claims


def test_a_pod_that_only_a_claim_names_is_listed() -> None:
    state = cluster_of(CASES / "amd-dra-partitions" / "cluster.json", Settings())
    line = holders(state)[0]
    state.apply([Deleted("Pod", line.pod)])
    assert line.pod in [other.pod for other in holders(state)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"namespace": "nope"}, "there are no pods in the namespace 'nope'"),
        ({"selector": "app=nope"}, "no pod with GPUs has labels that match 'app=nope'"),
        ({"selector": "app in x"}, "invalid label selector 'app in x'"),
        ({"selector": "a=" + "b" * LABEL_SELECTOR}, "invalid label selector"),
    ],
)
def test_what_matches_nothing_is_an_error(asked, said) -> None:
    state = make_state(make_node("a", 8), make_pod("p", 1, node_name="a", labels={"app": "train"}))
    with pytest.raises(ValueError, match=said):
        holders(state, **asked)
    with pytest.raises(ValueError, match="there is no node 'b'"):
        holders(state, "b")


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ("app=train", "a"),
        ("app==train", "a"),
        ("app!=train", "bc"),
        ("app in (train, web),tier", "a"),
        ("app notin (train,web)", "c"),
        ("!tier", "bc"),
        (" tier = , app=train", ""),
        ("example.com/x=1", "c"),
    ],
)
def test_a_selector_is_read_as_kubectl_reads_it(selector: str, selects: str) -> None:
    labels = {"a": {"app": "train", "tier": "x"}, "b": {"app": "web"}, "c": {"example.com/x": "1"}}
    required = label_requirements(selector)
    found = [name for name, of in labels.items() if all(requirement.matches(of) for requirement in required)]
    assert "".join(found) == selects


def test_explain_names_the_holders_of_the_nearest_node_unless_they_do_not_matter() -> None:
    pods = [make_pod(f"p{number}", 1 + (number == 3), node_name="a") for number in range(7)]
    state = make_state(make_node("a", 8), *pods)
    said = (
        "The GPUs of a are held by default/p3 (2 GPUs), default/p0 (1 GPU), default/p1 (1 GPU), default/p2 "
        "(1 GPU) and 3 more pods."
    )
    assert said in explain(state, make_pod("new", 2), now=1.0).hints
    busy = make_state(make_node("a", 8), make_pod("p", 1, node_name="a", cpu="60"))
    for cluster, pod in ((state, make_pod("large", 9)), (busy, make_pod("cpu", 1, cpu="60"))):
        found = explain(cluster, pod, now=1.0)
        assert found.fits == 0
        assert not [hint for hint in found.hints if "are held by" in hint]
