"""Who holds which GPUs, since when and until when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extender.cluster.state import State
from extender.explain.answers import HolderLine
from extender.explain.holders import holder_lines
from extender.k8s.affinity import label_requirements
from extender.k8s.objects import Deleted
from extender.settings import Settings
from extender.untrusted.limits import LABEL_SELECTOR
from tests.cases.answers import cluster as cluster_of
from tests.extender.builders import make_node, make_pod, make_state

CASES = Path(__file__).parents[2] / "cases"


def holders(state: State, *nodes: str, namespace: str = "", selector: str = "") -> list[HolderLine]:
    return asyncio.run(holder_lines(state, nodes, namespace, selector))


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
