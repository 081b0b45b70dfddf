"""Data files of the service. Those with facts say where these come from."""

import json
from pathlib import Path
from typing import Any

CLUSTER = Path(__file__).parent / "demo-cluster.json"
"""The example cluster, in the format of ``kubectl get nodes,pods -A -o json``."""


def facts(name: str) -> Any:  # noqa: ANN401 (what the file has)
    """The content of a file: ``clouds`` (names of GPUs, instance types), ``gpu-health`` (conditions and
    labels of agents that say that a GPU is unhealthy), ``node-lifecycle`` (labels of spot nodes, taints of
    nodes that are about to be terminated), ``network`` (labels of its domains), ``api-fields`` (fields of
    pods and workloads, and rules for their values), ``demo-pods``."""
    return json.loads(CLUSTER.with_name(f"{name}.json").read_text(encoding="utf-8"))
