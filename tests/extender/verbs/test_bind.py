"""bind, with scripted answers of the API server: what it writes and refuses, and what is allocated then."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from extender.cluster.reservations import SHOWN_WITHIN, TIME_TO_LIVE
from extender.k8s.objects import Listed, Upserted
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings
from extender.source.errors import BindConflict, BindError, PodNotFound, Unreachable
from extender.verbs.bind import expire_assumed
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.dialects.test_dialect_manifests import pod as pod_of
from tests.extender.verbs.binding import Api, Cluster, hami, own

SYNCED = [Listed("Node", frozenset({"stowage"})), Listed("Pod", frozenset({"default/a"}))]


async def test_stowages_own_nodes_get_an_index() -> None:
    cluster = Cluster(node_of("stowage"), own("p"))
    assert await cluster.bind(own("p"), "stowage") == ""
    assert cluster.api.sent == [
        ("stowage", {"stowage.dev/gpu-indices": "0", "stowage.dev/gpu-share": "600m,0Mi,600m"})
    ]
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    cluster.tell("default/p")
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    assert (len(cluster.state.assumed_pods), cluster.state.problems) == (0, {})


async def test_hami_gets_the_annotations_of_its_own_scheduler() -> None:
    cluster = Cluster(node_of("hami"), hami("p"))
    before = int(time.time())
    assert await cluster.bind(hami("p"), "hami") == ""
    ((node, written),) = cluster.api.sent
    at = int(written.pop("hami.io/bind-time"))
    assert before <= at <= before + 60
    assert written.pop("hami.io/vgpu-time") == str(at)
    assert node == "hami"
    assert written == {
        "hami.io/vgpu-node": "hami",
        "hami.io/vgpu-devices-allocated": "GPU-aaaa,NVIDIA,3000,30:;",
        "hami.io/vgpu-devices-to-allocate": "GPU-aaaa,NVIDIA,3000,30:;",
        "hami.io/bind-phase": "allocating",
    }


async def test_gpushare_cannot_be_assigned_several_gpus() -> None:
    pod = pod_of("gpushare-two-gpus")
    cluster = Cluster(node_of("gpushare"), pod)
    assert "several GPUs" in await cluster.bind(pod, "gpushare")
    assert cluster.api.sent == []
    assert cluster.free("gpushare") == [1000, 1000]


@pytest.mark.parametrize("name", ["vgpu-manager", "volcano", "koordinator"])
async def test_nothing_is_bound_where_nobody_can_assign_the_gpu(name: str) -> None:
    manifest = {
        "vgpu-manager": "vgpu-manager-memory-and-cores",
        "volcano": "volcano-hami-core",
        "koordinator": "koordinator-nvidia",
    }
    pod = pod_of(manifest[name])
    cluster = Cluster(node_of(name), pod)
    assert "cannot determine each pod's GPU" in await cluster.bind(pod, name)
    assert (cluster.api.sent, len(cluster.state.assumed_pods)) == ([], 0)


async def test_two_binds_in_flight_do_not_get_one_gpu() -> None:
    small = replace(node_of("stowage"), labels={**node_of("stowage").labels, "nvidia.com/gpu.count": "1"})
    cluster = Cluster(small, own("a"), own("b"))
    answers = await asyncio.gather(cluster.bind(own("a"), "stowage"), cluster.bind(own("b"), "stowage"))
    assert sorted(map(bool, answers)) == [False, True]
    assert len(cluster.api.sent) == 1


async def test_a_refused_binding_leaves_nothing() -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.errors = [BindError("forbidden"), PodNotFound("gone"), BindConflict("being deleted")]
    for text in ("forbidden", "gone", "being deleted"):
        assert await cluster.bind(own("a"), "stowage") == text
        assert (cluster.free("stowage"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


async def test_an_unanswered_binding_is_assumed_until_its_time_to_live_is_over() -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    assert await cluster.bind(own("a"), "stowage") == "no answer"
    cluster.state.apply([Upserted(own("a"))])
    now = time.monotonic()
    await expire_assumed(cluster.state, cluster.api, now + TIME_TO_LIVE / 2)
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    cluster.api.answers = False  # the API server is away: nobody knows
    await expire_assumed(cluster.state, cluster.api, now + TIME_TO_LIVE * 3)
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    cluster.api.answers = True
    await expire_assumed(cluster.state, cluster.api, now + TIME_TO_LIVE * 3)
    assert cluster.free("stowage") == [1000] * 4


async def test_an_unanswered_binding_is_sent_again_unchanged() -> None:
    cluster = Cluster(node_of("stowage"), own("a"), own("b", "300m"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "stowage")
    assert await cluster.bind(own("b", "300m"), "stowage") == ""
    assert await cluster.bind(own("a"), "stowage") == ""
    assert [sent for _, sent in cluster.api.sent] == [
        {"stowage.dev/gpu-indices": "0", "stowage.dev/gpu-share": f"{milli}m,0Mi,{milli}m"}
        for milli in (600, 300, 600)
    ]
    assert cluster.free("stowage") == [100, 1000, 1000, 1000]


async def test_an_unanswered_binding_is_forgotten_when_the_pod_is_bound_elsewhere() -> None:
    other = replace(node_of("stowage"), name="other")
    cluster = Cluster(node_of("stowage"), other, own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "stowage")
    cluster.api.errors = [BindError("forbidden")]
    assert await cluster.bind(own("a"), "other") == "forbidden"
    assert (cluster.free("stowage")[0], cluster.free("other")[0]) == (400, 1000)
    assert await cluster.bind(own("a"), "other") == ""
    assert (cluster.free("stowage")[0], cluster.free("other")[0]) == (1000, 400)


async def ended(task: asyncio.Task[str]) -> None:
    """As when the process ends: shielded tasks are cancelled, too."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def test_a_list_that_began_after_the_binding_frees_what_it_does_not_have() -> None:
    cluster = Cluster(node_of("stowage"))
    before = time.monotonic()
    assert await cluster.bind(own("a"), "stowage") == ""
    del cluster.api.pods["default/a"]
    cluster.state.apply([Listed("Pod", frozenset(), began=before)])
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    cluster.state.apply([Listed("Pod", frozenset(), began=time.monotonic())])
    assert (cluster.free("stowage"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


async def test_a_pod_that_another_replica_bound_is_freed_by_the_next_list_without_it() -> None:
    cluster = Cluster(node_of("stowage"))
    cluster.api.pods["default/a"] = replace(
        own("a"), node_name="stowage", annotations={**own("a").annotations, "stowage.dev/gpu-indices": "0"}
    )
    before = time.monotonic()
    assert await cluster.bind(own("b"), "stowage") == ""
    cluster.state.apply([Listed("Pod", frozenset(), began=before)])
    assert cluster.free("stowage") == [400, 400, 1000, 1000]
    cluster.state.apply([Listed("Pod", frozenset(), began=time.monotonic())])
    assert cluster.free("stowage") == [1000] * 4


async def test_a_pod_that_the_watch_does_not_show_in_time_is_looked_up() -> None:
    """No binding of it can still happen, so there is no need to wait for that."""
    cluster = Cluster(node_of("stowage"))
    assert await cluster.bind(own("a"), "stowage") == ""
    await expire_assumed(cluster.state, cluster.api, time.monotonic() + SHOWN_WITHIN + 1)
    assert cluster.free("stowage") == [400, 1000, 1000, 1000]
    del cluster.api.pods["default/a"]
    await expire_assumed(cluster.state, cluster.api, time.monotonic() + 2 * (SHOWN_WITHIN + 1))
    assert (cluster.free("stowage"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


async def test_a_binding_that_was_sent_is_finished_when_the_caller_hangs_up() -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.hangs = True
    task = asyncio.create_task(cluster.bind(own("a"), "stowage"))
    while not cluster.api.sent:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=0.05)
    (one,) = cluster.state.assumed_pods
    assert (one.in_flight, one.outcome_unknown) == (1, False)
    await ended(task)
    assert (one.in_flight, one.outcome_unknown) == (0, True)


async def test_nothing_is_bound_while_stowage_has_to_catch_up() -> None:
    cluster = Cluster(node_of("stowage"), own("a"))
    cluster.api.current = False
    assert "caught up" in await cluster.bind(own("a"), "stowage")
    assert cluster.api.sent == []


async def test_annotations_that_would_change_the_meaning_are_refused() -> None:
    forged = own("a", **{"hami.io/vgpu-devices-allocated": "GPU-aaaa,NVIDIA,1,1:;"})
    cluster = Cluster(node_of("stowage"), forged)
    assert "own annotations prevent the assignment" in await cluster.bind(forged, "stowage")
    assert (cluster.api.sent, cluster.free("stowage")) == ([], [1000] * 4)


async def test_assumed_pods_are_shown_with_their_age() -> None:
    metrics = Metrics(lambda: engine.gauges.collect())
    engine = Engine(api := Api(), Settings(bind=True), metrics)
    engine.apply([Upserted(node_of("stowage")), Upserted(own("a")), *SYNCED])
    api.pods = {"default/a": own("a")}
    api.errors = [Unreachable("no answer")]
    request = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "stowage"}
    reply, result = await engine.verbs["bind"](json.dumps(request).encode())
    assert (json.loads(reply), result) == ({"Error": "no answer"}, "refused")
    node, story = engine.inspector.node("stowage"), await engine.inspector.pod("default/a")
    assert node is not None
    (holder,) = node.holders
    assert (holder.pod, holder.gpus) == ("default/a", (0,))
    assert holder.assumed_seconds is not None
    assert holder.assumed_seconds >= 0
    assert story is not None
    assert (story.node, "the watch has not shown it" in story.note) == ("stowage", True)
    assert "\nstowage_assumed_pods 1.0" in generate_latest(metrics.registry).decode()
    await engine.verbs["bind"](json.dumps(request).encode())
    engine.apply([Upserted(api.pods["default/a"])])
    assert "\nstowage_assumed_pods 0.0" in generate_latest(metrics.registry).decode()
    assert engine.inspector.node("stowage").holders[0].assumed_seconds is None


@pytest.mark.parametrize("field", ["PodName", "PodNamespace"])
async def test_a_pod_under_another_name_is_not_bound(field: str) -> None:
    engine = Engine(api := Api(), Settings(bind=True), Metrics(list))
    engine.apply([Upserted(node_of("stowage")), Upserted(own("a")), *SYNCED])
    request = {
        "PodName": "a",
        "PodNamespace": "default",
        "PodUID": "uid-a",
        "Node": "stowage",
        field: "other",
    }
    reply, _ = await engine.verbs["bind"](json.dumps(request).encode())
    assert "is unknown" in json.loads(reply)["Error"]
    assert api.sent == []
