"""Why the best node and not the next one, in nouns."""

from __future__ import annotations

from extender.explain.pod import explain
from tests.extender.builders import make_node, make_pod, make_state


def test_a_node_that_is_filled_keeps_another_whole() -> None:
    state = make_state(make_node("a"), make_node("b"), make_pod("x", 6, node_name="a"))
    best, other = explain(state, make_pod("new", 2)).best
    assert (best.node, best.why) == ("a", "fills a; keeps b whole")
    assert (other.node, other.why) == ("b", "breaks up an idle node")


def test_idle_nodes_are_counted() -> None:
    nodes = (make_node(name) for name in "abc")
    state = make_state(*nodes, make_pod("x", 3, node_name="a"))
    assert explain(state, make_pod("new", 2)).best[0].why == "keeps 2 idle nodes whole"


def test_free_gpus_stay_together() -> None:
    pods = make_pod("x", 6, node_name="a"), make_pod("y", 2, node_name="b")
    state = make_state(make_node("a"), make_node("b"), *pods)
    best, other = explain(state, make_pod("new", 1)).best
    assert (best.node, best.why) == ("a", "leaves 6 GPUs free together on b")
    assert other.why == "splits 6 free GPUs that would stay together"


def test_instances_count_as_parts_of_the_node() -> None:
    profile = "nvidia.com/mig-3g.40gb"
    devices = {profile.replace("/", "__"): "2"}
    labels = {"nvidia.com/mig.strategy": "mixed"}
    nodes = (make_node(name, 0, labels=labels, **devices) for name in "ab")
    state = make_state(*nodes, make_pod("x", 1, resource=profile, node_name="a"))
    best = explain(state, make_pod("new", 1, resource=profile)).best[0]
    assert (best.node, best.why) == ("a", "fills a; keeps b whole")
