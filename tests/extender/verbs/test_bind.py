"""bind, with scripted answers of the API server: what it writes and refuses, what it leaves in the books."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from extender.cluster.assumed_pods import TIME_TO_LIVE
from extender.cluster.state import State
from extender.k8s.objects import Deleted, Listed, Node, Pod, Upserted
from extender.protocol.codec import BindArgs, FilterArgs
from extender.protocol.node_names import NodeNames
from extender.server.assumed_pod_expiry import check
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings
from extender.source.interface import BindConflict, BindError, PodNotFound, Unreachable
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.verbs import bind as bind_module
from extender.verbs.bind import Binder
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod, make_state, why
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.dialects.test_dialect_manifests import pod as pod_of

SYNCED = [Listed("Node", frozenset({"own"})), Listed("Pod", frozenset({"default/a"}))]
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


class Api(SnapshotSource):
    """What is true, and how the next bindings go: an error that is raised, before or (``made``) after."""

    def __init__(self) -> None:
        super().__init__(Snapshot(), "api")
        self.pods: dict[str, Pod] = {}
        self.errors: list[BindError] = []
        self.made = self.hangs = False
        self.answers = True
        self.current = True
        self.silent = False  # a read of a node's pods takes for ever
        self.read: list[str] = []
        self.sent: list[tuple[str, dict[str, str]]] = []

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> None:
        self.sent.append((node, dict(annotations or {})))
        await asyncio.sleep(3600 if self.hangs else 0)
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.made:
            placed = {**pod.annotations, **(annotations or {})}
            self.pods[pod.key] = replace(pod, node_name=node, annotations=placed)
        if error:
            raise error

    async def look_up(self, pod: Pod) -> Pod | None:
        if not self.answers:
            raise Unreachable("no answer")
        return self.pods.get(pod.key)

    async def pods_on(self, node: str) -> list[Pod]:
        self.read.append(node)
        await asyncio.sleep(3600 if self.silent else 0)
        if not self.answers:
            raise Unreachable("no answer")
        return [pod for pod in self.pods.values() if pod.node_name == node]

    async def caught_up(self) -> bool:
        return self.current


class Cluster:
    """A state, the API server behind it, and a Stowage that binds. Nothing comes by the watch of itself."""

    def __init__(self, *objects: Node | Pod) -> None:
        self.state = State(POLICIES["best-fit"]())
        self.state.binds = True
        self.state.apply([Upserted(one) for one in objects])
        self.api = Api()
        self.api.pods = {one.key: one for one in objects if isinstance(one, Pod)}
        self.binder = Binder(self.state, self.api, Settings(bind=True))

    async def bind(self, pod: Pod, node: str) -> str:
        return await self.binder.bind(pod, BindArgs(pod.namespace, pod.name, pod.uid, node))

    def tell(self, *keys: str) -> None:
        """The watch brings what is true of these pods."""
        self.state.apply([Upserted(self.api.pods[key]) for key in keys])

    def free(self, node: str) -> list[int]:
        row = self.state.fleet.rows[node]
        shape = self.state.fleet.specs[row]
        assert shape is not None
        return [int(n) for n in self.state.fleet.arrays.compute[: len(shape.gpus), row]]


def own(name: str, compute: str = "600m", **more: str) -> Pod:
    """A pod that asks in our own words."""
    return make_pod(name, 0, annotations={"stowage.dev/gpu-compute": compute, **more})


def hami(name: str, mib: int = 3000, cores: int = 30, **annotations: str) -> Pod:
    pod = pod_of("hami-memory-and-cores")
    (container,) = pod.spec.containers
    asks = (("nvidia.com/gpu", "1"), (CORES, str(cores)), (MEMORY, str(mib)))
    spec = replace(pod.spec, containers=(replace(container, requests=asks, limits=asks),))
    return Pod("default", name, f"uid-{name}", spec, annotations=annotations)


async def test_our_own_dialect_is_told_an_index() -> None:
    cluster = Cluster(node_of("own"), own("p"))
    assert await cluster.bind(own("p"), "own") == ""
    assert cluster.api.sent == [("own", {"stowage.dev/gpu-indices": "0"})]
    assert cluster.free("own") == [400, 1000, 1000, 1000]
    cluster.tell("default/p")
    assert cluster.free("own") == [400, 1000, 1000, 1000]
    assert (len(cluster.state.assumed_pods), cluster.state.problems) == (0, {})


async def test_hami_is_told_what_its_own_scheduler_would_tell_it() -> None:
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


async def test_gpushare_is_told_what_its_own_scheduler_would_tell_it() -> None:
    pod = replace(pod_of("gpushare-memory"), name="p")
    cluster = Cluster(node_of("gpushare"), pod)
    before = time.time_ns()
    assert await cluster.bind(pod, "gpushare") == ""
    ((_, written),) = cluster.api.sent
    assert int(written.pop("ALIYUN_COM_GPU_MEM_ASSUME_TIME")) >= before - 10**9
    assert written == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }


async def test_gpushare_cannot_be_told_of_several_gpus() -> None:
    pod = pod_of("gpushare-two-gpus")
    cluster = Cluster(node_of("gpushare"), pod)
    assert "several GPUs" in await cluster.bind(pod, "gpushare")
    assert cluster.api.sent == []
    assert cluster.free("gpushare") == [1000, 1000]


@pytest.mark.parametrize(
    ("annotations", "uuid"),
    [
        ({"nvidia.com/use-gpuuuid": "GPU-bbbb"}, "GPU-bbbb"),
        ({"nvidia.com/nouse-gpuuuid": "GPU-aaaa"}, "GPU-bbbb"),
        ({"nvidia.com/use-gpuuuid": "GPU-bbbb,GPU-aaaa", "nvidia.com/nouse-gpuuuid": "GPU-bbbb"}, "GPU-aaaa"),
    ],
)
async def test_a_gpu_that_the_pod_names_is_taken_and_no_other(annotations: dict[str, str], uuid: str) -> None:
    pod = hami("p", **annotations)
    cluster = Cluster(node_of("hami"), pod)
    assert await cluster.bind(pod, "hami") == ""
    assert cluster.api.pods["default/p"].annotations["hami.io/vgpu-devices-allocated"].startswith(uuid)


async def test_counted_devices_are_bound_without_a_word() -> None:
    cluster = Cluster(make_node("a", 1), make_pod("p"))
    assert await cluster.bind(make_pod("p"), "a") == ""
    assert cluster.api.sent == [("a", {})]


async def test_a_pod_without_gpu_goes_where_kube_scheduler_says() -> None:
    cluster = Cluster(make_pod("p", 0))
    assert await cluster.bind(make_pod("p", 0), "not-known-yet") == ""


@pytest.mark.parametrize("name", ["vgpu-manager", "volcano", "koordinator"])
async def test_where_nobody_could_be_told_the_gpu_nothing_is_bound(name: str) -> None:
    manifest = {
        "vgpu-manager": "vgpu-manager-memory-and-cores",
        "volcano": "volcano-hami-core",
        "koordinator": "koordinator-nvidia",
    }
    pod = pod_of(manifest[name])
    cluster = Cluster(node_of(name), pod)
    assert "cannot say who has which GPU" in await cluster.bind(pod, name)
    assert (cluster.api.sent, len(cluster.state.assumed_pods)) == ([], 0)


async def test_two_binds_in_flight_do_not_get_one_gpu() -> None:
    small = replace(node_of("own"), labels={**node_of("own").labels, "nvidia.com/gpu.count": "1"})
    cluster = Cluster(small, own("a"), own("b"))
    answers = await asyncio.gather(cluster.bind(own("a"), "own"), cluster.bind(own("b"), "own"))
    assert sorted(map(bool, answers)) == [False, True]
    assert len(cluster.api.sent) == 1


async def test_an_event_from_before_the_binding_releases_nothing() -> None:
    cluster = Cluster(node_of("own"), own("a", "1"))
    assert await cluster.bind(own("a", "1"), "own") == ""
    cluster.state.apply([Upserted(own("a", "1"))])
    assert cluster.free("own") == [0, 1000, 1000, 1000]


async def test_a_refused_binding_leaves_nothing() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.errors = [BindError("forbidden"), PodNotFound("gone"), BindConflict("being deleted")]
    for text in ("forbidden", "gone", "being deleted"):
        assert await cluster.bind(own("a"), "own") == text
        assert (cluster.free("own"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


@pytest.mark.parametrize("error", [Unreachable("no answer"), BindConflict("409")])
async def test_a_binding_that_was_made_without_an_answer_is_a_success(error: BindError) -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.errors, cluster.api.made = [error], True
    assert await cluster.bind(own("a"), "own") == ""
    assert cluster.free("own") == [400, 1000, 1000, 1000]
    assert await cluster.bind(own("a"), "own") == ""
    assert len(cluster.api.sent) == 1
    assert await cluster.bind(own("a"), "elsewhere") == "pod is bound to another node"


async def test_a_binding_in_doubt_is_held_until_its_time_is_over() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    assert await cluster.bind(own("a"), "own") == "no answer"
    cluster.state.apply([Upserted(own("a"))])
    now = time.monotonic()
    await check(cluster.state, cluster.api, now + TIME_TO_LIVE / 2)
    assert cluster.free("own") == [400, 1000, 1000, 1000]
    cluster.api.answers = False  # the API server is away: nobody knows
    await check(cluster.state, cluster.api, now + TIME_TO_LIVE * 3)
    assert cluster.free("own") == [400, 1000, 1000, 1000]
    cluster.api.answers = True
    await check(cluster.state, cluster.api, now + TIME_TO_LIVE * 3)
    assert cluster.free("own") == [1000] * 4


async def test_the_same_is_asked_again_where_a_binding_is_in_doubt() -> None:
    cluster = Cluster(node_of("own"), own("a"), own("b", "300m"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "own")
    assert await cluster.bind(own("b", "300m"), "own") == ""
    assert await cluster.bind(own("a"), "own") == ""
    assert [sent for _, sent in cluster.api.sent] == [{"stowage.dev/gpu-indices": "0"}] * 3
    assert cluster.free("own") == [100, 1000, 1000, 1000]


async def test_a_pod_in_doubt_that_is_bound_elsewhere_gives_its_room_back() -> None:
    other = replace(node_of("own"), name="other")
    cluster = Cluster(node_of("own"), other, own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "own")
    cluster.api.errors = [BindError("forbidden")]
    assert await cluster.bind(own("a"), "other") == "forbidden"
    assert (cluster.free("own")[0], cluster.free("other")[0]) == (400, 1000)
    assert await cluster.bind(own("a"), "other") == ""
    assert (cluster.free("own")[0], cluster.free("other")[0]) == (1000, 400)


async def ended(task: asyncio.Task[str]) -> None:
    """As when the process ends: what is seen to its end is cancelled, too."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def test_what_is_still_awaited_outlives_its_time() -> None:
    other = replace(node_of("own"), name="other")
    cluster = Cluster(node_of("own"), other, own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "own")
    cluster.api.hangs = True
    task = asyncio.create_task(cluster.bind(own("a"), "other"))
    while len(cluster.api.sent) < 2:
        await asyncio.sleep(0)
    await check(cluster.state, cluster.api, time.monotonic() + TIME_TO_LIVE * 2)
    assert (cluster.free("own")[0], cluster.free("other")[0]) == (1000, 400)
    await ended(task)


