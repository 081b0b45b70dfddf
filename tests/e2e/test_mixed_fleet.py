"""Pods that name no model, in a cluster of whole GPUs and time slices: they leave the whole GPUs free."""

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, H100, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .workload import node, pod

WHOLE = LABEL_SETS["h100-sxm-8-whole"]
SLICED = LABEL_SETS["t4-time-sliced-4"] | {
    f"{GPU}.product": "NVIDIA-L40S-SHARED",
    f"{GPU}.count": "4",
    f"{GPU}.memory": "46068",
}


def test_pods_that_name_no_model_leave_whole_nodes_for_large_jobs(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    for number in range(4):
        api.create(node(f"h100-{number}", {GPU: 8}, labels=WHOLE))
        api.create(node(f"l40s-{number}", {GPU: 16}, labels=SLICED))
    stowage.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage.url)):
        for number in range(40):
            api.create(pod(f"small-{number}", {GPU: 1}))
        eventually(lambda: len(running(api, "small")) == 40, within_s=120, what="40 pods of one GPU run")
        assert {name.rsplit("-", 1)[0] for name in running(api, "small")} == {"l40s"}
        for number in range(4):
            api.create(pod(f"large-{number}", {GPU: 8}, product=H100))
        eventually(lambda: len(running(api, "large")) == 4, within_s=60, what="4 jobs of 8 GPUs run")
    assert sorted(running(api, "large")) == [f"h100-{number}" for number in range(4)]


def running(api: Api, prefix: str) -> list[str]:
    """The nodes of the pods with this prefix that run."""
    pods = [one for one in api.list("Pod")["items"] if one["metadata"]["name"].startswith(prefix)]
    return [one["spec"]["nodeName"] for one in pods if one["status"].get("phase") == "Running"]
