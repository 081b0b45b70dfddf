"""A spot node is interrupted: its job comes back elsewhere and goes on from its last checkpoint."""

import re
import shutil
from pathlib import Path

import httpx
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .queue_cases import create_classes
from .runner import RUNS, Runner
from .rush import GPU, LABEL_SETS
from .stowage import ROOT, Stowage, scheduler_configuration
from .workload import node

EXAMPLE = ROOT / "deploy/examples/checkpointing"
SPOT = {"karpenter.sh/capacity-type": "spot"}
INTERRUPTED = {"key": "aws-node-termination-handler/spot-itn", "value": "x", "effect": "NoSchedule"}


def test_a_job_resumes_elsewhere(cluster: ControlPlane, api: Api, stowage: Stowage, tmp_path: Path) -> None:
    create_classes(api)
    labels = LABEL_SETS["h100-sxm-8-whole"]
    api.create(node("on-demand", {GPU: 8}, labels=labels))
    for name in ("spot-1", "spot-2"):
        api.create(node(name, {GPU: 8}, labels=labels | SPOT))
    stowage.flush(api)
    before = interruptions(stowage)
    with (
        Runner(api, tmp_path),
        cluster.controller_manager(["job-controller", "disruption-controller"]),
        cluster.scheduler(scheduler_configuration(stowage.url)),
    ):
        create_example(api, tmp_path)
        eventually(lambda: checkpoints(tmp_path) > 1, within_s=60, what="the job has saved a checkpoint")
        (first,) = api.list("Pod")["items"]
        interrupt(api, first)
        eventually(lambda: bool(resumed(tmp_path)), within_s=60, what="another pod resumes")
        (second,) = [one for one in api.list("Pod")["items"] if one["status"]["phase"] == "Running"]
        eventually(
            lambda: interruptions(stowage) == before + 1, within_s=10, what="the interruption is counted"
        )
    assert {first["spec"]["nodeName"], second["spec"]["nodeName"]} == {"spot-1", "spot-2"}
    assert "terminated after step" in (tmp_path / f"{first['metadata']['name']}.log").read_text()
    terminated = saved(tmp_path / f"{first['metadata']['name']}.log")
    assert resumed(tmp_path) == terminated[-1:]


def create_example(api: Api, directory: Path) -> None:
    """The Job of the example with its claim, which is bound to a volume as a provisioner would do it."""
    (directory / "code").mkdir()
    shutil.copy(EXAMPLE / "train.py", directory / "code")
    claim, job = filter(None, yaml.safe_load_all((EXAMPLE / "job.yaml").read_text()))
    job["spec"]["template"]["metadata"]["labels"][RUNS] = ""
    job["metadata"]["namespace"] = claim["metadata"]["namespace"] = NAMESPACE
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    claim["spec"] |= {"volumeName": "checkpoints", "storageClassName": ""}
    api.create(volume(claim["metadata"]["name"]))
    api.create(claim)
    api.patch(
        "PersistentVolumeClaim",
        claim["metadata"]["name"],
        {"status": {"phase": "Bound"}},
        subresource="status",
    )
    api.create(job)


def volume(claim: str) -> Object:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"name": claim, "namespace": NAMESPACE},
        "hostPath": {"path": "/checkpoints"},  # not used: see runner.py
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "checkpoints"}, "spec": spec}


def interrupt(api: Api, pod: Object) -> None:
    """What the provider's handler does: taint the node, and evict its pods."""
    api.patch("Node", pod["spec"]["nodeName"], {"spec": {"taints": [INTERRUPTED]}})
    api.evict(pod["metadata"]["name"])


def checkpoints(directory: Path) -> int:
    """How many checkpoints the pods have reported."""
    return sum(len(saved(log)) for log in directory.glob("*.log"))


def saved(log: Path) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+):", log.read_text(), re.MULTILINE)]


def resumed(directory: Path) -> list[int]:
    """From which step a pod went on."""
    texts = [log.read_text() for log in directory.glob("*.log")]
    return [
        int(step) for text in texts for step in re.findall(r"^resumed from step (\d+)$", text, re.MULTILINE)
    ]


def interruptions(stowage: Stowage) -> float:
    """The metric, of pods of Jobs in the queue backfill."""
    text = httpx.get(f"{stowage.url}/metrics", trust_env=False).text
    labels = {'queue="backfill"', 'reason="NodeInterruption"', 'owner="Job"'}
    lines = [line for line in text.splitlines() if line.startswith("stowage_preempted_pods_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(one in line for one in labels))