async def test_a_pod_that_came_and_went_unseen_is_forgotten() -> None:
    cluster = Cluster(node_of("own"))
    assert await cluster.bind(own("a"), "own") == ""
    del cluster.api.pods["default/a"]
    await check(cluster.state, cluster.api, time.monotonic() + TIME_TO_LIVE * 2)
    assert (cluster.free("own"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


async def test_a_pod_that_is_first_seen_when_it_has_ended_holds_nothing() -> None:
    cluster = Cluster(node_of("own"))
    assert await cluster.bind(own("a"), "own") == ""
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Succeeded"))])
    assert (cluster.free("own"), len(cluster.state.assumed_pods)) == ([1000] * 4, 0)


async def test_what_was_sent_is_seen_to_its_end_though_nobody_waits() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.hangs = True
    task = asyncio.create_task(cluster.bind(own("a"), "own"))
    while not cluster.api.sent:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=0.05)
    (one,) = cluster.state.assumed_pods
    assert (one.in_flight, one.outcome_unknown) == (1, False)
    await ended(task)
    assert (one.in_flight, one.outcome_unknown) == (0, True)


async def test_a_promise_counts_once_beside_a_tentative_hold() -> None:
    nominated = replace(own("a", "600m"), nominated_node="own", priority=5)
    small = replace(node_of("own"), labels={**node_of("own").labels, "nvidia.com/gpu.count": "1"})
    cluster = Cluster(small, nominated, own("b", "400m"))
    assert await cluster.bind(nominated, "own") == ""
    assert why(cluster.state, own("b", "400m"), "own") is Reason.FITS
    cluster.state.apply([Upserted(nominated)])
    assert why(cluster.state, own("b", "400m"), "own") is Reason.FITS


async def test_nothing_is_bound_while_stowage_has_to_catch_up() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.current = False
    assert "caught up" in await cluster.bind(own("a"), "own")
    assert cluster.api.sent == []


async def test_annotations_that_would_change_the_meaning_are_refused() -> None:
    forged = own("a", **{"hami.io/vgpu-devices-allocated": "GPU-aaaa,NVIDIA,1,1:;"})
    cluster = Cluster(node_of("own"), forged)
    assert "own annotations are in the way" in await cluster.bind(forged, "own")
    assert (cluster.api.sent, cluster.free("own")) == ([], [1000] * 4)


async def test_people_see_what_is_tentative_and_for_how_long() -> None:
    metrics = Metrics("0", lambda: engine.gauges(), ())
    engine = Engine(api := Api(), Settings(bind=True), metrics)
    engine.apply([Upserted(node_of("own")), Upserted(own("a")), *SYNCED])
    api.pods = {"default/a": own("a")}
    api.errors = [Unreachable("no answer")]
    request = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "own"}
    reply, result = await engine.verbs["bind"](json.dumps(request).encode())
    assert (json.loads(reply), result) == ({"Error": "no answer"}, "refused")
    node, story = engine.inspector.node("own"), await engine.inspector.pod("default/a")
    assert node is not None
    (holder,) = node.holders
    assert (holder.pod, holder.gpus) == ("default/a", (0,))
    assert holder.tentative_seconds is not None
    assert holder.tentative_seconds >= 0
    assert story is not None
    assert (story.node, "the watch has not shown it" in story.note) == ("own", True)
    assert "\nstowage_tentative_holds 1.0" in metrics.render().decode()
    await engine.verbs["bind"](json.dumps(request).encode())
    engine.apply([Upserted(api.pods["default/a"])])
    assert "\nstowage_tentative_holds 0.0" in metrics.render().decode()
    assert engine.inspector.node("own").holders[0].tentative_seconds is None


