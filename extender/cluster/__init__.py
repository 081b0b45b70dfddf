"""The state of the cluster as Stowage knows it: nodes, pods with their allocations, and assumed pods."""
