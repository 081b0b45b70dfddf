"""The evictor frees a MIG placement that the claims of its victims hold (Dynamic Resource Allocation)."""

from pathlib import Path

import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .dra_cases import claim_of, classes
from .dra_devices import DRIVER, divided_node
from .queue_cases import (
    BACKFILL,
    HOUR,
    INTERACTIVE,
    MINUTE,
    create_classes,
    present,
    run,
    set_started,
    wait_until_running,
)
from .test_dra import give, wait_for_devices, wait_until_held
from .test_evictor import evicting
from .workload import pod

THREE, ONE = "3g.40gb", "1g.10gb"


def with_claim(name: str, profile: str, priority_class: str) -> tuple[Object, Object]:
    """A pod that requests a MIG device of this profile, and its claim."""
    selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    made = pod(name, {}, cpu="100m", priority_class=priority_class)
    made["spec"]["resourceClaims"] = [{"name": "part", "resourceClaimName": f"{name}-claim"}]
    return made, claim_of(f"{name}-claim", "mig.nvidia.com", selector)


def hold(api: Api, name: str, profile: str, device: str, priority_class: str, for_s: float) -> None:
    """Runs a pod whose claim holds this device of the node n1."""
    made, claim = with_claim(name, profile, priority_class)
    # kube-scheduler adds this; the controller takes devices back only from such claims.
    claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    api.create(claim)
    result = {"request": "part", "driver": DRIVER, "pool": "n1", "device": device}
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    claim["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
    }
    give(api, claim)
    run(api, made, on="n1")
    uid = api.get("Pod", name)["metadata"]["uid"]
    reserved = [{"resource": "pods", "name": name, "uid": uid}]
    give(api, claim | {"status": claim["status"] | {"reservedFor": reserved}})
    set_started(api, name, ago_s=for_s)


@pytest.mark.parametrize(
    ("small_s", "large_s", "leaving", "device"),
    [
        (10 * MINUTE, 2 * HOUR, {"small-0", "small-1"}, "gpu-0-mig-3g40gb-9-0"),
        (2 * HOUR, 10 * MINUTE, {"large"}, "gpu-1-mig-3g40gb-9-0"),
    ],
)
def test_a_placement_that_claims_hold(
    cluster: ControlPlane,
    api: Api,
    stowage_kubeconfig: Path,
    small_s: float,
    large_s: float,
    leaving: set[str],
    device: str,
) -> None:
    create_classes(api)
    node, slices = divided_node("n1", 2)
    api.create(node)
    api.create_all([*classes(), *slices])
    hold(api, "keeps-0", THREE, "gpu-0-mig-3g40gb-9-4", INTERACTIVE, HOUR)
    hold(api, "keeps-1", THREE, "gpu-1-mig-3g40gb-9-4", INTERACTIVE, HOUR)
    hold(api, "small-0", ONE, "gpu-0-mig-1g10gb-19-0", BACKFILL, small_s)
    hold(api, "small-1", ONE, "gpu-0-mig-1g10gb-19-1", BACKFILL, small_s)
    hold(api, "large", THREE, "gpu-1-mig-3g40gb-9-0", BACKFILL, large_s)
    before = present(api)
    with (
        cluster.controller_manager(["resourceclaim-controller"]),
        evicting(cluster, stowage_kubeconfig, file="every-pod.yaml") as stowage,
    ):
        stowage.flush(api)
        wait_for_devices(stowage, ["n1"])
        wait_until_held(stowage, "large", ["n1"])
        made, wish = with_claim("notebook", THREE, INTERACTIVE)
        api.create(wish)
        api.create(made)
        wait_until_running(api, "notebook")
    assert present(api) == before - leaving | {"notebook"}
    (result,) = api.get("ResourceClaim", "notebook-claim")["status"]["allocation"]["devices"]["results"]
    assert result["device"] == device
