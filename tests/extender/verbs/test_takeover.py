"""After a takeover, nodes are listed before a binding: the replica before may have bound pods there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from extender.k8s.objects import Pod, Upserted
from extender.verbs.bind import Takeover
from tests.extender.builders import make_node, make_pod
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.verbs.binding import Cluster, hami, own


def test_every_node_is_listed_at_first() -> None:
    takeover = Takeover()
    takeover.asked(100)
    assert takeover.needs_relist("a")
    takeover.relisted("a", 100)
    takeover.asked(100.5)
    assert takeover.needs_relist("a")  # the last bindings of another replica may still happen


def test_a_node_is_listed_once_more_when_no_other_binding_can_happen() -> None:
    takeover = Takeover()
    for tenth in range(100):
        takeover.asked(100 + tenth / 10)
        assert takeover.needs_relist("a") == (tenth <= 50)
        assert takeover.needs_relist("b")
        takeover.relisted("a", 100 + tenth / 10)


def test_after_a_pause_every_node_is_listed_again() -> None:
    takeover = Takeover()
    for tenth in range(100):
        takeover.asked(tenth / 10)
    takeover.relisted("a", 9.9)
    takeover.asked(10.8)
    assert not takeover.needs_relist("a")
    takeover.asked(11.9)
    assert takeover.needs_relist("a")


def bound_by_another(pod: Pod, node: str, index: int = 0, **changes: str) -> Pod:
    annotations = {**pod.annotations, "stowage.dev/gpu-indices": str(index)}
    return replace(pod, node_name=node, annotations=annotations, **changes)


async def test_a_gpu_that_another_replica_has_just_assigned_is_not_assigned_again() -> None:
    cluster = Cluster(node_of("stowage"), own("a"), own("b"))
    cluster.api.pods["default/a"] = bound_by_another(own("a"), "stowage")
    cluster.api.pods["default/c"] = bound_by_another(own("c"), "stowage", index=1)  # not watched
    assert await cluster.bind(own("b"), "stowage") == ""
    assert cluster.api.sent == [
        ("stowage", {"stowage.dev/gpu-indices": "2", "stowage.dev/gpu-share": "600m,0Mi,600m"})
    ]
    assert cluster.free("stowage") == [400, 400, 400, 1000]
    cluster.tell("default/a", "default/b", "default/c")
    assert (cluster.free("stowage"), len(cluster.state.assumed_pods)) == ([400, 400, 400, 1000], 0)


async def test_a_pod_that_another_replica_bound_is_not_bound_again() -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.pods["default/a"] = bound_by_another(own("a"), "stowage", index=3)
    assert await cluster.bind(own("a"), "stowage") == ""
    assert (cluster.api.sent, cluster.free("stowage")) == ([], [1000, 1000, 1000, 400])


async def test_listed_pods_that_ended_or_are_known_are_not_assumed() -> None:
    cluster = Cluster(node_of("stowage"), own("b"), bound_by_another(own("a"), "stowage", index=1))
    cluster.api.pods["default/c"] = bound_by_another(own("c"), "stowage", phase="Succeeded")
    assert await cluster.bind(own("b"), "stowage") == ""
    assert (cluster.free("stowage"), len(cluster.state.assumed_pods)) == ([400, 400, 1000, 1000], 1)


async def test_nothing_is_bound_where_the_node_cannot_be_listed(impatient: None) -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.answers = False
    assert "another replica may have bound" in await cluster.bind(own("a"), "stowage")
    cluster.api.answers, cluster.api.silent = True, True
    assert "another replica may have bound" in await cluster.bind(own("a"), "stowage")
    assert (cluster.api.sent, cluster.free("stowage")) == ([], [1000] * 4)


async def test_a_pod_that_waits_too_long_behind_others_is_refused(impatient: None) -> None:
    pods = [own(name) for name in "abcd"]
    cluster = Cluster(node_of("stowage"), *pods)
    cluster.api.silent = True
    *_, last = await asyncio.gather(*(cluster.bind(pod, "stowage") for pod in pods))
    assert last == "other pods are being bound to the node"


async def test_a_node_whose_gpus_are_only_counted_is_not_listed() -> None:
    cluster = Cluster(make_node("counted", 8), make_pod("a", 1))
    assert await cluster.bind(make_pod("a", 1), "counted") == ""
    assert (cluster.api.read, len(cluster.api.sent)) == ([], 1)


async def test_after_a_wait_for_the_device_plugin_the_node_is_listed_again() -> None:
    """The list must not be older than the wait."""
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    waiting = asyncio.create_task(cluster.bind(hami("b"), "hami"))
    await asyncio.sleep(0)
    assert cluster.api.read == ["hami"]
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Running"))])
    assert await waiting == ""
    assert cluster.api.read == ["hami", "hami"]
