"""Data files of the service."""

from pathlib import Path

CLUSTER = Path(__file__).with_name("demo-cluster.json")
"""An example cluster, as ``kubectl get nodes,pods -A -o json`` prints it."""
