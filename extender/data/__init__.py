"""Data files of the service."""

from pathlib import Path

CLUSTER = Path(__file__).parent / "demo-cluster.json"
"""The example cluster, in the format of ``kubectl get nodes,pods -A -o json``."""
