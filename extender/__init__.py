"""The service: what kube-scheduler, the Kubernetes API and people talk to. Decisions are made in `packing`."""