# HAMi's device plugin serves one starting pod at a time.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_module, "PATIENCE", 0.05)


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


async def test_bind_waits_a_moment_for_the_device_plugin() -> None:
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    waiting = asyncio.create_task(cluster.bind(hami("b"), "hami"))
    await asyncio.sleep(0)
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Running"))])
    assert await waiting == ""


async def test_nothing_is_bound_for_who_does_not_wait() -> None:
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    waiting = asyncio.create_task(cluster.bind(hami("b"), "hami"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Running"))])
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.05)
    assert (len(cluster.api.sent), len(cluster.state.assumed_pods)) == (1, 0)


async def test_a_pod_does_not_stand_in_its_own_way() -> None:
    cluster = Cluster(node_of("hami"), hami("a"))
    cluster.api.errors = [Unreachable("no answer")]
    assert await cluster.bind(hami("a"), "hami") == "no answer"
    assert why(cluster.state, hami("a"), "hami") is Reason.FITS
    assert why(cluster.state, hami("b"), "hami") is Reason.PLUGIN_BUSY
    assert await cluster.bind(hami("a"), "hami") == ""


@pytest.mark.parametrize(
    ("phase", "annotations"),
    [
        ("Pending", {"hami.io/bind-phase": "failed"}),
        ("Running", {}),
        ("Pending", {"hami.io/vgpu-node": "other"}),
    ],
)
def test_pods_that_the_plugin_would_not_take_are_not_in_the_way(
    phase: str, annotations: dict[str, str]
) -> None:
    said = {"hami.io/bind-time": "1", "hami.io/bind-phase": "success", "hami.io/vgpu-node": "hami"}
    said["hami.io/vgpu-devices-allocated"] = "GPU-aaaa,NVIDIA,3000,30:;"
    starting = replace(hami("a", **said), node_name="hami")
    assert why(Cluster(node_of("hami"), starting).state, hami("b"), "hami") is Reason.PLUGIN_BUSY
    other = replace(starting, phase=phase, annotations={**said, **annotations})
    assert why(Cluster(node_of("hami"), other).state, hami("b"), "hami") is Reason.FITS


def test_a_lock_of_hamis_scheduler_closes_the_node() -> None:
    node = node_of("hami")
    locked = replace(node, annotations={**node.annotations, "hami.io/mutex.lock": "2026-01-01T00:00:00Z"})
    cluster = Cluster(locked)
    assert why(cluster.state, hami("b"), "hami") is Reason.PLUGIN_BUSY
    cluster.state.apply([Upserted(node)])
    assert why(cluster.state, hami("b"), "hami") is Reason.FITS


def test_nothing_is_closed_while_others_bind() -> None:
    node = node_of("hami")
    locked = replace(node, annotations={**node.annotations, "hami.io/mutex.lock": "2026-01-01T00:00:00Z"})
    assert why(make_state(locked), hami("b"), "hami") is Reason.FITS


async def test_a_hold_outlives_its_node() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.errors = [Unreachable("no answer")]
    await cluster.bind(own("a"), "own")
    events: Sequence[Deleted | Upserted] = [Deleted("Node", "own"), Upserted(node_of("own"))]
    cluster.state.apply(events)
    assert cluster.free("own") == [400, 1000, 1000, 1000]


# Another replica has bound before, and the watch has not shown it.


def bound_by_another(pod: Pod, node: str, index: int = 0, **changes: str) -> Pod:
    annotations = {**pod.annotations, "stowage.dev/gpu-indices": str(index)}
    return replace(pod, node_name=node, annotations=annotations, **changes)


async def test_a_gpu_that_another_replica_gave_away_a_moment_ago_is_not_given_again() -> None:
    cluster = Cluster(node_of("own"), own("a"), own("b"))
    cluster.api.pods["default/a"] = bound_by_another(own("a"), "own")
    cluster.api.pods["default/c"] = bound_by_another(own("c"), "own", index=1)  # the watch knows no such pod
    assert await cluster.bind(own("b"), "own") == ""
    assert cluster.api.sent == [("own", {"stowage.dev/gpu-indices": "2"})]
    assert cluster.free("own") == [400, 400, 400, 1000]
    cluster.tell("default/a", "default/b", "default/c")
    assert (cluster.free("own"), len(cluster.state.assumed_pods)) == ([400, 400, 400, 1000], 0)


async def test_a_pod_that_another_replica_bound_is_not_bound_again() -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.pods["default/a"] = bound_by_another(own("a"), "own", index=3)
    assert await cluster.bind(own("a"), "own") == ""
    assert (cluster.api.sent, cluster.free("own")) == ([], [1000, 1000, 1000, 400])


async def test_what_ended_or_is_known_better_is_not_held_again() -> None:
    cluster = Cluster(node_of("own"), own("b"), bound_by_another(own("a"), "own", index=1))
    cluster.api.pods["default/c"] = bound_by_another(own("c"), "own", phase="Succeeded")
    assert await cluster.bind(own("b"), "own") == ""
    assert (cluster.free("own"), len(cluster.state.assumed_pods)) == ([400, 400, 1000, 1000], 1)


async def test_nothing_is_bound_where_it_is_not_known_what_others_have_bound(impatient: None) -> None:
    cluster = Cluster(node_of("own"), own("a"))
    cluster.api.answers = False
    assert "another replica may have bound" in await cluster.bind(own("a"), "own")
    cluster.api.answers, cluster.api.silent = True, True
    assert "another replica may have bound" in await cluster.bind(own("a"), "own")
    assert (cluster.api.sent, cluster.free("own")) == ([], [1000] * 4)


async def test_who_waits_behind_others_is_told_so(impatient: None) -> None:
    pods = [own(name) for name in "abcd"]
    cluster = Cluster(node_of("own"), *pods)
    cluster.api.silent = True
    *_, last = await asyncio.gather(*(cluster.bind(pod, "own") for pod in pods))
    assert last == "other pods are being bound to the node"


async def test_a_node_whose_gpus_are_only_counted_is_not_read() -> None:
    cluster = Cluster(make_node("counted", 8), make_pod("a", 1))
    assert await cluster.bind(make_pod("a", 1), "counted") == ""
    assert (cluster.api.read, len(cluster.api.sent)) == ([], 1)


async def test_a_pod_that_waits_for_the_device_plugin_is_told_what_came_meanwhile() -> None:
    """The node is read when the wait is over, not before it."""
    cluster = Cluster(node_of("hami"), hami("a"), hami("b"))
    await cluster.bind(hami("a"), "hami")
    waiting = asyncio.create_task(cluster.bind(hami("b"), "hami"))
    await asyncio.sleep(0)
    assert cluster.api.read == ["hami"]
    cluster.state.apply([Upserted(replace(cluster.api.pods["default/a"], phase="Running"))])
    assert await waiting == ""
    assert cluster.api.read == ["hami", "hami"]
