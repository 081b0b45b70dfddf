"""What the API says of a pod that waits."""

import time

from .controlplane.api import Api
from .controlplane.process import eventually

STILL_S = 2.0  # kube-scheduler has tried again by then, if the cluster has changed


def message(api: Api, pod: str) -> str:
    """Why kube-scheduler did not place it, "" if it has not tried or did."""
    conditions = api.get("Pod", pod)["status"].get("conditions", ())
    return next((str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled"), "")


def stays(api: Api, pod: str, why: str) -> None:
    """The pod waits, because of `why`, and goes on waiting."""
    eventually(lambda: why in message(api, pod), within_s=60, what=f"{pod} waits: {why}")
    time.sleep(STILL_S)
    assert "nodeName" not in api.get("Pod", pod)["spec"]
    assert why in message(api, pod)
