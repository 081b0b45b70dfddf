"""The messages of ``extender/v1`` between kube-scheduler and Stowage."""
