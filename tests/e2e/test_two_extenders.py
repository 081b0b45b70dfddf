"""Stowage and another extender in one KubeSchedulerConfiguration, and several kube-schedulers on its nodes.

docs/two-extenders.md says the same in words.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from . import sharing
from .audit import Audit, runs
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import ProcessError, eventually
from .evidence import stays
from .other_extender import Opinions, OtherExtender
from .queue_cases import present, wait_until_running
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, applied, scheduler_configuration
from .workload import node, pod, priority_class

H100 = LABEL_SETS["h100-sxm-8-whole"]
NODES = [f"n{number}" for number in range(6)]
FIRST, LAST = "first", "last"  # the place of the other extender


@pytest.fixture
def other() -> Iterator[OtherExtender]:
    with OtherExtender(Opinions()) as extender:
        yield extender


@contextmanager
def both(
    cluster: ControlPlane, stowage: Stowage, other: OtherExtender, place: str, **changes: object
) -> Iterator[None]:
    """A kube-scheduler that calls both. `changes` are for the other one."""
    configuration = scheduler_configuration(stowage.url)
    own, its = configuration["extenders"], [other.configured(**changes)]
    configuration["extenders"] = its + own if place == FIRST else own + its
    configuration["podMaxBackoffSeconds"] = 2
    with cluster.scheduler(configuration):
        yield


@contextmanager
def stowage_with(cluster: ControlPlane, kubeconfig: Path, **settings: str) -> Iterator[Stowage]:
    with Stowage(cluster, kubeconfig, name="stowage-one-of-two", **settings) as stowage:
        yield stowage


def empty_nodes(api: Api) -> None:
    """Stowage prefers n0, where a pod runs already."""
    api.create_all(node(name, {GPU: 8}, labels=H100) for name in NODES)
    api.create(pod("old", {GPU: 4}, on="n0"))
    wait_until_running(api, "old")


def test_the_second_is_asked_about_the_nodes_that_the_first_allows(
    cluster: ControlPlane, api: Api, stowage: Stowage, other: OtherExtender
) -> None:
    """And what Stowage refuses the other one does not bring back."""
    empty_nodes(api)
    stowage.flush(api)
    other.opinions.allows = {"n3"}
    with both(cluster, stowage, other, FIRST):
        api.create(pod("one", {GPU: 4}))
        assert wait_until_running(api, "one") == "n3"
        api.patch("Node", "n3", {"metadata": {"labels": {"nvidia.com/mig.config.state": "pending"}}})
        stowage.flush(api)
        api.create(pod("two", {GPU: 4}))
        stays(api, "two", "1 MIG reconfiguration in progress, 5 refused by the other")
    assert other.asked[0] == set(NODES)


def test_a_shortlist_hides_nodes_from_an_extender_that_comes_after_stowage(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, other: OtherExtender
) -> None:
    """The pod waits though both allow n3, until Stowage names all nodes (shortlist: 0)."""
    empty_nodes(api)
    other.opinions.allows = {"n3"}
    with (
        stowage_with(cluster, stowage_kubeconfig, SHORTLIST="1") as stowage,
        both(cluster, stowage, other, LAST),
    ):
        api.create(pod("one", {GPU: 4}))
        stays(api, "one", "refused by the other")
        assert all(len(names) == 1 for names in other.asked)
    other.asked.clear()
    with (
        stowage_with(cluster, stowage_kubeconfig, SHORTLIST="0") as stowage,
        both(cluster, stowage, other, LAST),
    ):
        assert wait_until_running(api, "one") == "n3"
        assert other.asked[0] == set(NODES)


@pytest.mark.parametrize(("weight", "node"), [(1, "n0"), (1000, "n4")])
def test_weights_decide_whose_scores_count(
    cluster: ControlPlane, api: Api, stowage: Stowage, other: OtherExtender, weight: int, node: str
) -> None:
    """Scores are multiplied by the weights and added. Stowage has 200, and puts small pods beside others."""
    empty_nodes(api)
    stowage.flush(api)
    other.opinions.likes = {"n4"}
    with both(cluster, stowage, other, FIRST, weight=weight):
        api.create(pod("one", {GPU: 4}))
        assert wait_until_running(api, "one") == node


def two_full_nodes(api: Api) -> None:
    """Stowage would evict the one pod on n1, which has only just begun, for a pod of 4 GPUs."""
    api.create(priority_class("urgent", 1000))
    for name, gpus in (("n0", (8,)), ("n1", (4, 4))):
        api.create(node(name, {GPU: 8}, labels=H100))
        for number, count in enumerate(gpus):
            api.create(pod(f"{name}-{number}", {GPU: count}, on=name))
            wait_until_running(api, f"{name}-{number}")


def test_both_preempt_in_their_order(
    cluster: ControlPlane, api: Api, new_stowage: Stowage, other: OtherExtender
) -> None:
    """The other one protects n1, so Stowage chooses among what is left."""
    two_full_nodes(api)
    new_stowage.flush(api)
    other.opinions.preempts = {"n0"}
    with both(cluster, new_stowage, other, FIRST):
        api.create(pod("urgent", {GPU: 4}, priority_class="urgent"))
        assert wait_until_running(api, "urgent") == "n0"
    assert present(api) == {"urgent", "n1-0", "n1-1"}


def test_after_stowage_another_extender_has_only_the_best_nodes_to_choose_from(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, other: OtherExtender
) -> None:
    """With preempt_nodes: 1 nobody is evicted, and the pod waits."""
    two_full_nodes(api)
    other.opinions.preempts = {"n0"}
    with stowage_with(cluster, stowage_kubeconfig) as stowage, both(cluster, stowage, other, LAST):
        api.create(pod("urgent", {GPU: 4}, priority_class="urgent"))
        stays(api, "urgent", f"Insufficient {GPU}")
        assert len(present(api)) == 4
    several = stowage_with(cluster, stowage_kubeconfig, PREEMPT_NODES="2")
    with several as stowage, both(cluster, stowage, other, LAST):
        assert wait_until_running(api, "urgent") == "n0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bindVerb": "bind"}, "only one extender can implement bind"),
        ({"managedResources": [{"name": GPU}]}, "duplicate extender managed resource name"),
    ],
)
def test_what_only_one_may_have(
    cluster: ControlPlane,
    stowage: Stowage,
    other: OtherExtender,
    changes: dict[str, object],
    message: str,
) -> None:
    """kube-scheduler refuses a configuration where both bind, or both manage the same resource."""
    configuration = scheduler_configuration(stowage.url, bindVerb="bind")
    configuration["extenders"].append(other.configured(**changes))
    refused = cluster.scheduler(configuration, "refused")
    with pytest.raises(ProcessError, match=message), refused:
        pass


def test_stowage_binds_parts_of_gpus_beside_an_extender_that_only_filters(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path, other: OtherExtender
) -> None:
    for name in ("own-00", "own-01"):
        api.create(
            node(name, {}, labels={"stowage.dev/gpu-sharing": "true", f"{GPU}.count": "8"} | sharing.PRODUCT)
        )
    other.opinions.allows = {"own-01"}
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        stowage = stack.enter_context(stowage_with(cluster, stowage_kubeconfig, BIND="true"))
        configuration = scheduler_configuration(stowage.url, "shared-gpus.yaml")
        configuration["extenders"].insert(0, other.configured())
        stack.enter_context(cluster.scheduler(configuration))
        api.create(sharing.own_pod("part", "400m", "30Gi"))
        wait_until_running(api, "part")
    assert sharing.assigned(api.get("Pod", "part")).node == "own-01"


def test_ignorable_is_for_each_extender(
    cluster: ControlPlane, api: Api, stowage: Stowage, other: OtherExtender
) -> None:
    """While an extender fails that is not ignorable, pods wait; one that is ignorable is left out."""
    empty_nodes(api)
    stowage.flush(api)
    other.opinions = Opinions(allows={"n3"}, fails=True)
    with both(cluster, stowage, other, FIRST, ignorable=False):
        api.create(pod("one", {GPU: 4}))
        stays(api, "one", "code 500")
    with both(cluster, stowage, other, FIRST, ignorable=True):
        assert wait_until_running(api, "one") == "n0"
        other.opinions.fails = False
        api.create(pod("two", {GPU: 4}))
        assert wait_until_running(api, "two") == "n3"


def pods_of(scheduler: str, count: int) -> list[Object]:
    return [pod(f"{scheduler}-{number:02}", {GPU: 1}, scheduler=scheduler) for number in range(count)]


def test_two_kube_schedulers_with_the_same_stowage_share_nodes_if_it_binds(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    """60 pods each on 96 GPUs at once: `bind` judges the node again, so no GPU is given out twice."""
    api.create_all(node(f"n{number}", {GPU: 8}, labels=H100) for number in range(12))
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        stowage = stack.enter_context(stowage_with(cluster, stowage_kubeconfig, BIND="true"))
        audit = stack.enter_context(Audit(api))
        for name in ("stowage", "stowage-too"):
            configuration = scheduler_configuration(stowage.url, bindVerb="bind")
            configuration["profiles"][0]["schedulerName"] = name
            stack.enter_context(cluster.scheduler(configuration, name))
        api.create_all(
            [
                one
                for pair in zip(pods_of("stowage", 60), pods_of("stowage-too", 60), strict=True)
                for one in pair
            ]
        )
        eventually(lambda: len(audit.bound) == 96 and audit.settled(), within_s=90, what="the GPUs are full")
    assert audit.findings == []
    by_scheduler = {
        name: sum(runs(one) and one["spec"]["schedulerName"] == name for one in api.list("Pod")["items"])
        for name in ("stowage", "stowage-too")
    }
    print(by_scheduler)
    assert min(by_scheduler.values()) > 0
