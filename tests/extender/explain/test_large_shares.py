"""A share larger than any GPU, in the words of every sharing system: the size of the largest GPU is said, and
the advice to ask for no more than that is true."""

from __future__ import annotations

import pytest
import yaml

from extender.explain.pod import explain
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from packing.model.reasons import Reason
from tests.extender.builders import make_state

from ..dialects.test_dialect_manifests import NODES

# By node: a request that is too large, the words about the largest GPU, and one of its size.
SHARES = {
    "hami": (
        "{limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: %s}}",
        "90000",
        "the largest GPU has 39 GiB",
        "39936",
    ),
    "vgpu-manager": (
        "{limits: {nvidia.com/vgpu-number: 1, nvidia.com/vgpu-memory: %s}}",
        "40000",
        "the largest GPU has 22 GiB",
        "22528",
    ),
    "volcano": (
        "{limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: %s}}",
        "40000",
        "the largest GPU has 32 GiB",
        "32768",
    ),
    "koordinator": (
        "{limits: {koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory: %s}}",
        "40Gi",
        "the largest GPU has 15 GiB",
        "15Gi",
    ),
    "gpushare": ("{limits: {aliyun.com/gpu-mem: %s}}", "40", "the largest GPU has 15", "15"),
    "stowage": ("%s", "60Gi", "the largest GPU has 44 GiB", "44Gi"),
}


def asking(written: str, amount: str) -> Pod:
    resources = {} if written == "%s" else yaml.safe_load(written % amount)
    annotations = {"stowage.dev/gpu-memory": amount} if written == "%s" else {}
    metadata = {"name": "p", "namespace": "default", "uid": "p", "annotations": annotations}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    return PodManifest.from_value({"metadata": metadata, "spec": spec}).record()


@pytest.mark.parametrize("system", SHARES)
def test_the_largest_gpu_is_named(system: str):
    written, too_much, words, enough = SHARES[system]
    manifest = NODES[system] | {"metadata": {"name": "n", **NODES[system].get("metadata", {})}}
    state = make_state(NodeManifest.from_value(manifest).record(), binds=system in ("hami", "stowage"))
    found = explain(state, asking(written, too_much))
    assert found.refusals[0].reason == Reason.GPUS_TOO_SMALL.text
    assert words in found.verdict.lacks
    assert found.verdict.ways[0].startswith("request at most ")
    assert "then:" not in found.verdict.ways[0]
    assert explain(state, asking(written, enough)).fits == 1
