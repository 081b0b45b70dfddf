"""What explain says of 26 workloads as their projects write them, on clusters as four clouds have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extender.explain.pod import explain_template
from extender.source.workloads import parse_templates

from ..extender.builders import NOW
from .clusters import TAINT, cloud

MANIFESTS = yaml.load((Path(__file__).parent / "manifests.yaml").read_text(), yaml.CSafeLoader)
ADDED = "a toleration for nvidia.com/gpu"
ANY_GPU = {"gke": 11, "eks": 14, "aks": 11, "oke": 14}  # EKS and OKE taint no spot nodes
WHOLE_NODES = dict.fromkeys(TAINT, 5)
WITHOUT_GPU = dict.fromkeys(TAINT, 4)
NONE = dict.fromkeys(TAINT, 0)
# Of each manifest the pods, on how many nodes each fits, and words of verdict, ways out and notes.
RIGHT: dict[str, list[tuple[str, dict[str, int], tuple[str, ...]]]] = {
    "vllm-stack": [("vllm-llama3", ANY_GPU, (ADDED, "2 of the 2 pods of its workload fit at the same time"))],
    "vllm-tensor-parallel": [("vllm-70b", WHOLE_NODES, (ADDED, "not checked: volumes"))],
    "nim-pod": [("nim-llm", ANY_GPU, (ADDED,))],
    "nim-service": [("meta-llama3", ANY_GPU, (ADDED,))],
    "dynamo": [("disagg", ANY_GPU, (ADDED, "2 of the 2 pods of its workload fit at the same time"))],
    "dynamo-multinode": [("large", WHOLE_NODES, (ADDED, "4 of the 4 pods of its workload fit"))],
    "vllm-runtime": [("vllm", ANY_GPU, (ADDED, "2 of the 2 pods of its workload fit at the same time"))],
    "kserve": [("qwen", ANY_GPU, (ADDED,))],
    "kserve-multinode": [("deepseek", WHOLE_NODES, (ADDED,)), ("deepseek-worker", WHOLE_NODES, (ADDED,))],
    "ray-cluster": [
        ("ray-head", WITHOUT_GPU, ("It requests no GPU",)),
        ("ray-gpu", WHOLE_NODES, (ADDED, "All 2 pods that must start together fit now")),
    ],
    "ray-service": [("serve-head", WITHOUT_GPU, ()), ("serve-l4", ANY_GPU, (ADDED,))],
    "train-job": [("torch", WHOLE_NODES, (ADDED, "All 2 pods that must start together fit now"))],
    "pytorch-job": [("ddp-Master", WHOLE_NODES, (ADDED,)), ("ddp-Worker", WHOLE_NODES, (ADDED,))],
    "lws": [("deepseek-r1", WHOLE_NODES, (ADDED, "All 2 pods that must start together fit now"))],
    "jobset": [("pretrain", WHOLE_NODES, (ADDED, "The 8 pods that must start together fit only after"))],
    "jupyterhub": [("jupyter-ada", ANY_GPU, (ADDED,))],
    "slurm-bridge": [("bridged", ANY_GPU, (ADDED, "'slurm-bridge-scheduler'. Is that scheduler installed?"))],
    "argo": [("gpu-step-", ANY_GPU, (ADDED,))],
    "triton": [("triton", NONE, ("No node has", "nvidia.com/gpu.product", "MIG instances of one A100"))],
    "mpi": [
        ("nccl-Launcher", WITHOUT_GPU, ("It requests no GPU",)),
        ("nccl-Worker", WHOLE_NODES, (ADDED, "All 3 pods that must start together fit now")),
    ],
    # Nothing adds a toleration for devices of claims.
    "dra-template": [
        ("dra", NONE, ("device class 'gpu.nvidia.com' is not known", "kubectl get nodes,pods,dev"))
    ],
    "compute-domain": [("nvbandwidth", NONE, (ADDED, "made from the ResourceClaimTemplate 'imex-channel'"))],
    "mig-profile": [
        ("mig", NONE, ("No node offers nvidia.com/mig-1g.5gb", "A100 SXM4 40GB can be divided into it"))
    ],
    "spot-only": [("spot", {"gke": 0, "eks": 3, "aks": 0, "oke": 3}, ())],
    "cpu-only": [("preprocessing", WITHOUT_GPU, ())],
    "misspelt": [
        ("typo", NONE, ("Did you mean nvidia.com/gpu?", 'write limits: {nvidia.com/gpu: "1"}; then it fits'))
    ],
}


@pytest.mark.parametrize("provider", TAINT)
@pytest.mark.parametrize("name", MANIFESTS)
def test_the_answer_is_right_and_useful(name: str, provider: str):
    state, templates = cloud(provider), parse_templates(MANIFESTS[name], name)
    right = RIGHT[name]
    assert [one.pod.name for one in templates] == [pod for pod, _, _ in right]
    for one, (_, fits, words) in zip(templates, right, strict=True):
        found = explain_template(state, one, templates, now=NOW)
        said = "\n".join([found.verdict.why, *found.verdict.ways, *found.hints])
        assert found.fits == fits[provider], said
        assert found.nodes + sum(found.passed_over.values()) == 20
        assert all(word in said for word in words), said


def test_every_manifest_is_in_the_table():
    assert MANIFESTS.keys() == RIGHT.keys()
    assert len(MANIFESTS) == 26


def test_a_spot_taint_is_no_resource():
    """GKE adds no toleration for its spot nodes, which the pod selects: that is what it lacks."""
    state, (one,) = cloud("gke"), parse_templates(MANIFESTS["spot-only"], "")
    found = explain_template(state, one, [one], now=NOW)
    assert "cloud.google.com/gke-spot=true:NoSchedule (3 of 20 nodes)" in found.verdict.why
    assert found.verdict.ways[0].endswith("3 nodes would accept it")
