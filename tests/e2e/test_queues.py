"""Interactive, batch and backfill pods on full nodes: kube-scheduler asks Stowage's `preempt`."""

from pathlib import Path

import pytest

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .hami_nodes import hami_node, uuid
from .queue_cases import (
    BACKFILL,
    BATCH,
    HOUR,
    INTERACTIVE,
    MINUTE,
    ago,
    assigned,
    create_classes,
    gpu_of,
    hami_pod,
    observed_budgets,
    present,
    run,
    wait_until_running,
)
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, applied, scheduler_configuration
from .workload import budget, node, pod

SAVED_AT = "stowage.dev/checkpointed-at"
H100 = LABEL_SETS["h100-sxm-8-whole"]


@pytest.fixture
def stowage(new_stowage: Stowage) -> Stowage:
    return new_stowage


def test_only_the_cheapest_victim_goes(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """The batch pods have not reached their minimum runtime; of the backfill pods one has just saved its
    work. kube-scheduler alone would evict the latest one."""
    create_classes(api)
    for name in ("young", "old"):
        api.create(node(name, {GPU: 8}, labels=H100))
    for number in range(8):
        run(api, pod(f"batch-{number}", {GPU: 1}, priority_class=BATCH), on="young", for_s=MINUTE)
    for number in range(7):
        run(api, pod(f"backfill-{number}", {GPU: 1}, priority_class=BACKFILL), on="old", for_s=HOUR + number)
    saves = pod("cheapest", {GPU: 1}, priority_class=BACKFILL, annotations={SAVED_AT: ago(MINUTE)})
    run(api, saves, on="old", for_s=3 * HOUR)
    stowage.flush(api)
    before = present(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("notebook", {GPU: 1}, priority_class=INTERACTIVE))
        assert wait_until_running(api, "notebook") == "old"
    assert present(api) == before - {"cheapest"} | {"notebook"}


def test_the_pod_gets_the_gpu_that_its_victim_had(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """kube-scheduler counts slots and would evict `latest`, which does not free enough of its GPU."""
    create_classes(api)
    api.create(hami_node("n1", 2, slots=2))
    for name, gpu, cores, for_s in (
        ("cheapest", 0, 60, 30 * MINUTE),
        ("latest", 0, 40, 15 * MINUTE),
        ("third", 1, 50, HOUR),
        ("fourth", 1, 50, HOUR),
    ):
        held = hami_pod(name, 800 * cores, cores, priority_class=BACKFILL)
        run(api, assigned(held, on="n1", gpu=gpu), on="n1", for_s=for_s)
    with (
        applied(api, "rbac-bind.yaml"),
        Stowage(cluster, stowage_kubeconfig, BIND="true") as stowage,
        cluster.scheduler(scheduler_configuration(stowage.url, "shared-gpus.yaml")),
    ):
        stowage.flush(api)
        api.create(hami_pod("notebook", 40_000, 50, priority_class=INTERACTIVE))
        wait_until_running(api, "notebook")
    assert present(api) == {"notebook", "latest", "third", "fourth"}
    assert gpu_of(api.get("Pod", "notebook")) == uuid("n1", 0)


def test_a_budget_is_violated_only_if_there_is_no_other_way(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    create_classes(api)
    for name, for_s in (("protected", 15 * MINUTE), ("costly", 3 * HOUR)):
        api.create(node(name, {GPU: 1}, labels=H100))
        one = pod(f"on-{name}", {GPU: 1}, priority_class=BACKFILL, labels={"app": name})
        run(api, one, on=name, for_s=for_s)
    api.create(budget("protects", {"app": "protected"}, min_available=1))
    with (
        cluster.controller_manager(["disruption-controller"]),
        cluster.scheduler(scheduler_configuration(stowage.url)),
    ):
        eventually(lambda: "protects" in observed_budgets(api), within_s=30, what="the budget has a status")
        stowage.flush(api)
        api.create(pod("first", {GPU: 1}, priority_class=INTERACTIVE))
        assert wait_until_running(api, "first") == "costly"
        assert present(api) == {"on-protected", "first"}
        api.create(pod("second", {GPU: 1}, priority_class=INTERACTIVE))
        assert wait_until_running(api, "second") == "protected"
    assert present(api) == {"first", "second"}
