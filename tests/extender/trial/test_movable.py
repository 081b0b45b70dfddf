"""Why a running pod stays where it is."""

from __future__ import annotations

from typing import Any

import pytest

from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.queues.rights import WhyNot
from extender.trial.cluster_pods import Stays, why_it_stays

STARTED = 1_767_225_600.0  # 2026-01-01
SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
HOST = {"hostPath": {"path": "/data", "type": "Directory"}}


def pod(image: str = "trainer:1", **more: Any) -> Pod:
    """``more``: parts of the metadata; volumes, claims and containers go to the spec."""
    in_spec = {name: more.pop(name) for name in ("volumes", "resourceClaims", "containers") if name in more}
    owner = {"kind": more.pop("owner", "Job"), "name": "x", "controller": True}
    manifest = {
        "metadata": {"name": "p", "ownerReferences": [owner] if owner["kind"] else [], **more},
        "spec": {"containers": [{"name": "main", "image": image}], **in_spec},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }
    return PodManifest.from_value(manifest).record()


def annotated(name: str, text: str, **more: Any) -> Pod:
    return pod(annotations={name: text}, **more)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (pod(), None),
        (pod(owner="DaemonSet"), Stays.PINNED),
        (pod(owner="Node"), Stays.PINNED),
        (pod("registry.k8s.io/pause:3.10"), Stays.RESERVATION),
        (pod("pause"), Stays.RESERVATION),
        (pod("k8s.gcr.io/pause-amd64:3.1"), Stays.RESERVATION),
        (pod("mirror:5000/eks/pause@sha256:0a"), Stays.RESERVATION),
        (pod("pauser:1"), None),
        (pod("pause/trainer:1"), None),
        (pod(containers=[{"image": "pause:3"}, {"image": "trainer"}]), None),
        (pod(containers=[{"image": None}]), None),
        (pod(namespace="kai-resource-reservation"), Stays.RESERVATION),
        (pod(namespace="kai-scale-adjust"), Stays.RESERVATION),
        (pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]), Stays.CLAIMS),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), Stays.TERMINATING),
        (annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), WhyNot.SAFE_TO_EVICT),
        (annotated("karpenter.sh/do-not-disrupt", "true"), WhyNot.DO_NOT_DISRUPT),
        (annotated("karpenter.sh/do-not-disrupt", "2h"), WhyNot.DO_NOT_DISRUPT),
        (annotated("karpenter.sh/do-not-disrupt", "30m"), None),
        (annotated("kai.scheduler/safe-to-consolidate", "false"), Stays.NOT_CONSOLIDATED),
        (annotated("kai.scheduler/safe-to-consolidate", "no"), Stays.NOT_CONSOLIDATED),
        (annotated("kai.scheduler/safe-to-consolidate", "true"), None),
        (pod(volumes=[HOST]), Stays.LOCAL_DATA),
        (annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", volumes=[HOST]), None),
        (pod(volumes=[{"hostPath": {"path": "/dev/kvm", "type": "CharDevice"}}]), None),
        (pod(volumes=[{"emptyDir": {"medium": "Memory"}}]), None),
        (pod(volumes=[{"name": "v", "emptyDir": {}}]), Stays.LOCAL_DATA),
        (pod(volumes=[{"emptyDir": None}]), None),
        (annotated(SAFE_VOLUMES, "a,v", volumes=[{"name": "v", "emptyDir": {}}]), None),
        (annotated(SAFE_VOLUMES, "a,b", volumes=[{"name": "v", "emptyDir": {}}]), Stays.LOCAL_DATA),
        (pod(volumes=[{"persistentVolumeClaim": {"claimName": "x"}}]), None),
        (pod(owner=""), None),
    ],
)
def test_why_a_pod_stays(one: Pod, why: str | None) -> None:
    an_hour_later = STARTED + 3600
    assert why_it_stays(one, an_hour_later) == why


def test_a_real_move_needs_a_controller() -> None:
    assert why_it_stays(pod(owner=""), STARTED, must_be_created_again=True) == Stays.NO_CONTROLLER
    assert why_it_stays(pod(), STARTED, must_be_created_again=True) is None
