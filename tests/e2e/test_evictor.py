"""The evictor makes room where kube-scheduler does not ask for it: on devices, and among equals."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import hami_mig_node, uuid
from .queue_cases import (
    BACKFILL,
    HOUR,
    INTERACTIVE,
    MINUTE,
    assigned,
    create_classes,
    gpu_of,
    hami_pod,
    observed_budgets,
    present,
    run,
    set_started,
    wait_until_running,
)
from .rush import GPU, LABEL_SETS
from .sharing import COMPUTE, INDICES, MEMORY
from .stowage import Stowage, applied, scheduler_configuration
from .workload import budget, node, pod

H100 = LABEL_SETS["h100-sxm-8-whole"]
SHARED = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "1"}
SHARED |= {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


@contextmanager
def evicting(
    cluster: ControlPlane,
    kubeconfig: Path,
    *,
    file: str = "shared-gpus.yaml",
    mode: str = "on",
    rights: Sequence[str] = (),
    **more: str,
) -> Iterator[Stowage]:
    """A Stowage that binds and evicts, with the rights for both, and a kube-scheduler that uses it.
    ``rights``: further ones, and ``more``: further settings."""
    settings = {
        "BIND": "true",
        "EVICTOR": mode,
        "EVICTOR_LEASE": "stowage-system/stowage-evictor",
        "EVICTOR_SCHEDULERS": '["stowage"]',
    } | more
    with ExitStack() as stack:
        for manifest in ("rbac-bind.yaml", "rbac-evictor.yaml", *rights):
            stack.enter_context(applied(cluster.api, manifest))
        stowage = stack.enter_context(Stowage(cluster, kubeconfig, name="stowage-evictor", **settings))
        stack.enter_context(cluster.scheduler(scheduler_configuration(stowage.url, file)))
        yield stowage


def share(
    name: str, *, priority_class: str, holds: bool = False, labels: dict[str, str] | None = None
) -> Object:
    """A pod that requests most of a GPU by annotation, which kube-scheduler does not see."""
    notes = {COMPUTE: "600m", MEMORY: "40Gi"} | ({INDICES: "0"} if holds else {})
    return pod(name, {}, cpu="100m", priority_class=priority_class, annotations=notes, labels=labels)


@pytest.mark.parametrize(
    ("small_s", "large_s", "leaving"),
    [(10 * MINUTE, 2 * HOUR, {"small-0", "small-1"}), (2 * HOUR, 10 * MINUTE, {"large"})],
)
def test_a_placement_for_a_mig_profile(
    cluster: ControlPlane,
    api: Api,
    stowage_kubeconfig: Path,
    small_s: float,
    large_s: float,
    leaving: set[str],
) -> None:
    """Instances that are made on demand: two 1g block a 3g on one GPU, another 3g on the other. The second
    half of both GPUs belongs to pods that may not be evicted."""
    create_classes(api)
    api.create(hami_mig_node("n1", 2))
    for name, gpu, slices, priority, for_s in (
        ("keeps-0", 0, ("3g.20gb", 4), INTERACTIVE, HOUR),
        ("keeps-1", 1, ("3g.20gb", 4), INTERACTIVE, HOUR),
        ("small-0", 0, ("1g.5gb", 0), BACKFILL, small_s),
        ("small-1", 0, ("1g.5gb", 1), BACKFILL, small_s),
        ("large", 1, ("3g.20gb", 0), BACKFILL, large_s),
    ):
        held = hami_pod(name, 4096 if slices[0] == "1g.5gb" else 15_360, 0, priority_class=priority)
        run(api, assigned(held, on="n1", gpu=gpu, slices=slices), on="n1", for_s=for_s)
    before = present(api)
    with evicting(cluster, stowage_kubeconfig) as stowage:
        stowage.flush(api)
        api.create(hami_pod("notebook", 15_360, 0, priority_class=INTERACTIVE))
        wait_until_running(api, "notebook")
    assert present(api) == before - leaving | {"notebook"}
    assert gpu_of(api.get("Pod", "notebook")) == uuid("n1", 0 if "small-0" in leaving else 1)
    for victim in leaving:
        event = event_about(api, victim)
        assert (event["reason"], event["related"]["name"]) == ("Preempted", "notebook")


def test_a_backfill_takes_over_after_the_maximum_duration(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    api.create(node("n1", {GPU: 2}, labels=H100))
    run(api, pod("younger", {GPU: 1}, priority_class=BACKFILL), on="n1", for_s=2 * HOUR)
    run(api, pod("older", {GPU: 1}, priority_class=BACKFILL), on="n1", for_s=3 * HOUR)
    with evicting(cluster, stowage_kubeconfig) as stowage:
        stowage.flush(api)
        api.create(pod("waits", {GPU: 1}, priority_class=BACKFILL))
        time.sleep(5)
        assert present(api) == {"younger", "older", "waits"}
        set_started(api, "older", ago_s=5 * HOUR)
        wait_until_running(api, "waits")
    assert present(api) == {"younger", "waits"}


def test_a_budget_is_never_violated(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    create_classes(api)
    for name, for_s in (("protected", 15 * MINUTE), ("costly", 3 * HOUR)):
        api.create(node(name, {}, labels=SHARED))
        one = share(f"on-{name}", priority_class=BACKFILL, holds=True, labels={"app": name})
        run(api, one, on=name, for_s=for_s)
    api.create(budget("protects", {"app": "protected"}, min_available=1))
    with (
        cluster.controller_manager(["disruption-controller"]),
        evicting(cluster, stowage_kubeconfig) as stowage,
    ):
        eventually(lambda: "protects" in observed_budgets(api), within_s=30, what="the budget has a status")
        stowage.flush(api)
        api.create(share("first", priority_class=INTERACTIVE))
        assert wait_until_running(api, "first") == "costly"
        api.create(share("second", priority_class=INTERACTIVE))
        time.sleep(8)
        assert present(api) == {"on-protected", "first", "second"}
        api.delete("PodDisruptionBudget", "protects")
        assert wait_until_running(api, "second") == "protected"
    assert present(api) == {"first", "second"}


def test_a_pod_with_two_budgets_stays(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    """Both would let it go, and the eviction API refuses it with status 500."""
    create_classes(api)
    for name, for_s in (("two", 15 * MINUTE), ("costly", 3 * HOUR)):
        api.create(node(name, {}, labels=SHARED))
        one = share(f"on-{name}", priority_class=BACKFILL, holds=True, labels={"app": name})
        run(api, one, on=name, for_s=for_s)
    for name in ("first", "second"):
        api.create(budget(name, {"app": "two"}, min_available=0))
    with (
        cluster.controller_manager(["disruption-controller"]),
        evicting(cluster, stowage_kubeconfig) as stowage,
    ):
        eventually(lambda: len(observed_budgets(api)) == 2, within_s=30, what="the budgets have a status")
        stowage.flush(api)
        api.create(share("notebook", priority_class=INTERACTIVE))
        assert wait_until_running(api, "notebook", within_s=40) == "costly"
    assert present(api) == {"on-two", "notebook"}


def test_a_gang_on_two_nodes_leaves_as_a_whole(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    create_classes(api)
    for number in range(2):
        api.create(node(f"n{number}", {}, labels=SHARED))
        labels = {"stowage.dev/gang": "trains", "stowage.dev/gang-min": "2"}
        one = share(f"member-{number}", priority_class=BACKFILL, holds=True, labels=labels)
        run(api, one, on=f"n{number}", for_s=HOUR)
    with evicting(cluster, stowage_kubeconfig) as stowage:
        stowage.flush(api)
        api.create(share("notebook", priority_class=INTERACTIVE))
        wait_until_running(api, "notebook")
        eventually(lambda: present(api) == {"notebook"}, within_s=10, what="the other member leaves")


def test_it_can_only_recommend(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> None:
    create_classes(api)
    api.create(node("n1", {}, labels=SHARED))
    run(api, share("holds", priority_class=BACKFILL, holds=True), on="n1", for_s=HOUR)
    with evicting(cluster, stowage_kubeconfig, mode="recommend") as stowage:
        stowage.flush(api)
        api.create(share("notebook", priority_class=INTERACTIVE))
        assert event_about(api, "notebook")["reason"] == "EvictionRecommended"
        time.sleep(2)
    assert present(api) == {"holds", "notebook"}


def event_about(api: Api, name: str) -> Object:
    """What Stowage says about a pod."""
    selector = f"involvedObject.name={name},reportingComponent=stowage.dev/evictor"

    def events() -> list[Object]:
        found: list[Object] = api.list("Event", fieldSelector=selector)["items"]
        return found

    eventually(lambda: bool(events()), within_s=30, what=f"an event is about {name}")
    return events()[0]
