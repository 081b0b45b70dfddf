"""The service: what kube-scheduler, the Kubernetes API and people talk to; `packing` makes the decisions."""
