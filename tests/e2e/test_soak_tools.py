"""The plan of a soak is a function of its seed, and its invariants can fail."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import yaml

from . import workload
from .books import Amounts
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import hami_mig_node, hami_node
from .queue_cases import BACKFILL, INTERACTIVE, assigned, create_classes, hami_pod
from .rush import LABEL_SETS
from .sharing import COMPUTE, GPU, INDICES, MEMORY, PRODUCT
from .soak import fleet
from .soak.calm import check_books
from .soak.evictions import TOLD_S, WITHIN_S, Evictions
from .soak.ledger import WAY, Ledger, shared_devices
from .soak.load import GROUP, group
from .soak.plan import KINDS, plan
from .soak.proxy import Proxy
from .soak.soak import entries, too_many_in_vain
from .soak.watch import Watch
from .stowage import Stowage


def test_each_kind_comes_once_before_any_comes_twice() -> None:
    made = plan(1, 200, 20_000)
    assert {one.kind for one in made[: len(KINDS)]} == KINDS.keys()
    assert all(KINDS[one.kind].shortest <= one.lasts_s <= KINDS[one.kind].longest for one in made)
    begins = [one.at_pod for one in made]
    assert begins == sorted(begins)
    assert 0 <= begins[0] < begins[-1] <= 20_000


def test_the_pods_ask_in_every_way() -> None:
    pods = [one for n in range(200) for one in group(1, n) if one["kind"] == "Pod"]
    assert len(pods) == 200 * GROUP
    pools = {fleet.kind_of(node["metadata"]["name"]) for node in fleet.nodes()}
    assert {pod["metadata"]["labels"][WAY] for pod in pods} == pools - {"pieces"}
    assert any("stowage.dev/gang" in pod["metadata"]["labels"] for pod in pods)


def bound(one: Object, node: str, uid: str) -> Object:
    """The pod as the API shows it on a node."""
    made: Object = json.loads(json.dumps(one))
    made["metadata"]["uid"] = uid
    made["spec"]["nodeName"] = node
    made["status"] = {"phase": "Running"}
    return made


def with_status(node: Object) -> Object:
    return {"spec": {}, **node}


def test_the_ledger_finds_a_gpu_that_is_given_out_twice() -> None:
    ledger = Ledger()
    labels = {"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"} | PRODUCT
    ledger.put_node(with_status(workload.node("own-0", {}, labels=labels)))
    ledger.put_node(with_status(hami_node("hami-0", 1, slots=10)))
    ledger.put_node(with_status(hami_mig_node("himig-0", 1)))
    ledger.put_node(with_status(workload.node("whole-0", {GPU: 1})))

    def share(uid: str, milli: int) -> list[str]:
        notes = {COMPUTE: f"{milli}m", MEMORY: "10Gi", INDICES: "3"}
        one = workload.pod(uid, {}, annotations=notes, labels={WAY: "own"})
        return ledger.put(bound(one, "own-0", uid))

    assert share("a", 600) == []
    assert "1200" in share("b", 600)[0]
    ledger.remove("a")
    assert share("c", 400) == []

    def of_hami(uid: str, node: str, mib: int, slices: tuple[str, int] | None) -> list[str]:
        one = assigned(hami_pod(uid, mib, 0, priority_class=""), on=node, gpu=0, slices=slices)
        one["metadata"]["labels"] = {WAY: fleet.kind_of(node)}
        return ledger.put(bound(one, node, uid))

    assert of_hami("d", "hami-0", 50_000, None) == []
    assert "MiB" in of_hami("e", "hami-0", 50_000, None)[0]
    assert of_hami("f", "himig-0", 15_360, ("3g.20gb", 0)) == []
    assert of_hami("g", "himig-0", 4096, ("1g.5gb", 4)) == []
    assert "slice 2" in of_hami("h", "himig-0", 4096, ("1g.5gb", 2))[0]
    assert ledger.put(bound(workload.pod("i", {GPU: 1}), "whole-0", "i")) == []
    assert GPU in ledger.put(bound(workload.pod("j", {GPU: 1}), "whole-0", "j"))[0]
    missing = workload.pod("k", {}, annotations={COMPUTE: "1m", MEMORY: "1Gi"}, labels={WAY: "own"})
    assert "without a readable assignment" in ledger.put(bound(missing, "own-0", "k"))[0]


def test_a_pod_that_fits_has_room_and_one_that_does_not_has_none() -> None:
    ledger = Ledger()
    for one in fleet.nodes():
        ledger.put_node(with_status(one))
    pods = [one for n in range(100) for one in group(3, n) if one["kind"] == "Pod"]
    for pod in pods:
        wants = pod["spec"]["containers"][0]["resources"]["requests"].get(GPU)
        assert bool(ledger.room(pod)) == (wants != "64"), pod
    for name in fleet.names("own"):
        for index in range(8):
            ledger.held[name, str(index)]["x"] = Amounts(milli=950)
    full = next(one for one in pods if one["metadata"]["labels"][WAY] == "own")
    assert ledger.room(full) == []


def test_a_device_of_two_claims_is_found() -> None:
    allocation = {"devices": {"results": [{"pool": "n", "device": "gpu-0"}]}}
    claims = [{"metadata": {"name": name}, "status": {"allocation": allocation}} for name in "ab"]
    assert shared_devices(claims[:1]) == {}
    assert shared_devices(claims) == {"n/gpu-0": ["a", "b"]}


def test_an_eviction_for_nothing_is_found() -> None:
    condition = {"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}
    victim = bound(workload.pod("victim", {GPU: 1}), "n", "victim")
    victim["status"]["conditions"], victim["spec"]["priority"] = [condition], 1
    winner = bound(workload.pod("winner", {GPU: 1}), "n", "winner")
    for priority, gang, disturbed, outcome in (
        (2, "", [], "made room"),
        (1, "", [], "in vain"),
        (1, "g", [], "with its gang"),
        (1, "", [(0.0, 5.0)], "beside a fault"),
    ):
        evictions = Evictions()
        victim["metadata"]["labels"] = {"stowage.dev/gang": gang} if gang else {}
        evictions.see(victim, 1.0)
        winner["spec"]["priority"] = priority
        evictions.bound(winner, 2.0)
        evictions.settle(2.0 + WITHIN_S, disturbed)
        assert dict(evictions.outcome) == {outcome: 1}


def test_a_move_makes_room_for_a_large_pod_and_comes_once_with_an_event() -> None:
    evictions = Evictions()
    for name, at in (("first", 1.0), ("second", 9.0)):
        victim = bound(workload.pod(name, {GPU: 1}, labels={"job-name": "small"}), "n", name)
        condition = {"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}
        victim["status"]["conditions"] = [condition]
        evictions.see(victim, at)
        small = bound(workload.pod("other", {GPU: 1}, labels={"job-name": "other"}), "n", "other")
        evictions.bound(small, at + 1)
        assert len(evictions.open) == 1
        evictions.bound(bound(workload.pod("large", {GPU: 8}), "n", "large"), at + 2)
        assert not evictions.open
    evictions.told.add("first")
    evictions.settle(10.0 + TOLD_S, [])
    assert evictions.outcome["moved, and made room"] == 2
    assert [one.name for one in evictions.untold] == ["second"]
    assert [one.name for one in evictions.moved_again] == ["second"]


def test_faults_do_not_excuse_any_number_of_evictions() -> None:
    assert not too_many_in_vain(Counter({"made room": 95, "beside a fault": 5}))
    assert not too_many_in_vain(Counter({"beside a fault": 5}))
    assert too_many_in_vain(Counter({"made room": 94, "beside a fault": 6}))


def test_a_binding_past_the_scheduler_is_found(api: Api) -> None:
    """The audit sees it in the API: two pods on one GPU, bound by hand."""
    create_classes(api)
    api.create(workload.node("whole-0", {GPU: 1}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    nodes = api.list("Node")["items"]
    with Watch(api, nodes) as watch:
        for name, queue in (("first", BACKFILL), ("second", INTERACTIVE)):
            labels = {WAY: "whole"}
            api.create(workload.pod(name, {GPU: 1}, priority_class=queue, labels=labels))
            assert watch.findings == []
            api.bind(name, "whole-0")
            eventually(partial(placed, watch, name), within_s=20, what=f"{name} is seen")
        eventually(lambda: bool(watch.findings), within_s=20, what="the over-commit is found")
    assert "over-commit: second on ('whole-0', '')" in watch.findings[0]


def placed(watch: Watch, name: str) -> bool:
    with watch.lock:
        return any(
            one["metadata"]["name"] == name and one["spec"].get("nodeName") for one in watch.pods.values()
        )


def test_a_phantom_hold_is_found(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, tmp_path: Path
) -> None:
    """A pod goes while Stowage's watch is half-open: until that is noticed, Stowage still counts it."""
    api.create(workload.node("whole-0", {GPU: 1}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    api.create(workload.pod("goes", {GPU: 1}, on="whole-0"))
    certificate = str(cluster.directory / "certificates" / "apiserver.crt")
    with Proxy(cluster.server, certificate) as proxy:
        changed = yaml.safe_load(stowage_kubeconfig.read_text())
        changed["clusters"][0]["cluster"] = {"server": proxy.url}
        file = tmp_path / "proxied.kubeconfig"
        file.write_text(yaml.safe_dump(changed))
        with Stowage(cluster, file, name="stowage-soak") as stowage:
            watch = Watch(api, api.list("Node")["items"])
            check_books(api, watch, stowage)
            assert watch.findings == []
            with proxy.half_open():
                api.delete("Pod", "goes")
                check_books(api, watch, stowage, within_s=3)
                assert "phantom hold: 1 differences" in watch.findings[0]
                assert "default/goes" in watch.findings[0]
            check_books(api, watch, stowage)
            assert len(watch.findings) == 1


def test_a_traceback_is_one_entry_of_the_log() -> None:
    log = '{"level": "info"}\n{"level": "error"}\nTraceback:\n  a line\nMemoryError\n{"level": "info"}\n'
    info, error, traceback, last = entries(log)
    assert (info, error, last) == ('{"level": "info"}', '{"level": "error"}', '{"level": "info"}')
    assert traceback == "Traceback:\n  a line\nMemoryError"
