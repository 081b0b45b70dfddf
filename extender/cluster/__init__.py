"""The state of the cluster as Stowage knows it: nodes, pods, what each pod has of its node, and assumed pods."""
