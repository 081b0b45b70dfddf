"""``extender/v1``: the messages between kube-scheduler and Stowage."""
