"""HAMi's device plugin serves one starting pod at a time, and so does bind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from extender.k8s.objects import Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from tests.extender.builders import why
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.verbs.binding import Cluster, hami


async def test_a_hami_node_takes_one_pod_at_a_time(impatient: None) -> None:
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    assert await cluster.bind(hami("a"), "hami") == ""
    assert why(cluster.state, hami("b"), "hami") is Reason.PLUGIN_BUSY
    assert await cluster.bind(hami("b"), "hami") == Reason.PLUGIN_BUSY.text
    cluster.tell("default/a")  # bound, and its containers start
    assert why(cluster.state, hami("b"), "hami") is Reason.PLUGIN_BUSY
    started = replace(cluster.api.pods["default/a"], phase="Running")
    cluster.state.apply([Upserted(started)])
    assert why(cluster.state, hami("b"), "hami") is Reason.FITS
    assert await cluster.bind(hami("b"), "hami") == ""


async def test_a_busy_plugin_fails_the_attempt_and_makes_no_pod_unschedulable() -> None:
    cluster = Cluster(node_of("hami"), replace(node_of("hami"), name="other"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    names = NodeNames.of(["hami", "other", "nowhere"])
    result, _ = filter_nodes(cluster.state, FilterArgs(hami("b"), names), Settings())
    assert list(result.names) == ["other"]
    names = NodeNames.of(["hami", "nowhere"])
    result, _ = filter_nodes(cluster.state, FilterArgs(hami("b"), names), Settings())
    assert (result.error, len(result.names)) == (Reason.PLUGIN_BUSY.text, 0)


async def test_a_pod_that_would_not_fit_either_is_unschedulable() -> None:
    """A failed attempt tells neither autoscalers nor the evictor that the pod needs room."""
    others = [hami("a"), hami("c", mib=40_000, cores=0), hami("d", mib=40_000, cores=0)]
    cluster = Cluster(node_of("hami"), replace(node_of("hami"), name="other"), *others, hami("b", mib=20_000))
    for name, node in (("c", "hami"), ("a", "hami"), ("d", "other")):
        assert await cluster.bind(hami(name, mib=3000 if name == "a" else 40_000, cores=0), node) == ""
        started = replace(cluster.api.pods[f"default/{name}"], phase="Pending" if name == "d" else "Running")
        cluster.state.apply([Upserted(started)])
    names, large = NodeNames.of(["hami", "other"]), hami("b", mib=39_000, cores=0)
    assert why(cluster.state, large, "other") is Reason.PLUGIN_BUSY
    result, _ = filter_nodes(cluster.state, FilterArgs(large, names), Settings())
    assert result.error == Reason.PLUGIN_BUSY.text  # the second GPU of the other node is free
    huge = hami("b", mib=40_537, cores=0)
    result, evaluation = filter_nodes(cluster.state, FilterArgs(huge, names), Settings())
    assert (result.error, len(result.names)) == ("", 0)
    assert evaluation is not None
    assert Reason.PLUGIN_BUSY not in evaluation.codes.tolist()
    assert sum(map(len, result.unresolvable.values())) == 2


async def test_nothing_is_bound_for_a_caller_that_hung_up() -> None:
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    waiting = asyncio.create_task(cluster.bind(hami("b"), "hami"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Running"))])
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert (len(cluster.api.sent), len(cluster.state.assumed_pods)) == (1, 0)
