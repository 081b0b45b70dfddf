"""Pods that ask for two GPUs, in a cluster where some nodes have replicas of one GPU only."""

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .queue_cases import wait_until_running
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .test_waiting import why_unscheduled
from .workload import node, pod

T4 = LABEL_SETS["t4-time-sliced-4"]
SEPARATE = "stowage.dev/separate-gpus"


def test_two_gpus_are_two_gpus(cluster: ControlPlane, api: Api, stowage: Stowage) -> None:
    """Three nodes offer four replicas of one T4 each, and one has two whole GPUs."""
    for name in ("sliced-1", "sliced-2", "sliced-3"):
        api.create(node(name, {GPU: 4}, labels=T4))
    api.create(node("whole", {GPU: 2}, labels=LABEL_SETS["h100-sxm-8-whole"] | {f"{GPU}.count": "2"}))
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        api.create(pod("one", {GPU: 1}))
        assert wait_until_running(api, "one").startswith("sliced")
        api.create(pod("two", {GPU: 2}))
        assert wait_until_running(api, "two") == "whole"
        api.create(pod("only-real-ones", {GPU: 2}, annotations={SEPARATE: "required"}))
        assert (
            "3 node would allocate a container several replicas or instances of the same GPU"
            in why_unscheduled(api, "only-real-ones")
        )
        api.create(pod("takes-replicas", {GPU: 2}))
        assert wait_until_running(api, "takes-replicas").startswith("sliced")
        told = stowage.json("/debug/pods/default/takes-replicas")
        gives = {option["gives"] for option in told["decisions"][0]["explanation"]["best"]}
        assert gives == {"2 of 4 replicas of one T4"}
        api.delete("Pod", "two")
        assert wait_until_running(api, "only-real-ones") == "whole"
