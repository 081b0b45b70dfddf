"""Data that comes with the service."""

from pathlib import Path

CLUSTER = Path(__file__).with_name("demo-cluster.json")
"""An example cluster, in the form that ``kubectl get nodes,pods -A -o json`` prints."""
